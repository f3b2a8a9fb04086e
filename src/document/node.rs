//! A value with its place, and how a reader takes it apart.

use std::collections::HashSet;
use std::fmt;

use crate::error::{Error, Fault, Result, did_you_mean};
use crate::words::{brief, suggestion};

/// Types that can be read from a document, or from a value in it.
pub(crate) trait Read: Sized {
    fn read(node: &Node) -> Result<Self>;
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(super) line: usize,
    pub(super) column: usize,
    /// Keys from the outermost: `rules[2].qconfig`.
    pub(super) key: String,
    pub value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

/// A map with known keys only.
pub(crate) struct Map<'a> {
    node: &'a Node,
    entries: &'a [(Node, Node)],
}

impl Node {
    pub fn fault(&self, message: impl Into<String>) -> Error {
        Error::from(Fault::InvalidConfig {
            line: self.line,
            column: self.column,
            key: self.key.clone(),
            message: brief(&message.into(), LONGEST_MESSAGE),
        })
    }

    pub fn unexpected(&self, expected: impl fmt::Display) -> Error {
        self.fault(format!("expected {expected}, got {}", self.value))
    }

    pub fn text(&self, expected: &str) -> Result<&str> {
        match &self.value {
            Value::Text(text) => Ok(text),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) => {
                Err(self.unexpected(format_args!("{expected}, in quotes")))
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    /// Reads the text here with `parse`.
    pub fn word<T>(&self, expected: &str, parse: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        parse(self.text(expected)?).map_err(|e| self.fault(e.to_string()))
    }

    pub fn bool(&self) -> Result<bool> {
        match self.value {
            Value::Bool(value) => Ok(value),
            _ => Err(self.unexpected("true or false")),
        }
    }

    pub fn integer<T: TryFrom<i128>>(
        &self,
        expected: impl fmt::Display,
        valid: impl FnOnce(&T) -> bool,
    ) -> Result<T> {
        let value = match self.value {
            Value::Integer(value) => T::try_from(value).ok().filter(valid),
            _ => None,
        };
        value.ok_or_else(|| self.unexpected(expected))
    }

    pub fn float(&self, expected: &str, valid: impl FnOnce(&f32) -> bool) -> Result<f32> {
        let value = match self.value {
            Value::Integer(value) => Some(value as f32),
            Value::Float(value) => Some(value as f32),
            _ => None,
        };
        value.filter(valid).ok_or_else(|| self.unexpected(expected))
    }

    /// A number, exact as f64.
    pub fn number(&self, expected: &str, valid: impl FnOnce(&f64) -> bool) -> Result<f64> {
        let value = match self.value {
            Value::Integer(value) => Some(value as f64),
            Value::Float(value) => Some(value),
            _ => None,
        };
        value.filter(valid).ok_or_else(|| self.unexpected(expected))
    }

    pub fn list(&self, expected: &str) -> Result<&[Node]> {
        match &self.value {
            Value::List(items) => Ok(items),
            _ => Err(self.unexpected(expected)),
        }
    }

    /// The keys and values of a map whose keys are texts, each of which comes once.
    pub fn entries(&self, expected: &str) -> Result<&[(Node, Node)]> {
        let Value::Map(entries) = &self.value else { return Err(self.unexpected(expected)) };
        let mut seen = HashSet::new();
        for (key, _) in entries {
            let text = key.text("a key")?;
            if !seen.insert(text) {
                return Err(key.fault(format!("duplicate key `{text}`")));
            }
        }
        Ok(entries)
    }

    /// A map with none but these keys, which messages show as they are written: `a, b`.
    pub fn map(&self, expected: &str, keys: &str) -> Result<Map<'_>> {
        let entries = self.entries(&format!("{expected}: a map with keys {keys}"))?;
        for (key, _) in entries {
            let text = key.text("a key")?;
            if !keys.split(", ").any(|own| own == text) {
                let hint = did_you_mean(suggestion(text, keys.split(", ")));
                let message = format!("unknown key `{text}`: expected one of {keys}{hint}");
                return Err(key.fault(message));
            }
        }
        Ok(Map { node: self, entries })
    }

    pub fn line(&self) -> usize {
        self.line
    }

    /// Keys from the outermost: `rules[2].qconfig`.
    pub fn key(&self) -> &str {
        &self.key
    }

    fn is(&self, text: &str) -> bool {
        matches!(&self.value, Value::Text(found) if found == text)
    }

    /// Names every value below after the keys that lead to it.
    pub(super) fn set_key(&mut self, key: String) {
        match &mut self.value {
            Value::List(items) => {
                for (i, item) in items.iter_mut().enumerate() {
                    item.set_key(format!("{key}[{i}]"));
                }
            }
            Value::Map(entries) => {
                for (own, value) in entries {
                    let name = match &own.value {
                        Value::Text(text) => brief(text, 60),
                        other => other.to_string(),
                    };
                    let own_key = match key.as_str() {
                        "" => name,
                        key => format!("{key}.{name}"),
                    };
                    own.key.clone_from(&own_key);
                    value.set_key(own_key);
                }
            }
            _ => {}
        }
        self.key = key;
    }
}

impl<'a> Map<'a> {
    pub fn get(&self, key: &str) -> Option<&'a Node> {
        let mut entries = self.entries.iter();
        entries.find_map(|(own, value)| own.is(key).then_some(value))
    }

    /// Reads the value at `key` with `read`, if there is one.
    pub fn read<T>(&self, key: &str, read: impl FnOnce(&Node) -> Result<T>) -> Result<Option<T>> {
        self.get(key).map(read).transpose()
    }

    /// The value at `key`, without which the map means nothing.
    pub fn require(&self, key: &str, hint: &str) -> Result<&'a Node> {
        let missing = || self.node.fault(format!("missing key `{key}`: {hint}"));
        self.get(key).ok_or_else(missing)
    }

    /// Refuses keys that mean nothing beside the others.
    pub fn refuse(&self, beside: &str, foreign: impl Fn(&str) -> bool) -> Result<()> {
        for (key, _) in self.entries {
            let name = key.text("a key")?;
            if foreign(name) {
                return Err(key.fault(format!("`{name}` does not apply to {beside}")));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(text) => write!(f, "{:?}", brief(text, 60)),
            Self::List(_) => f.write_str("a list"),
            Self::Map(_) => f.write_str("a map"),
        }
    }
}

/// Messages quote the value found, which may be anything.
const LONGEST_MESSAGE: usize = 800;
pub(super) const MAX_DEPTH: usize = 32;
/// Values, and what aliases repeat of them.
pub(super) const MAX_VALUES: usize = 100_000;

pub(super) fn fault(line: usize, column: usize, message: &str) -> Error {
    Error::from(Fault::InvalidConfig {
        line,
        column,
        key: String::new(),
        message: brief(message, LONGEST_MESSAGE),
    })
}

pub(super) fn too_large() -> String {
    format!("expected one document of at most {MAX_VALUES} values, {MAX_DEPTH} deep")
}
