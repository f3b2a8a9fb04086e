//! Norms that the project computes by hand.
use candle::{DType, Device, Result, Tensor, D};
use candle_nn::{Linear, Module, VarBuilder};

/// A layer norm of a sum, with a kernel for GPUs.
#[derive(Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get(size, "weight")?,
            bias: vb.get(size, "bias")?,
            eps: 1e-12,
        })
    }

    pub fn forward(&self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        match xs.device() {
            Device::Cpu | Device::Metal(_) => {
                let mut xs = xs.clone();
                if let Some(residual) = residual {
                    xs = xs.add(residual)?;
                }
                let dtype = xs.dtype();
                let internal = match dtype {
                    DType::F16 | DType::BF16 => DType::F32,
                    dtype => dtype,
                };
                let size = xs.dim(D::Minus1)?;
                let xs = xs.to_dtype(internal)?;
                let mean = (xs.sum_keepdim(D::Minus1)? / size as f64)?;
                let xs = xs.broadcast_sub(&mean)?;
                let variance = (xs.sqr()?.sum_keepdim(D::Minus1)? / size as f64)?;
                let normed = xs.broadcast_div(&(variance + self.eps as f64)?.sqrt()?)?;
                let xs = normed.to_dtype(dtype)?.broadcast_mul(&self.weight)?;
                xs.broadcast_add(&self.bias)
            }
            Device::Cuda(_) => candle::bail!("`cuda` is not enabled"),
        }
    }
}

/// An RMS norm whose checkpoint stores the weight minus 1.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get(size, "scale")?,
            eps: 1e-6,
        })
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let dtype = xs.dtype();
        let wide = xs.to_dtype(DType::F32)?;
        let squares = wide.sqr()?.mean_keepdim(D::Minus1)?;
        let factor = (squares + self.eps)?.sqrt()?.recip()?;
        wide.broadcast_mul(&factor)?
            .to_dtype(dtype)?
            .broadcast_mul(&(&self.weight + 1.)?)
    }
}

/// A layer between the two norms.
#[derive(Debug)]
pub struct Normed {
    first: LayerNorm,
    linear: Linear,
    last: RmsNorm,
}

impl Normed {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            first: LayerNorm::load(size, vb.pp("first"))?,
            linear: candle_nn::linear(size, size, vb.pp("linear"))?,
            last: RmsNorm::load(size, vb.pp("last"))?,
        })
    }

    pub fn normed(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.first.forward(xs, None)?;
        self.last.forward(&self.first.forward(&ys, Some(xs))?)
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.linear.forward(&self.first.forward(xs, None)?)?;
        self.last.forward(&self.first.forward(&ys, Some(xs))?)
    }
}
