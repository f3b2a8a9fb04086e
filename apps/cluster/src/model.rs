//! The model of this process, as a function from a column of texts to a column of answers.

use std::fmt;

use anyhow::{Context, Result};
use dynquant_embed::{Direction, Encoder, Head, Input, ModelOptions, Task, Tokens};

use crate::identity::Identity;

/// The number of tokens computed together: enough for full speed, and few enough for the caches.
const TOKENS_TOGETHER: usize = 2048;
/// The number of characters of a text in an error message.
const SHOWN: usize = 40;

/// A model and its identity.
pub struct LoadedModel {
    pub encoder: Encoder,
    pub identity: Identity,
}

impl fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.identity)
    }
}

impl LoadedModel {
    /// Opens the model that the command line names.
    pub fn open(options: &ModelOptions) -> Result<Self> {
        let encoder = options.open()?;
        let identity = Identity::of(&encoder, options)?;
        Ok(Self { encoder, identity })
    }

    /// The name of the class with the largest logit.
    pub fn label(&self, logits: &[f32]) -> Option<&str> {
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))?;
        self.encoder.config.labels.get(best).map(String::as_str)
    }

    /// The answers to `texts`, in order, `None` where there is no text. The bits of an answer do
    /// not depend on the other texts. The computation runs on the caller's thread and on free
    /// threads of the library.
    pub fn answer(
        &self,
        texts: &[Option<&str>],
        head: Head,
        truncate: bool,
    ) -> Result<Vec<Option<Vec<f32>>>> {
        let cut = truncate.then_some(Direction::Right);
        let mut tokens = Vec::with_capacity(texts.len());
        for (row, text) in texts.iter().enumerate() {
            let Some(text) = text else { continue };
            let encoded = self.encoder.tokenizer.encode(Input::Text(text), cut);
            tokens.push((row, encoded.with_context(|| shown(text))?));
        }
        // Attention takes texts of one length at a time.
        tokens.sort_by_key(|(_, tokens)| tokens.len());
        let mut answers = vec![None; texts.len()];
        let mut rest = tokens.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(together(rest));
            let tasks: Vec<Task<'_>> =
                (batch.iter()).map(|(_, tokens)| Task { tokens, head }).collect();
            for ((row, _), answer) in batch.iter().zip(self.encoder.model.answer(&tasks)?) {
                answers[*row] = Some(answer);
            }
            rest = later;
        }
        Ok(answers)
    }
}

/// The number of leading texts to compute together; at least one.
fn together(texts: &[(usize, Tokens)]) -> usize {
    let mut sum = 0;
    let fit = texts.iter().take_while(|(_, tokens)| {
        sum += tokens.len();
        sum <= TOKENS_TOGETHER
    });
    fit.count().max(1)
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("text {:?}..", &text[..end]),
        None => format!("text {text:?}"),
    }
}
