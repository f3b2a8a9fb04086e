//! The network of assets/pitch, of this library's layers and of candle's.

use anyhow::Result;
use candle_core::{Module, Result as CandleResult, Tensor};
use candle_dynquant::{Quantizable, nn};
use candle_nn::{Conv1dConfig, VarBuilder};

/// Pitches, 50 cents apart.
pub const BINS: usize = 128;

/// Input channels, output channels, taps, stride and padding of each convolution.
const LAYERS: [[usize; 5]; 4] =
    [[1, 32, 64, 4, 30], [32, 64, 16, 4, 6], [64, 96, 8, 4, 2], [96, 96, 4, 2, 1]];

/// Inputs of the last layer: 96 channels of 8 positions.
const FEATURES: usize = 96 * 8;

/// Four convolutions over time and a linear layer, of this library or of candle.
#[derive(Quantizable, Clone)]
pub struct Network<C, L> {
    convs: Vec<C>,
    head: L,
}

impl<C: Module, L: Module> Network<C, L> {
    fn load(
        vb: VarBuilder<'_>,
        conv: impl Fn(usize, usize, usize, Conv1dConfig, VarBuilder<'_>) -> CandleResult<C>,
        head: impl Fn(usize, usize, VarBuilder<'_>) -> CandleResult<L>,
    ) -> Result<Self> {
        let mut convs = Vec::new();
        for (i, [from, to, taps, stride, padding]) in LAYERS.into_iter().enumerate() {
            let config = Conv1dConfig { stride, padding, ..Default::default() };
            convs.push(conv(from, to, taps, config, vb.pp(format!("conv{}", i + 1)))?);
        }
        Ok(Self { convs, head: head(FEATURES, BINS, vb.pp("head"))? })
    }

    /// The logits of all pitches, `[frames, BINS]`.
    pub fn forward(&self, frames: &Tensor) -> Result<Tensor> {
        let mut xs = frames.unsqueeze(1)?;
        for conv in &self.convs {
            xs = conv.forward(&xs)?.relu()?;
        }
        Ok(self.head.forward(&xs.flatten_from(1)?)?)
    }
}

impl Network<nn::Conv1d, nn::Linear> {
    pub fn new(vb: VarBuilder<'_>) -> Result<Self> {
        Self::load(vb, nn::conv1d, nn::linear)
    }
}

impl Network<candle_nn::Conv1d, candle_nn::Linear> {
    pub fn of_candle(vb: VarBuilder<'_>) -> Result<Self> {
        Self::load(vb, candle_nn::conv1d, candle_nn::linear)
    }
}
