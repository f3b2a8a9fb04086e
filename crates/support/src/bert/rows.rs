//! The BERT on texts of different lengths without padding: all tokens of a call are rows of one
//! matrix, `[tokens, hidden]`. Only attention sees texts, and takes texts of one length at a time.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::config::Config;
use super::model::{Bert, SelfAttention};

/// Successive texts of one length among the rows of a call.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub texts: usize,
    pub tokens: usize,
}

/// All tokens of a call, `[tokens]` in u32 each, and the texts that they are of.
pub struct Rows {
    pub ids: Tensor,
    pub types: Tensor,
    pub positions: Tensor,
    pub runs: Vec<Run>,
}

impl Bert {
    /// Loads the encoder, and pooler and classifier of a classifier. Without one nothing reads the
    /// pooler: embeddings are made of the tokens' vectors.
    ///
    /// The encoder's tensors may be below `bert.`, as they are beside a head.
    pub fn load_for_rows(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let prefixed = vb.contains_tensor("bert.embeddings.word_embeddings.weight");
        let bert = if prefixed { vb.pp("bert") } else { vb.clone() };
        Self::load_with(config, false, &bert, &vb)
    }

    /// The last hidden state, `[tokens, hidden]`.
    pub fn hidden_rows(&self, rows: &Rows) -> Result<Tensor> {
        let embeddings = &self.embeddings;
        let hidden = embeddings.forward(&rows.ids, &rows.types, &rows.positions)?;
        self.encoder.forward(hidden, &|attention, projected| {
            attend_in_runs(attention, projected, &rows.runs)
        })
    }
}

fn attend_in_runs(
    attention: &SelfAttention,
    projected: [Tensor; 3],
    runs: &[Run],
) -> Result<Tensor> {
    let mut contexts = Vec::with_capacity(runs.len());
    let mut start = 0;
    for run in runs {
        let rows = run.texts * run.tokens;
        let of_run = |all: &Tensor| {
            let size = all.dim(1)?;
            all.narrow(0, start, rows)?
                .reshape((run.texts, run.tokens, size))
        };
        let [query, key, value] = &projected;
        let projected = [of_run(query)?, of_run(key)?, of_run(value)?];
        contexts.push(attention.attend(projected, None)?.flatten_to(1)?);
        start += rows;
    }
    match contexts.as_slice() {
        [context] => Ok(context.clone()),
        contexts => Tensor::cat(contexts, 0),
    }
}
