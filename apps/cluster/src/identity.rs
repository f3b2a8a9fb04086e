//! The identity of a model, on which all machines that compute a query must agree.

use std::fmt;

use anyhow::Result;
use blake3::Hasher;
use dynquant_embed::{Encoder, Head, Input, ModelOptions, Task};
use serde::{Deserialize, Serialize};

/// A model as it is named in plans.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The name for people: folders may have other names on other machines.
    name: String,
    /// The format of the weights.
    weights: String,
    /// The hexadecimal hash of everything that determines the bits of an answer.
    digest: String,
}

impl Identity {
    /// Hashes the version of this program, the files of the model, the format of its weights, and
    /// the bits of its answers to a few texts.
    ///
    /// The answers distinguish machines on which the same files give other bits, such as with a
    /// float model, whose sums depend on the CPU.
    pub fn of(encoder: &Encoder, options: &ModelOptions) -> Result<Self> {
        let mut hash = Hasher::new();
        for part in [env!("CARGO_PKG_VERSION"), &encoder.dtype, &options.digest()?] {
            hash.update(part.as_bytes());
            hash.update(&[0]);
        }
        hash_answers(&mut hash, encoder)?;
        Ok(Self {
            name: encoder.name.clone(),
            weights: encoder.dtype.clone(),
            digest: hash.finalize().to_string(),
        })
    }

    /// Whether both models give the same bits.
    pub fn agrees(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, weights, digest } = self;
        // A prefix suffices to show a difference.
        let digest = digest.get(..16).unwrap_or(digest);
        write!(f, "{name} ({weights}, hash {digest})")
    }
}

fn hash_answers(hash: &mut Hasher, encoder: &Encoder) -> Result<()> {
    const LONGEST: usize = 24;
    for count in 1..=LONGEST.min(encoder.config.max_tokens) {
        let id = |index| ((index * 7919 + count * 104_729) % encoder.config.vocab_size) as u32;
        let ids: Vec<u32> = (0..count).map(id).collect();
        let tokens = encoder.tokenizer.encode(Input::Ids(&ids), None)?;
        let task = Task { tokens: &tokens, head: Head::Embedding };
        for x in encoder.model.answer(&[task])?.concat() {
            hash.update(&x.to_bits().to_le_bytes());
        }
    }
    Ok(())
}
