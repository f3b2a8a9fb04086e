//! A model for GPUs that uses a missing crate: left unchanged.
use crate::layers::Linear;
use candle::{Result, Tensor};
use candle_nn::Embedding;

pub struct FlashEncoder {
    words: Embedding,
    layers: Vec<Box<dyn candle_nn::Module>>,
    weight: Tensor,
    out: Linear,
}

impl FlashEncoder {
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        library_of_gpus::attention(xs)?.matmul(&self.weight.t()?)
    }
}
