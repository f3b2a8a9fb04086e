//! Orders texts by how well they answer a query.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::batches::{Batches, Options, opened};
use crate::folder::Encoder;
use crate::functions::sigmoid;
use crate::keys::Keys;
use crate::model::Head;
use crate::tokenizer::each;
use crate::tokens::Direction;

/// A cross-encoder: a model that scores a text beside a query, and has a head of one class.
///
/// ```
/// use dynquant_embed::Reranker;
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/reranker");
/// let reranker = Reranker::open(folder)?;
/// let ranked = reranker.rank("a query", &["a text", "another one", "a third"])?;
/// assert_eq!(ranked.len(), 3);
/// assert!(ranked[0].1 >= ranked[1].1); // the index of a text and its score, the best first
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reranker {
    batches: Batches,
    is_sigmoid: bool,
}

opened!(Reranker, batches, "");

impl Reranker {
    /// Opens a folder with options.
    ///
    /// # Errors
    /// Also when an option does not fit the model, or the model has no head of one class.
    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        let batches = options.open(dir.as_ref())?;
        let encoder = &batches.encoder;
        ensure!(
            encoder.is_reranker(),
            "{}: expected a reranker, whose head has 1 class, got {}",
            dir.as_ref().display(),
            encoder.classes(),
        );
        let activation = encoder.prompts.activation_fn.as_deref();
        let is_sigmoid = is_sigmoid(activation, &encoder.config.keys)
            .with_context(|| dir.as_ref().display().to_string())?;
        Ok(Self { batches, is_sigmoid })
    }

    /// The score of each text for a query, as in sentence-transformers: between 0 and 1, unless
    /// `config.json` requests the raw numbers.
    ///
    /// # Errors
    /// When the model fails.
    pub fn scores(&self, query: &str, texts: &[impl AsRef<str>]) -> Result<Vec<f32>> {
        let pair = self.encoder().tokenizer.pairs(query, Some(Direction::Right));
        let pair = pair.context("the query")?;
        let tokens = each(texts, |text| pair(text.as_ref()))?;
        let logits = self.batches.answer(&tokens, Head::Classes)?;
        let score = |logits: Vec<f32>| {
            let logit = *logits.first().context("expected a score, got none")?;
            Ok(if self.is_sigmoid { sigmoid(logit) } else { logit })
        };
        logits.into_iter().map(score).collect()
    }

    /// The indices of texts with their [scores](Self::scores), the best first.
    ///
    /// # Errors
    /// The errors of [`scores`](Self::scores).
    pub fn rank(&self, query: &str, texts: &[impl AsRef<str>]) -> Result<Vec<(usize, f32)>> {
        let scores = self.scores(query, texts)?;
        let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(ranked)
    }
}

/// Whether scores go through the sigmoid, the default. `activation` is the folder's setting; before
/// release 6 `config.json` had it, and before release 4 under another key.
fn is_sigmoid(activation: Option<&str>, keys: &Keys) -> Result<bool> {
    let release_4 = keys.get("sentence_transformers").and_then(|it| it.get("activation_fn"));
    let before = release_4.or(keys.get("sbert_ce_default_activation_function"));
    let name = activation.or(before.and_then(Value::as_str));
    match name.map(|name| (name.starts_with("torch."), name.rsplit('.').next())) {
        None | Some((true, Some("Sigmoid"))) => Ok(true),
        Some((true, Some("Identity"))) => Ok(false),
        Some(_) => bail!(
            "activation_fn: expected torch's Sigmoid or Identity, got {:?}",
            name.unwrap_or_default()
        ),
    }
}
