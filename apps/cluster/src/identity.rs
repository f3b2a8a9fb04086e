//! The identity of a model: what all machines that compute for one query must agree on.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use dynquant_encoder::{EMBEDDED, Encoder, Head, Input, Task};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A model, as plans name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// For people: folders may have other names on other machines.
    name: String,
    /// How the weights are stored.
    weights: String,
    /// Hexadecimal, of all that decides on the bits of an answer.
    digest: String,
}

impl Identity {
    /// Hashes the version of this program, the files of the model, how its weights are stored, and the bits
    /// of its answers to a few texts.
    ///
    /// The answers tell machines apart on which the same files give other bits, as a float model's may:
    /// its sums depend on the CPU.
    ///
    /// # Errors
    /// When a file cannot be read or the model fails.
    pub fn of(encoder: &Encoder, dir: Option<&Path>) -> Result<Self> {
        let mut hash = Sha256::new();
        hash.update(env!("CARGO_PKG_VERSION"));
        hash.update([0]);
        hash.update(&encoder.dtype);
        match dir {
            None => EMBEDDED.iter().for_each(|bytes| {
                hash.update((bytes.len() as u64).to_le_bytes());
                hash.update(bytes);
            }),
            Some(dir) => hash_folder(&mut hash, dir)?,
        }
        hash_answers(&mut hash, encoder)?;
        let digest = hash.finalize();
        Ok(Self {
            name: encoder.name.clone(),
            weights: encoder.dtype.clone(),
            digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    /// Whether both give the same bits.
    pub fn agrees(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            weights,
            digest,
        } = self;
        // A part is enough to see a difference.
        let digest = digest.get(..16).unwrap_or(digest);
        write!(f, "{name} ({weights}, sha256 {digest})")
    }
}

/// The files that an encoder reads, in the order of their names.
fn hash_folder(hash: &mut Sha256, dir: &Path) -> Result<()> {
    let unreadable = || format!("{}: expected a readable folder", dir.display());
    let mut paths: Vec<PathBuf> = ["1_Pooling/config.json", "sentence_bert_config.json"]
        .map(|name| dir.join(name))
        .into_iter()
        .filter(|path| path.exists())
        .collect();
    paths.extend(["config.json", "tokenizer.json"].map(|name| dir.join(name)));
    for entry in fs::read_dir(dir).with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        if path.extension().is_some_and(|it| it == "safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    for path in paths {
        let readable = || format!("{}: expected a readable file", path.display());
        let mut file = File::open(&path).with_context(readable)?;
        let length = file.metadata().with_context(readable)?.len();
        hash.update(length.to_le_bytes());
        let mut block = vec![0; 1 << 20];
        loop {
            match file.read(&mut block).with_context(readable)? {
                0 => break,
                length => hash.update(&block[..length]),
            }
        }
    }
    Ok(())
}

fn hash_answers(hash: &mut Sha256, encoder: &Encoder) -> Result<()> {
    // Sums of float products may depend on the number of tokens, too.
    const LONGEST: usize = 24;
    for count in 1..=LONGEST.min(encoder.config.max_tokens) {
        let id = |index| ((index * 7919 + count * 104_729) % encoder.config.vocab_size) as u32;
        let ids: Vec<u32> = (0..count).map(id).collect();
        let tokens = encoder.tokenizer.encode(Input::Ids(&ids), None)?;
        let task = Task {
            tokens: &tokens,
            head: Head::Embedding,
        };
        for x in encoder.model.answer(&[task])?.concat() {
            hash.update(x.to_bits().to_le_bytes());
        }
    }
    Ok(())
}
