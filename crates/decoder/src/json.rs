//! JSON files from untrusted sources.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use candle_dynquant_io::{input, json};
use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The largest file that is read, in bytes. Parsed, JSON takes up to a hundred times its length.
const MAX_BYTES: u64 = 4 << 20;

/// Reads a file; `expected` describes its contents in errors.
///
/// # Errors
/// When the file cannot be read, is longer than `MAX_BYTES`, or has other contents.
pub fn read<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<T> {
    parse(&path.display().to_string(), text(path)?, expected)
}

/// Reads the bytes of a file.
///
/// # Errors
/// When the file cannot be read, or is longer than `MAX_BYTES`.
pub fn text(path: &Path) -> Result<Vec<u8>> {
    let name = path.display();
    input::read(path, MAX_BYTES).with_context(|| format!("{name}: expected a readable file"))
}

/// Parses the bytes of the file `name`; `expected` describes its contents in errors.
///
/// # Errors
/// When the bytes hold something else, or an object with a duplicate key, for which readers choose
/// different values.
pub fn parse<T: DeserializeOwned>(name: &str, bytes: Vec<u8>, expected: &str) -> Result<T> {
    let text = String::from_utf8(json::strict(bytes))
        .with_context(|| format!("{name}: expected a readable text file, in UTF-8"))?;
    let at = || format!("{name}: expected {expected}");
    unique(text.as_bytes()).with_context(at)
}

/// Parses JSON without duplicate keys: readers differ in which value they take.
///
/// # Errors
/// When an object has a duplicate key, or the text is something else.
pub fn unique<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice::<Unique>(text)?;
    serde_json::from_slice(text)
}

/// Any value, in whose objects no key occurs twice.
struct Unique;

macro_rules! scalars {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: Error>(self, _: $type) -> Result<Self, E> {
            Ok(self)
        })*
    };
}

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self, A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = from.next_key::<String>()? {
            from.next_value::<Self>()?;
            if let Some(key) = seen.replace(key) {
                let key: String = key.chars().take(200).collect();
                return Err(A::Error::custom(format_args!("key {key:?} twice")));
            }
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self, A::Error> {
        while from.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    scalars! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str }

    fn visit_unit<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }
}

/// The keys of a file that holds an object, with its path for error messages.
pub struct Keys {
    /// The path of the file.
    pub path: String,
    /// The keys and their values.
    pub map: Map<String, Value>,
}

impl Keys {
    const EXPECTED: &str = "a JSON object";

    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self { path: path.display().to_string(), map: read(path, Self::EXPECTED)? })
    }

    /// Parses `text`, the contents of the file at `path`, as [`read`](Self::read) does.
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        Ok(Self { path: path.to_owned(), map: parse(path, text.into(), Self::EXPECTED)? })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }

    /// The error of a key that has another value than `expected`.
    pub fn fault(&self, key: &str, expected: &str) -> anyhow::Error {
        let got = match self.get(key) {
            Some(value) => value.to_string(),
            None => "no such key".to_owned(),
        };
        anyhow::anyhow!("{}: key {key:?}: expected {expected}, got {got}", self.path)
    }

    /// The value of a key that is a size, or the default if the key is missing.
    pub fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        let got = match (self.get(key), default) {
            (None, Some(default)) => return Ok(default),
            (got, _) => got.and_then(Value::as_u64),
        };
        match got {
            // No real model comes near the limit, and products of two sizes fit a usize.
            Some(size @ 1..=0x7fff_ffff) => Ok(size as usize),
            _ => Err(self.fault(key, "a positive integer below 2^31")),
        }
    }
}
