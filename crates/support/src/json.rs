//! JSON files that may come from anywhere.

use std::path::Path;

use anyhow::{Context, Result};
use candle_dynquant_io::{input, json};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The longest file that is read, in bytes. Parsed, JSON takes up to a hundred times its length.
const MAX_BYTES: u64 = 4 << 20;

/// Reads a file that holds what `expected` says.
///
/// # Errors
/// When the file cannot be read, is longer than `MAX_BYTES`, or holds something else.
pub fn read<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<T> {
    let name = path.display();
    let bytes = input::read(path, MAX_BYTES)
        .with_context(|| format!("{name}: expected a readable file"))?;
    parse(&name.to_string(), bytes, expected)
}

/// As [`read`], from the bytes of the file `name`.
///
/// # Errors
/// When they hold something else.
pub fn parse<T: DeserializeOwned>(name: &str, bytes: Vec<u8>, expected: &str) -> Result<T> {
    let text = String::from_utf8(json::strict(bytes))
        .with_context(|| format!("{name}: expected a readable text file, in UTF-8"))?;
    serde_json::from_str(&text).with_context(|| format!("{name}: expected {expected}"))
}

/// The keys of a file that holds an object, with its path for error messages.
pub struct Keys {
    pub path: String,
    pub map: Map<String, Value>,
}

impl Keys {
    const EXPECTED: &str = "a JSON object";

    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self {
            path: path.display().to_string(),
            map: read(path, Self::EXPECTED)?,
        })
    }

    /// As [`read`](Self::read), where `text` is what the file at `path` holds.
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            map: parse(path, text.into(), Self::EXPECTED)?,
        })
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }

    pub fn fault(&self, key: &str, expected: &str) -> anyhow::Error {
        let got = match self.get(key) {
            Some(value) => value.to_string(),
            None => "no such key".to_owned(),
        };
        anyhow::anyhow!("{}: key {key:?}: expected {expected}, got {got}", self.path)
    }

    /// A size; one that is not there may have a default.
    pub fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        let got = match (self.get(key), default) {
            (None, Some(default)) => return Ok(default),
            (got, _) => got.and_then(Value::as_u64),
        };
        match got {
            // No real model comes near the limit, and products of two sizes stay in a usize.
            Some(size @ 1..=0x7fff_ffff) => Ok(size as usize),
            _ => Err(self.fault(key, "a positive integer below 2^31")),
        }
    }
}
