//! Values of templates, written as Python writes them.

use std::fmt;
use std::io;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value, escape_formatter};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Writes the value of an expression.
pub fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => escape_formatter(out, state, value),
        _ => Ok(out.write_str(&python(value)?)?),
    }
}

pub fn string(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => Ok(value.to_string()),
        _ => python(value),
    }
}

pub fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `sequence`, which texts and mappings pass, too.
pub fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String};
    matches!(value.kind(), Map | Seq | String)
}

pub fn join(values: &Value, between: Option<String>) -> Result<String, Error> {
    let items: Vec<String> = match values.as_str() {
        Some(text) => text.chars().map(String::from).collect(),
        None => {
            let items = values.try_iter()?.map(|item| string(&item));
            items.collect::<Result<_, _>>()?
        }
    };
    Ok(items.join(between.as_deref().unwrap_or_default()))
}

/// A tuple: a sequence that is written in parentheses.
#[derive(Debug)]
struct Tuple(Vec<Value>);

pub fn tuple(values: Rest<Value>) -> Value {
    Value::from_object(Tuple(values.0))
}

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = self.0.iter().map(python).collect::<Result<Vec<_>, _>>();
        let comma = if self.0.len() == 1 { "," } else { "" };
        write!(f, "({}{comma})", items.map_err(|_| fmt::Error)?.join(", "))
    }
}

/// A float as Python writes it: with two digits in an exponent at least, and its sign.
fn float(value: f64) -> String {
    let text = format!("{value:?}").to_lowercase();
    match text.split_once('e').map(|(digits, power)| (digits, power.parse::<i32>())) {
        Some((digits, Ok(power))) => format!("{digits}e{power:+03}"),
        _ => text,
    }
}

/// The `repr` of Python.
fn python(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => ["False", "True"][usize::from(value.is_true())].to_owned(),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => float(f64::try_from(value.clone())?),
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_none() => {
            let items = value.try_iter()?.map(|item| python(&item));
            format!("[{}]", items.collect::<Result<Vec<_>, _>>()?.join(", "))
        }
        ValueKind::Map => {
            let item = |key: Value| {
                let (name, value) = (python(&key)?, python(&value.get_item(&key)?)?);
                Ok(format!("{name}: {value}"))
            };
            let items = value.try_iter()?.map(item);
            format!("{{{}}}", items.collect::<Result<Vec<_>, Error>>()?.join(", "))
        }
        _ => value.to_string(),
    })
}

/// A string in single quotes, or in double quotes if it has only single ones.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut all = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => all += "\\\\",
            '\n' => all += "\\n",
            '\r' => all += "\\r",
            '\t' => all += "\\t",
            c if c == quote => all.extend(['\\', c]),
            c if c.is_ascii_control() => all += &format!("\\x{:02x}", u32::from(c)),
            c => all.push(c),
        }
    }
    all.push(quote);
    all
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
            value.serialize(&mut Serializer::with_formatter(&mut out, Compact(separators)))
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
    fn write_f64<W: io::Write + ?Sized>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }

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
