//! The network of assets/pitch, of this library's layers and of candle's.

use anyhow::Result;
use candle_core::{Module, Tensor};
use candle_dynquant::{Quantizable, nn};
use candle_nn::{Conv1dConfig, VarBuilder};

/// Pitches, 50 cents apart.
pub const BINS: usize = 128;

/// Input channels, output channels, taps, stride and padding of each convolution.
const LAYERS: [[usize; 5]; 4] =
    [[1, 32, 64, 4, 30], [32, 64, 16, 4, 6], [64, 96, 8, 4, 2], [96, 96, 4, 2, 1]];

/// Inputs of the last layer: 96 channels of 8 positions.
const FEATURES: usize = 96 * 8;

fn config(stride: usize, padding: usize) -> Conv1dConfig {
    Conv1dConfig { stride, padding, ..Default::default() }
}

/// The logits of all pitches, `[frames, BINS]`.
fn logits(convs: &[impl Module], head: &impl Module, frames: &Tensor) -> Result<Tensor> {
    let mut xs = frames.unsqueeze(1)?;
    for conv in convs {
        xs = conv.forward(&xs)?.relu()?;
    }
    Ok(head.forward(&xs.flatten_from(1)?)?)
}

/// Four convolutions over time and a linear layer.
#[derive(Quantizable, Clone)]
pub struct Network {
    convs: Vec<nn::Conv1d>,
    head: nn::Linear,
}

impl Network {
    pub fn new(vb: VarBuilder<'_>) -> Result<Self> {
        let mut convs = Vec::new();
        for (i, [from, to, taps, stride, padding]) in LAYERS.into_iter().enumerate() {
            let vb = vb.pp(format!("conv{}", i + 1));
            convs.push(nn::conv1d(from, to, taps, config(stride, padding), vb)?);
        }
        Ok(Self { convs, head: nn::linear(FEATURES, BINS, vb.pp("head"))? })
    }

    pub fn forward(&self, frames: &Tensor) -> Result<Tensor> {
        logits(&self.convs, &self.head, frames)
    }
}

/// The same of candle's layers, to be timed.
pub struct CandleNetwork {
    convs: Vec<candle_nn::Conv1d>,
    head: candle_nn::Linear,
}

impl CandleNetwork {
    pub fn new(vb: VarBuilder<'_>) -> Result<Self> {
        let mut convs = Vec::new();
        for (i, [from, to, taps, stride, padding]) in LAYERS.into_iter().enumerate() {
            let vb = vb.pp(format!("conv{}", i + 1));
            convs.push(candle_nn::conv1d(from, to, taps, config(stride, padding), vb)?);
        }
        Ok(Self { convs, head: candle_nn::linear(FEATURES, BINS, vb.pp("head"))? })
    }

    pub fn forward(&self, frames: &Tensor) -> Result<Tensor> {
        logits(&self.convs, &self.head, frames)
    }
}
