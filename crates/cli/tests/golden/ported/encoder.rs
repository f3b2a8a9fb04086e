//! An encoder with spans: what most models look like.
use candle::{DType, Device, Result, Tensor};
use candle_dynquant::nn::{embedding, layer_norm, linear, Embedding, LayerNorm, Linear};
use candle_dynquant::{ops, Quantizable};
use candle_nn::{Module, VarBuilder};
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
#[derive(Clone, Quantizable)]
struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    #[quantizable(skip)]
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
        let [query, key, value] = Linear::forward_each([&self.query, &self.key, &self.value], xs)?;
        let query = self.split(&query)?;
        let key = self.split(&key)?;
        let value = self.split(&value)?;

        // Scores of all heads.
        let context = {
            let _enter = self.span_softmax.enter();
            ops::scaled_dot_product_attention(
                &query,
                &key,
                &value,
                mask,
                1. / (self.head_size as f64).sqrt(),
            )?
        };
        context.transpose(1, 2)?.contiguous()?.flatten_from(2)
    }
}

/// One layer.
#[derive(Clone, Quantizable)]
#[allow(dead_code)]
struct Output {
    dense: Linear,
    layer_norm: LayerNorm,
}

impl Output {
    fn forward(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let xs = ops::gelu_erf(&self.dense.forward(xs)?)?; // the exact one
        self.layer_norm.forward(&(xs + residual)?)
    }
}

#[derive(Clone, Quantizable)]
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
