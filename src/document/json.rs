//! JSON as a tree: serde_json tells which part of the text each value is, and thereby its place.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::node::{MAX_DEPTH, MAX_VALUES, Node, Value, fault, too_large};
use crate::error::{Error, Result};

/// The tree of a text, whose length the caller has checked.
pub(super) fn parse(text: &str) -> Result<Node> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|e| malformed(text, &e))?;
    let mut reader = Reader { text, at: 0, line: 1, column: 1, values: 0 };
    reader.node(raw.get(), 0)
}

/// Reads values in the order of the text.
struct Reader<'a> {
    text: &'a str,
    /// How far lines and columns are counted.
    at: usize,
    line: usize,
    column: usize,
    /// The number of values so far.
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

/// An object's keys and values, in their order.
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

fn malformed(text: &str, error: &serde_json::Error) -> Error {
    let line = text.split('\n').nth(error.line().saturating_sub(1));
    let line = line.unwrap_or_default().as_bytes();
    // Columns are characters here, and bytes there.
    let before = &line[..error.column().min(line.len())];
    let column = String::from_utf8_lossy(before).chars().count();
    fault(error.line(), column, without_place(&error.to_string()))
}

fn without_place(message: &str) -> &str {
    message.rsplit_once(" at line ").map_or(message, |(m, _)| m)
}
