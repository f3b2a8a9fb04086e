//! The products before attention.

use candle_core::{Result, Tensor};
use candle_dynquant::{Quantizable, nn};
use candle_nn::Module;

/// The sizes of heads; keys and values may have fewer heads than queries.
#[derive(Clone, Copy, Debug, Quantizable)]
pub(crate) struct Heads {
    pub queries: usize,
    pub keys: usize,
    pub dim: usize,
}

#[derive(Clone, Quantizable)]
pub(crate) enum Inputs {
    Each(Box<[nn::Linear; 3]>),
    /// A single weight with the rows of queries, keys and values.
    Fused(nn::Linear),
}

impl Heads {
    /// The same number of heads for queries, keys and values, of `size` numbers in all.
    pub fn equal(heads: usize, size: usize) -> Self {
        Self { queries: heads, keys: heads, dim: size / heads }
    }

    pub fn scale(self) -> f32 {
        1. / (self.dim as f32).sqrt()
    }
}

impl Inputs {
    /// Queries, keys and values, `[tokens, heads * dim]` each.
    pub fn forward(&self, xs: &Tensor, heads: Heads) -> Result<[Tensor; 3]> {
        let fused = match self {
            Self::Each(each) => return nn::Linear::forward_each(each.each_ref(), xs),
            Self::Fused(fused) => fused.forward(xs)?,
        };
        let (queries, keys) = (heads.queries * heads.dim, heads.keys * heads.dim);
        let part = |start, size| fused.narrow(1, start, size)?.contiguous();
        let [q, k, v] = [(0, queries), (queries, keys), (queries + keys, keys)]
            .map(|(start, size)| part(start, size));
        Ok([q?, k?, v?])
    }
}
