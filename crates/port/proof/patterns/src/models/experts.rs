//! Experts in one tensor, query, key and value in another, and layers that a macro loads.
use crate::layers::{Conv1D, Lora, Merged};
use candle::{Result, Tensor, D};
use candle_nn::VarBuilder;

macro_rules! layer {
    ($vb:expr, $name:literal, $from:expr, $to:expr) => {
        candle_nn::linear($from, $to, $vb.pp($name))?
    };
}

struct Experts {
    up: Tensor,
    down: Tensor,
    count: usize,
}

impl Experts {
    fn load(count: usize, size: usize, vb: VarBuilder) -> Result<Self> {
        let inner = 2 * size;
        let up = vb
            .get((count * inner, size), "up")?
            .reshape((count, inner, size))?;
        let down = vb.get((count, inner, size), "down")?;
        Ok(Self { up, down, count })
    }

    fn one(&self, xs: &Tensor, expert: usize) -> Result<Tensor> {
        let up = self.up.narrow(0, expert, 1)?.squeeze(0)?.t()?;
        let down = self.down.narrow(0, expert, 1)?.squeeze(0)?;
        let xs = xs.broadcast_matmul(&up)?.gelu()?;
        xs.broadcast_matmul(&down)
    }

    fn forward(&self, xs: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let mut sum = xs.zeros_like()?;
        for expert in 0..self.count {
            let weight = weights.narrow(D::Minus1, expert, 1)?;
            sum = (sum + self.one(xs, expert)?.broadcast_mul(&weight)?)?;
        }
        Ok(sum)
    }
}

struct Attention {
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    out: candle_nn::Linear,
}

impl Attention {
    fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            qkv_weight: vb.get((3 * size, size), "qkv.weight")?,
            qkv_bias: vb.get(3 * size, "qkv.bias")?,
            out: candle_nn::linear_no_bias(size, size, vb.pp("out"))?,
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut qkv = xs.broadcast_matmul(&self.qkv_weight.t()?)?;
        qkv = qkv.broadcast_add(&self.qkv_bias)?;
        let qkv = qkv.chunk(3, D::Minus1)?;
        let gate = (&qkv[0] * &qkv[1])?.tanh()?;
        (gate * &qkv[2])?.contiguous()?.apply(&self.out)
    }
}

pub struct Mixture {
    first: Conv1D,
    attention: Attention,
    router: candle_nn::Linear,
    experts: Experts,
    lora: Lora,
    merged: Merged,
}

impl Mixture {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            first: Conv1D::load(size, size, vb.pp("first"))?,
            attention: Attention::load(size, vb.pp("attention"))?,
            router: layer!(vb, "router", size, 4),
            experts: Experts::load(4, size, vb.pp("experts"))?,
            lora: Lora::load(size, 16, vb.pp("lora"))?,
            merged: Merged::load(size, vb.pp("merged"))?,
        })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = (self.first.forward(xs)? + xs)?;
        let xs = (self.attention.forward(&xs)? + &xs)?;
        let weights = candle_nn::ops::softmax(&xs.apply(&self.router)?, D::Minus1)?;
        let xs = (self.experts.forward(&xs, &weights)? + &xs)?;
        let xs = self.merged.forward(&xs)?;
        self.lora.forward(&xs)
    }
}
