//! An index: which passages are in which files, their words and vectors, and the model that made
//! these; one file.
//!
//! | bytes | |
//! |---|---|
//! | 18 | `dynquant-search 3\n` |
//! | 8 | length of the catalog, little-endian |
//! | that many | the [`Catalog`] as JSON |
//! | 8 | length of the words, little-endian |
//! | that many | the [`Terms`], as postcard writes them |
//! | all but 32 | the [`Vectors`]: keys as `u64`, then rows of `f32`, little-endian |
//! | 32 | BLAKE3 hash of all before |

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_dynquant_io::input;
use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::passages::Passage;
use crate::place::{Lock, Place};
use crate::terms::Terms;
use crate::vectors::Vectors;

const MAGIC: &[u8; 16] = b"dynquant-search ";
const VERSION: &[u8; 2] = b"3\n";
const HASH: usize = blake3::OUT_LEN;

/// The files with their passages, and the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    /// The model that made the vectors.
    pub model: Identity,
    /// The length of a vector.
    pub dimensions: usize,
    /// The path of the indexed folder, unless the index is in it.
    pub root: Option<String>,
    /// The files, by their paths in the folder, with `/`.
    pub files: BTreeMap<String, Entry>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The BLAKE3 hash of the file, in hexadecimal.
    pub hash: String,
    /// Its passages, in their order.
    pub passages: Vec<Passage>,
}

/// A catalog with its vectors.
pub struct Index {
    /// The files, and the model.
    pub catalog: Catalog,
    /// The words of all texts in the catalog.
    pub terms: Terms,
    /// The vectors of all texts in the catalog, and some of texts that are gone.
    pub vectors: Vectors,
}

impl Index {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, is of another kind or version, or damaged.
    pub fn read(path: &Path) -> Result<Self> {
        let reading = || format!("{}: expected a readable index", path.display());
        let mut file = input::open(path).with_context(reading)?;
        let mut bytes = Vec::new();
        let head = (MAGIC.len() + VERSION.len()) as u64;
        (&mut file)
            .take(head)
            .read_to_end(&mut bytes)
            .with_context(reading)?;
        // Another file may be of any length.
        check_kind(&bytes).with_context(|| path.display().to_string())?;
        file.read_to_end(&mut bytes).with_context(reading)?;
        Self::parse(&bytes).with_context(|| path.display().to_string())
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let rest = check_kind(bytes)?;
        let damaged = "expected a whole index, got a damaged one";
        let (body, hash) = rest
            .split_at_checked(rest.len().saturating_sub(HASH))
            .context(damaged)?;
        let hashed = blake3::hash(&bytes[..bytes.len() - hash.len()]);
        ensure!(hashed.as_bytes() == hash, damaged);
        let (catalog, body) = part(body).context(damaged)?;
        let (terms, vectors) = part(body).context(damaged)?;
        let catalog: Catalog = serde_json::from_slice(catalog).context("the catalog")?;
        let terms = Terms::read(terms)?;
        let vectors = Vectors::read(vectors, catalog.dimensions)?;
        Ok(Self {
            catalog,
            terms,
            vectors,
        })
    }
}

/// A part behind its length, and what follows.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    rest.split_at_checked(length)
}

/// The bytes behind those that tell an index of this version from other files.
fn check_kind(bytes: &[u8]) -> Result<&[u8]> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        bail!("expected an index of dynquant-search, got another file");
    };
    let Some(rest) = rest.strip_prefix(VERSION) else {
        let version = rest.split(|&byte| byte == b'\n').next().unwrap_or(rest);
        let version = String::from_utf8_lossy(&version[..version.len().min(20)]);
        bail!("expected an index of version 3, got version {version:?}");
    };
    Ok(rest)
}

/// Replaces the file of an index; its length in bytes.
///
/// # Errors
/// When it cannot be written.
pub fn write(
    catalog: &Catalog,
    terms: &Terms,
    vectors: &Vectors,
    place: &Place,
    lock: &Lock,
) -> Result<u64> {
    let catalog = serde_json::to_vec(catalog).context("the catalog")?;
    let (terms, vectors) = (terms.write()?, vectors.write());
    let length = |part: &[u8]| (part.len() as u64).to_le_bytes();
    let lengths = [length(&catalog), length(&terms)];
    let parts: [&[u8]; 7] = [
        MAGIC,
        VERSION,
        &lengths[0],
        &catalog,
        &lengths[1],
        &terms,
        &vectors,
    ];
    let mut hasher = blake3::Hasher::new();
    place.replace(lock, |file| -> io::Result<()> {
        for part in parts {
            hasher.update(part);
            file.write_all(part)?;
        }
        file.write_all(hasher.finalize().as_bytes())
    })?;
    Ok((parts.iter().map(|part| part.len()).sum::<usize>() + HASH) as u64)
}
