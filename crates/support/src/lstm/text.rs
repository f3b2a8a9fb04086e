//! Characters as numbers, and texts as sequences of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_dynquant_decoder::json::Keys;
use candle_dynquant_io::input;

use super::config::Config;

/// The longest text, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The characters that the model knows.
pub struct Vocab {
    ids: BTreeMap<char, u32>,
    /// The characters by number.
    characters: Vec<char>,
}

impl Vocab {
    /// Reads an object from characters to the numbers 0, 1, .. below `vocab_size`.
    pub fn read(path: &Path, config: &Config) -> Result<Self> {
        let mut ids = BTreeMap::new();
        let mut by_id = BTreeMap::new();
        let (Keys { path, map }, size) = (Keys::read(path)?, config.vocab_size);
        for (key, value) in map {
            let mut characters = key.chars();
            let (Some(character), None) = (characters.next(), characters.next()) else {
                bail!("{path}: expected keys of one character, got {key:?}");
            };
            let id = value.as_u64().filter(|id| *id < size as u64);
            let Some(id) = id else {
                bail!(
                    "{path}: character {character:?}: expected a number from 0 to {}, one below vocab_size of config.json, got {value}",
                    size - 1,
                );
            };
            // The number is below vocab_size, which is below 2^31.
            ids.insert(character, id as u32);
            if let Some(other) = by_id.insert(id, character) {
                bail!(
                    "{path}: expected a number for each character, got {id} for {other:?} and {character:?}"
                );
            }
        }
        // Distinct numbers below vocab_size: a full set is 0, 1, ..
        ensure!(
            ids.len() == size,
            "{path}: expected {size} characters, as vocab_size of config.json says, got {}",
            ids.len(),
        );
        let characters = by_id.into_values().collect();
        Ok(Self { ids, characters })
    }

    /// The numbers of a text's characters; `name` is the text's name in errors.
    pub fn encode(&self, name: &str, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len());
        for (number, line) in text.split_inclusive('\n').enumerate() {
            for (column, character) in line.chars().enumerate() {
                let Some(id) = self.ids.get(&character) else {
                    let known: String = self.characters.iter().collect();
                    bail!(
                        "{name}: line {}, column {}: expected one of the model's characters {known:?}, got {character:?}",
                        number + 1,
                        column + 1,
                    );
                };
                ids.push(*id);
            }
        }
        Ok(ids)
    }

    /// The character of a number below vocab_size.
    pub fn character(&self, id: u32) -> char {
        self.characters[id as usize]
    }
}

/// Reads a text of two or more characters, also from a pipe; every character after the first can be
/// predicted.
pub fn read(path: &Path, vocab: &Vocab) -> Result<Vec<u32>> {
    let name = path.display().to_string();
    let text = input::read_stream(path, MAX_BYTES)
        .with_context(|| format!("{name}: expected a readable text file"))?;
    let ids = vocab.encode(&name, &text)?;
    ensure!(ids.len() >= 2, "{name}: expected a text of at least 2 characters, got {}", ids.len());
    Ok(ids)
}
