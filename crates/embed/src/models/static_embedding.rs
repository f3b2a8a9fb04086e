//! A table of words alone, as in `StaticEmbedding` of sentence-transformers and in model2vec, whose
//! folders have no configuration: it is made of the table.

use anyhow::{Context, Result};
use candle_dynquant::{Checkpoint, nn};
use candle_nn::VarBuilder;

use super::sizes::Sizes;
use super::transformer::{Embeddings, Transformer};
use crate::keys::{Keys, MOST};

/// The key of the table's name, which no other model has.
pub(crate) const TABLE: &str = "static_embedding";

/// The names of the table in sentence-transformers and in model2vec.
const TABLES: [&str; 2] = ["embedding.weight", "embeddings"];

/// The configuration of a checkpoint; `place` is for error messages.
pub(crate) fn config(checkpoint: &Checkpoint, place: &str) -> Result<String> {
    let found = TABLES.into_iter().find_map(|name| {
        let table = checkpoint.tensors().find(|tensor| tensor.name == name)?;
        <[usize; 2]>::try_from(table.shape).ok().map(|shape| (name, shape))
    });
    let (name, [words, size]) = found.with_context(|| {
        let [one, other] = TABLES;
        format!("{place}: expected a matrix {one:?} or {other:?}, got none")
    })?;
    let config = serde_json::json!({TABLE: name, "vocab_size": words, "hidden_size": size});
    Ok(config.to_string())
}

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    let sizes = Sizes::empty(keys.size("hidden_size")?);
    let vocab = keys.size("vocab_size")?;
    Ok(Sizes { vocab, tokens: MOST as usize, takes_pairs: false, ..sizes })
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let name = keys.word(TABLE)?.unwrap_or_default();
    let words = match name.strip_suffix(".weight") {
        Some(module) => sizes.table(sizes.vocab, vb.pp(module))?,
        None => nn::Embedding::new(vb.get((sizes.vocab, sizes.hidden), &name)?, sizes.hidden),
    };
    Ok(Transformer {
        embeddings: Embeddings::words_only(words),
        layers: Vec::new(),
        norm: None,
        views: Vec::new(),
    })
}
