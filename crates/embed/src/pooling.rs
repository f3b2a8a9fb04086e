//! The pooling of a text's token vectors into one vector.

use std::fmt;

use anyhow::Result;
use serde_json::Value;

use crate::keys::Keys;
use crate::tables;

/// The way an embedding is made of the tokens' vectors: one mode, or several whose vectors are
/// concatenated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// The modes, at least one.
    pub modes: Vec<Mode>,
    /// Whether the tokens of a prompt count too.
    pub include_prompt: bool,
}

/// A way to combine several vectors into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The first vector.
    Cls,
    /// The elementwise maximum.
    Max,
    /// The mean.
    Mean,
    /// The sum divided by the square root of the number of vectors.
    MeanSqrtLen,
    /// The mean with the n-th vector weighted by n.
    WeightedMean,
    /// The last vector.
    LastToken,
}

/// The names since release 6 of sentence-transformers, and the earlier flags, in the order in which
/// it concatenates vectors.
const NAMES: [(Mode, &str, &str); 6] = [
    (Mode::Cls, "cls", "pooling_mode_cls_token"),
    (Mode::Max, "max", "pooling_mode_max_tokens"),
    (Mode::Mean, "mean", "pooling_mode_mean_tokens"),
    (Mode::MeanSqrtLen, "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    (Mode::WeightedMean, "weightedmean", "pooling_mode_weightedmean_tokens"),
    (Mode::LastToken, "lasttoken", "pooling_mode_lasttoken"),
];

impl Default for Pooling {
    fn default() -> Self {
        Self { modes: vec![Mode::Mean], include_prompt: true }
    }
}

impl Pooling {
    pub(crate) fn last_token() -> Self {
        Self { modes: vec![Mode::LastToken], ..Self::default() }
    }

    /// Reads a configuration of sentence-transformers, for vectors of `hidden` numbers.
    pub(crate) fn parse(path: &str, text: &str, hidden: usize) -> Result<Self> {
        let expected = "the pooling of sentence-transformers";
        let keys = Keys::flat_text(path, text, expected, &tables::POOLING)?;
        for key in ["embedding_dimension", "word_embedding_dimension"] {
            if keys.number(key)?.is_some_and(|size| size != hidden) {
                return Err(keys.fault(key, &format!("the model's {hidden}")));
            }
        }
        let named = |word: &Value| NAMES.iter().find(|(_, name, _)| word == name);
        let modes: Option<Vec<Mode>> = match keys.get("pooling_mode") {
            Some(Value::Array(words)) => words.iter().map(|it| Some(named(it)?.0)).collect(),
            Some(word) => named(word).map(|(mode, ..)| vec![*mode]),
            None => Some(flagged(&keys)?),
        };
        let modes = modes.filter(|modes| !modes.is_empty()).ok_or_else(|| {
            let names = NAMES.map(|(_, name, _)| name).join(", ");
            keys.fault("pooling_mode", &format!("one or several of {names}"))
        })?;
        Ok(Self { modes, include_prompt: keys.flag("include_prompt", true)? })
    }

    /// The embedding from a text's vectors, of `size` numbers each, the first `prompt` of which
    /// belong to a prompt.
    pub(crate) fn pool(&self, tokens: &[f32], size: usize, prompt: usize) -> Vec<f32> {
        let prompt = if self.include_prompt { 0 } else { prompt };
        let parts = self.modes.iter().map(|mode| mode.pool(tokens, size, prompt));
        parts.collect::<Vec<_>>().concat()
    }
}

/// The modes whose flags are set.
fn flagged(keys: &Keys) -> Result<Vec<Mode>> {
    let mut modes = Vec::new();
    for (mode, _, flag) in NAMES {
        modes.extend(keys.flag(flag, false)?.then_some(mode));
    }
    Ok(modes)
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.modes.iter().map(Mode::to_string).collect();
        f.pad(&names.join(", "))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = NAMES.iter().find(|(mode, ..)| mode == self);
        f.pad(known.map_or("", |(_, name, _)| name))
    }
}

impl Mode {
    /// The vector pooled from those after the first `skipped`; from all if there are none.
    pub(crate) fn pool(self, tokens: &[f32], size: usize, skipped: usize) -> Vec<f32> {
        let skipped = if skipped * size < tokens.len() { skipped } else { 0 };
        let mut rows = tokens[skipped * size..].chunks_exact(size);
        let count = rows.len() as f32;
        match self {
            Self::Cls => rows.next().unwrap_or_default().to_vec(),
            Self::LastToken => rows.next_back().unwrap_or_default().to_vec(),
            Self::Max => fold(rows, |max, x| *max = max.max(x)),
            Self::Mean => divided(fold(rows, |sum, x| *sum += x), count),
            Self::MeanSqrtLen => divided(fold(rows, |sum, x| *sum += x), count.sqrt()),
            Self::WeightedMean => weighted(rows, skipped),
        }
    }
}

fn fold<'a>(mut rows: impl Iterator<Item = &'a [f32]>, add: impl Fn(&mut f32, f32)) -> Vec<f32> {
    let mut answer = rows.next().unwrap_or_default().to_vec();
    for row in rows {
        answer.iter_mut().zip(row).for_each(|(sum, x)| add(sum, *x));
    }
    answer
}

fn divided(mut answer: Vec<f32>, divisor: f32) -> Vec<f32> {
    answer.iter_mut().for_each(|x| *x /= divisor);
    answer
}

/// The vectors with weights, which are positions in the whole text.
fn weighted<'a>(rows: impl Iterator<Item = &'a [f32]>, skipped: usize) -> Vec<f32> {
    let (mut answer, mut all) = (Vec::new(), 0.);
    for (row, place) in rows.zip(skipped + 1..) {
        let weight = place as f32;
        answer.resize(row.len(), 0.);
        answer.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
        all += weight;
    }
    divided(answer, all)
}
