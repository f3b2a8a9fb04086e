//! The state of a model between steps.

use candle_core::{Result as CandleResult, Tensor};
use candle_dynquant::nn::KvCache;

/// The keys and values of the tokens read so far, and the inputs of short convolutions. Clones share
/// them, keys and values by pages of 128 tokens, until they continue differently; in 8 bits these are
/// copied.
#[derive(Clone)]
pub struct Cache(pub(crate) Vec<LayerCache>);

impl Cache {
    /// The number of tokens read so far.
    pub fn len(&self) -> usize {
        self.0.first().map_or(0, LayerCache::len)
    }

    /// Whether no token was read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        for layer in &mut self.0 {
            match layer {
                LayerCache::Attention(cache) => cache.truncate(len),
                LayerCache::Convolution(past) => past.truncate(len),
            }
        }
    }

    /// The memory of the cache, in bytes.
    pub fn bytes(&self) -> usize {
        let bytes = |layer: &LayerCache| match layer {
            LayerCache::Attention(cache) => cache.bytes(),
            LayerCache::Convolution(past) => past.bytes(),
        };
        self.0.iter().map(bytes).sum()
    }
}

#[derive(Clone)]
pub enum LayerCache {
    Attention(KvCache),
    Convolution(Past),
}

impl LayerCache {
    fn len(&self) -> usize {
        match self {
            Self::Attention(cache) => cache.len(),
            Self::Convolution(past) => past.len(),
        }
    }
}

/// The inputs of a convolution. All are kept, so that a text can be continued from any token.
#[derive(Clone, Default)]
pub struct Past {
    /// Inputs, `[batch, tokens, features]`, and the number of tokens that are kept of them.
    parts: Vec<(Tensor, usize)>,
}

impl Past {
    fn len(&self) -> usize {
        self.parts.iter().map(|(_, tokens)| tokens).sum()
    }

    fn truncate(&mut self, len: usize) {
        let mut left = len;
        for (_, tokens) in &mut self.parts {
            *tokens = left.min(*tokens);
            left -= *tokens;
        }
        self.parts.retain(|(_, tokens)| *tokens > 0);
    }

    fn bytes(&self) -> usize {
        let bytes = |(part, _): &(Tensor, usize)| part.elem_count() * part.dtype().size_in_bytes();
        self.parts.iter().map(bytes).sum()
    }

    /// Adds `[batch, tokens, features]`, and returns them behind the `count` inputs before them,
    /// which are zeros before the first.
    pub fn extend(&mut self, xs: &Tensor, count: usize) -> CandleResult<Tensor> {
        let (batch, tokens, features) = xs.dims3()?;
        let (mut parts, mut left) = (vec![xs.clone()], count);
        for (part, tokens) in self.parts.iter().rev() {
            let taken = left.min(*tokens);
            parts.push(part.narrow(1, tokens - taken, taken)?);
            left -= taken;
            if left == 0 {
                break;
            }
        }
        let zeros = Tensor::zeros((batch, left, features), xs.dtype(), xs.device());
        parts.extend((left > 0).then_some(zeros).transpose()?);
        parts.reverse();
        self.parts.push((xs.clone(), tokens));
        Tensor::cat(&parts, 1)
    }
}
