//! The parsers from text to tree, within limits: the text may be anything.

use std::collections::HashSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use candle_dynquant_io::input;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_saphyr::{MessageFormatter, Spanned, UserMessageFormatter};

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
        let mut node = parse_json(without_mark(text))?;
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
    if bytes > MAX_BYTES { Err(too_long()) } else { Ok(()) }
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

/// The tree of a text, whose length the caller has checked.
fn parse_json(text: &str) -> Result<Node> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|e| malformed_json(text, &e))?;
    let mut reader = Reader { text, at: 0, line: 1, column: 1, values: 0 };
    reader.node(raw.get(), 0)
}

struct Reader<'a> {
    text: &'a str,
    /// How far lines and columns are counted.
    at: usize,
    line: usize,
    column: usize,
    values: usize,
}

impl<'a> Reader<'a> {
    /// A value that is well formed, which is all but sure of strings and numbers.
    fn node(&mut self, raw: &'a str, depth: usize) -> Result<Node> {
        let (line, column) = self.place(raw);
        self.values += 1;
        if self.values > MAX_VALUES || depth > MAX_DEPTH {
            return Err(fault(line, column, &too_large()));
        }
        let malformed = |e: &serde_json::Error| fault(line, column, without_place(&e.to_string()));
        let value = match raw.as_bytes().first() {
            Some(b'{') => {
                let ObjectEntries(raw) = serde_json::from_str(raw).map_err(|e| malformed(&e))?;
                Value::Map(self.entries(raw, depth + 1)?)
            }
            Some(b'[') => {
                let raw: Vec<&RawValue> = serde_json::from_str(raw).map_err(|e| malformed(&e))?;
                let items = raw.into_iter().map(|item| self.node(item.get(), depth + 1));
                Value::List(items.collect::<Result<_>>()?)
            }
            Some(b'"') => Value::Text(serde_json::from_str(raw).map_err(|e| malformed(&e))?),
            Some(b't') => Value::Bool(true),
            Some(b'f') => Value::Bool(false),
            Some(b'n') => Value::Null,
            _ => match (raw.parse(), raw.parse()) {
                (Ok(integer), _) => Value::Integer(integer),
                (_, Ok(float)) if f64::is_finite(float) => Value::Float(float),
                _ => return Err(fault(line, column, "number out of range")),
            },
        };
        Ok(Node { line, column, key: String::new(), value })
    }

    fn entries(
        &mut self,
        raw: Vec<(&'a RawValue, &'a RawValue)>,
        depth: usize,
    ) -> Result<Vec<(Node, Node)>> {
        let mut seen = HashSet::new();
        let mut entries = Vec::with_capacity(raw.len());
        for (key, value) in raw {
            let key = self.node(key.get(), depth)?;
            if let Value::Text(text) = &key.value
                && !seen.insert(text.clone())
            {
                return Err(fault(key.line, key.column, &format!("duplicate key `{text}`")));
            }
            entries.push((key, self.node(value.get(), depth)?));
        }
        Ok(entries)
    }

    /// Line and column of a part of the text that is behind the last.
    fn place(&mut self, part: &str) -> (usize, usize) {
        let start = part.as_ptr().addr() - self.text.as_ptr().addr();
        for c in self.text[self.at..start].chars() {
            (self.line, self.column) = match c {
                '\n' => (self.line + 1, 1),
                _ => (self.line, self.column + 1),
            };
        }
        self.at = start;
        (self.line, self.column)
    }
}

struct ObjectEntries<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for ObjectEntries<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct CollectEntries;

        impl<'de> Visitor<'de> for CollectEntries {
            type Value = ObjectEntries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = from.next_entry()? {
                    entries.push(entry);
                }
                Ok(ObjectEntries(entries))
            }
        }

        from.deserialize_map(CollectEntries)
    }
}

fn malformed_json(text: &str, error: &serde_json::Error) -> Error {
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default().as_bytes();
    // Columns are characters here, and bytes there.
    let column = String::from_utf8_lossy(&line[..error.column().min(line.len())]).chars().count();
    fault(error.line(), column, without_place(&error.to_string()))
}

fn without_place(message: &str) -> &str {
    message.rsplit_once(" at line ").map_or(message, |(m, _)| m)
}
