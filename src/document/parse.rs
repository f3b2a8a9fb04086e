//! The parsers from text to tree, within limits: the text may be anything.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use candle_dynquant_io::input;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{MessageFormatter, Spanned, UserMessageFormatter};

use super::json;
use super::node::{MAX_DEPTH, MAX_VALUES, Node, Read, Value, fault, too_large};
use crate::error::{Error, Result};

/// Bytes of the longest document: a longer one was not written by hand.
const MAX_BYTES: usize = 1 << 20;
impl Node {
    pub fn from_yaml(text: &str) -> Result<Self> {
        check_length(text.len())?;
        let options = serde_saphyr::options! {
            strict_booleans: true,
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_depth: MAX_DEPTH,
                max_events: MAX_VALUES,
                max_documents: 1,
            },
        };
        let NodeTree::<true>(mut node) =
            serde_saphyr::from_str_with_options(without_mark(text), options).map_err(malformed)?;
        node.set_key(String::new());
        Ok(node)
    }

    pub fn from_json(text: &str) -> Result<Self> {
        check_length(text.len())?;
        let mut node = json::parse(without_mark(text))?;
        node.set_key(String::new());
        Ok(node)
    }

    /// Reads a file, as YAML or as JSON by its extension.
    pub fn from_file(path: &Path) -> Result<Self> {
        let read = |parse: fn(&str) -> Result<Self>| {
            let bytes = match input::read(path, MAX_BYTES as u64) {
                Err(error) if error.kind() == ErrorKind::FileTooLarge => return Err(too_long()),
                bytes => bytes.map_err(candle_core::Error::from)?,
            };
            let text = std::str::from_utf8(&bytes).map_err(|e| {
                let valid = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
                let line = valid.matches('\n').count() + 1;
                let column = valid.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
                fault(line, column, "expected UTF-8")
            })?;
            parse(text)
        };
        let extension = path.extension().map(|e| e.to_ascii_lowercase());
        match extension.as_ref().and_then(|e| e.to_str()) {
            Some("yaml" | "yml") => read(Self::from_yaml),
            Some("json") => read(Self::from_json),
            other => Err(Error::argument(
                "extension",
                "yaml, yml or json",
                other.map_or("none".into(), |e| format!("{e:?}")),
            )),
        }
    }
}

/// The text behind a byte order mark, with which some editors begin.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn check_length(bytes: usize) -> Result<()> {
    if bytes > MAX_BYTES {
        return Err(too_long());
    }
    Ok(())
}

fn too_long() -> Error {
    fault(1, 1, &format!("expected at most {MAX_BYTES} bytes"))
}

fn malformed(error: serde_saphyr::Error) -> Error {
    use serde_saphyr::Error as Yaml;
    let place = error.location().filter(|place| place.line() > 0);
    let (line, column) = place.map_or((1, 1), |p| (p.line() as usize, p.column() as usize));
    let mut inner = &error;
    while let Yaml::AliasError { error, .. } = inner {
        inner = error;
    }
    let message = match inner {
        Yaml::DuplicateMappingKey { key: Some(key), .. } => format!("duplicate key `{key}`"),
        Yaml::RecursiveReferencesRequireWeakTypes { .. } => "an alias within its own anchor".into(),
        Yaml::Budget { .. } => too_large(),
        other => UserMessageFormatter.format_message(other).into_owned(),
    };
    fault(line, column, &message)
}

/// Reads a value from any format by `Deserialize`; only the crate's parsers know places.
pub(crate) fn deserialize<'de, T: Read, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let NodeTree::<false>(mut node) = NodeTree::deserialize(from)?;
    node.set_key(String::new());
    T::read(&node).map_err(serde::de::Error::custom)
}

/// `Deserialize` of what can be read.
macro_rules! deserialize_by_read {
    ($($type:ty),+) => {$(
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::document::parse::deserialize(from)
            }
        }
    )+};
}

pub(crate) use deserialize_by_read;

/// A node with its place, or without: only YAML gives places.
struct NodeTree<const PLACED: bool>(Node);

/// A value whose parts are such trees.
struct Branch<const PLACED: bool>(Value);

impl<'de, const PLACED: bool> Deserialize<'de> for NodeTree<PLACED> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (line, column, value) = if PLACED {
            let Spanned::<Branch<PLACED>> { value, referenced, .. } =
                Deserialize::deserialize(from)?;
            (referenced.line(), referenced.column(), value)
        } else {
            (0, 0, Branch::deserialize(from)?)
        };
        Ok(Self(Node {
            line: line as usize,
            column: column as usize,
            key: String::new(),
            value: value.0,
        }))
    }
}

impl<'de, const PLACED: bool> Deserialize<'de> for Branch<PLACED> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Growing::<PLACED>).map(Self)
    }
}

struct Growing<const PLACED: bool>;

impl<'de, const PLACED: bool> Visitor<'de> for Growing<PLACED> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(NodeTree::<PLACED>(item)) = from.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((NodeTree::<PLACED>(key), NodeTree::<PLACED>(value))) = from.next_entry()? {
            entries.push((key, value));
        }
        Ok(Value::Map(entries))
    }
}
