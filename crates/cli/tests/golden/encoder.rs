//! An encoder with spans: what most models look like.
use super::with_tracing::{layer_norm, linear, LayerNorm, Linear};
use candle::{DType, Device, Result, Tensor, D};
use candle_nn::{embedding, Embedding, Module, VarBuilder};
use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    pub hidden_size: usize,
    pub num_heads: usize,
    pub num_layers: usize,
}

#[derive(Clone)]
struct Dropout;

impl Module for Dropout {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

// How a token attends to others.
struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    dropout: Dropout,
    num_heads: usize,
    head_size: usize,
    span_softmax: tracing::Span,
}

impl SelfAttention {
    fn split(&self, xs: &Tensor) -> Result<Tensor> {
        let mut shape = xs.dims().to_vec();
        shape.pop();
        shape.push(self.num_heads);
        shape.push(self.head_size);
        xs.reshape(shape.as_slice())?.transpose(1, 2)
    }

    fn forward(&self, xs: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let query = self.split(&self.query.forward(xs)?)?;
        let key = self.split(&self.key.forward(xs)?)?;
        let value = self.split(&self.value.forward(xs)?)?;

        // Scores of all heads.
        let scores = query.matmul(&key.t()?)?;
        let scores = (scores / (self.head_size as f64).sqrt())?;
        let scores = scores.broadcast_add(mask)?;
        let probs = {
            let _enter = self.span_softmax.enter();
            candle_nn::ops::softmax(&scores, D::Minus1)?
        };
        let probs = self.dropout.forward(&probs)?;
        let context = probs.matmul(&value)?;
        context.transpose(1, 2)?.contiguous()?.flatten_from(2)
    }
}

/// One layer.
#[derive(Clone)]
#[allow(dead_code)]
struct Output {
    dense: Linear,
    layer_norm: LayerNorm,
}

impl Output {
    fn forward(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let xs = self.dense.forward(xs)?.gelu_erf()?; // the exact one
        self.layer_norm.forward(&(xs + residual)?)
    }
}

pub struct Model {
    words: Embedding,
    layers: Vec<(SelfAttention, Output)>,
    pub device: Device,
}

impl Model {
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let words = embedding(100, config.hidden_size, vb.pp("words"))?;
        let _dense = linear(config.hidden_size, config.hidden_size, vb.pp("dense"))?;
        let _norm = layer_norm(config.hidden_size, 1e-12, vb.pp("norm"))?;
        let layers = Vec::new();
        Ok(Self {
            words,
            layers,
            device: vb.device().clone(),
        })
    }

    pub fn dtype(&self) -> DType {
        DType::F32
    }
}
