//! Attention among the tokens of each text.

use std::ops::Range;

use candle_core::{Result, Tensor};
use candle_dynquant::ops::{self, Mask};
use candle_dynquant::{Quantizable, nn};
use candle_nn::Module;

use super::disentangled::{Disentangled, PositionVectors};
use super::projections::{Heads, Inputs};
use super::rows::{Rows, Run};
use super::view::{Scores, Viewed, blocks};

#[derive(Clone, Quantizable)]
pub(crate) struct Attention {
    pub inputs: Inputs,
    /// The norms of each head's queries and keys.
    pub norms: Option<[nn::LayerNorm; 2]>,
    pub attention: nn::Attention,
    /// The scores of contents and relative positions.
    pub disentangled: Option<Disentangled>,
    pub output: nn::Linear,
    pub heads: Heads,
}

impl Attention {
    /// Maps `[tokens, hidden]` to `[tokens, hidden]`.
    pub fn forward(&self, xs: &Tensor, rows: &Rows, view: &Viewed) -> Result<Tensor> {
        let projected = self.inputs.forward(xs, self.heads)?;
        let dim = self.heads.dim;
        let heads = |xs: Tensor| xs.reshape((xs.dim(0)?, (), dim));
        let [q, k, v] = projected.map(heads);
        let (mut q, mut k, v) = (q?, k?, v?);
        if let Some([of_q, of_k]) = &self.norms {
            (q, k) = (of_q.forward(&q)?, of_k.forward(&k)?);
        }
        if let Some((cos, sin)) = &view.angles {
            let turn = |xs: &Tensor| ops::rope_thd(&xs.unsqueeze(0)?, cos, sin)?.squeeze(0);
            (q, k) = (turn(&q)?, turn(&k)?);
        }
        let positions = self.disentangled.as_ref();
        let positions = positions.map(|it| it.project(&self.inputs, self.heads, rows.longest));
        let positions = positions.transpose()?;
        let mut contexts = Vec::with_capacity(rows.runs.len());
        let mut start = 0;
        for run in &rows.runs {
            // Each text alone if its terms depend on what it says.
            let together = positions.as_ref().map_or(run.texts, |_| 1);
            for _ in (0..run.texts).step_by(together) {
                let run = Run { texts: together, ..*run };
                let scores = (&view.scores, positions.as_ref());
                contexts.push(self.attend([&q, &k, &v], start, run, scores)?);
                start += run.texts * run.tokens;
            }
        }
        let context = match contexts.as_slice() {
            [context] => context.clone(),
            contexts => Tensor::cat(contexts, 0)?,
        };
        self.output.forward(&context)
    }

    /// The contexts of a run of texts that begins at a row, `[tokens, heads * dim]`.
    fn attend(
        &self,
        projected: [&Tensor; 3],
        start: usize,
        run: Run,
        (scores, positions): (&Scores, Option<&PositionVectors>),
    ) -> Result<Tensor> {
        let rows = run.texts * run.tokens;
        // A view, [texts, heads, tokens, dim]
        let of_run = |all: &Tensor| {
            let (_, heads, dim) = all.dims3()?;
            let all = all.narrow(0, start, rows)?;
            all.reshape((run.texts, run.tokens, heads, dim))?.transpose(1, 2)
        };
        let [q, k, v] = projected.map(of_run);
        let (q, k, v) = (q?, k?, v?);
        let seen = run.tokens - run.hidden;
        let all = |mask| {
            let [k, v] = [&k, &v].map(|all| all.narrow(2, 0, seen));
            self.attention.forward(&q, &k?, &v?, mask)?.transpose(1, 2)
        };
        let by_block = |reach, added: &dyn Fn(Range<usize>, Range<usize>) -> Result<Tensor>| {
            let mut contexts = Vec::new();
            for (queries, mut keys) in blocks(run.tokens, reach) {
                keys.end = keys.end.min(seen);
                let of_keys = |all: &Tensor| all.narrow(2, keys.start, keys.len());
                let (k, v) = (of_keys(&k)?, of_keys(&v)?);
                let q = q.narrow(2, queries.start, queries.len())?;
                let added = added(queries, keys)?;
                let context = self.attention.forward(&q, &k, &v, &added)?;
                contexts.push(context.transpose(1, 2)?);
            }
            Tensor::cat(&contexts, 1)
        };
        let context = match (scores, positions) {
            (_, Some(positions)) => {
                let terms = positions.terms(&q, &k, self.attention.scale())?;
                by_block(run.tokens, &|queries, keys| {
                    terms.block(queries)?.narrow(3, 0, keys.end)?.contiguous()
                })?
            }
            (Scores::Equal(mask), None) => all(*mask)?,
            (Scores::Terms(terms), None) if terms.is_needless(run.tokens) => all(Mask::All)?,
            (Scores::Terms(terms), None) => {
                by_block(terms.reach, &|queries, keys| terms.block(queries, keys))?
            }
        };
        context.reshape((rows, self.heads.queries * self.heads.dim))
    }
}
