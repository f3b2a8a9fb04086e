//! Values of templates, written as Python writes them.

use std::io;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value, escape_formatter};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Writes the value of an expression.
pub fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => Ok(out.write_str("None")?),
        ValueKind::Bool => Ok(out.write_str(["False", "True"][usize::from(value.is_true())])?),
        _ => escape_formatter(out, state, value),
    }
}

/// The filter `tojson` of transformers.
pub fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    let mut out = Vec::new();
    let done = match (indent, separators) {
        (Some(indent), None) => {
            let indent = " ".repeat(indent.min(100));
            let pretty = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, pretty))
        }
        (_, separators) => {
            let separators = separators.unwrap_or_else(|| [", ", ": "].map(str::to_owned).into());
            value.serialize(&mut Serializer::with_formatter(
                &mut out,
                Compact(separators),
            ))
        }
    };
    let fault = |error: String| Error::new(ErrorKind::InvalidOperation, error);
    done.map_err(|error| fault(format!("tojson: {error}")))?;
    String::from_utf8(out).map_err(|error| fault(error.to_string()))
}

/// A formatter of JSON on one line, with text between items and after keys.
struct Compact(Vec<String>);

impl Compact {
    fn write(
        &self,
        out: &mut (impl io::Write + ?Sized),
        index: usize,
        is_there: bool,
    ) -> io::Result<()> {
        let text = self.0.get(index).filter(|_| is_there);
        out.write_all(text.map_or("", String::as_str).as_bytes())
    }
}

impl Formatter for Compact {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.write(out, 0, !first)
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.write(out, 0, !first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.write(out, 1, true)
    }
}
