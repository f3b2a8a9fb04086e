//! Structs that hold a weight and multiply by it: what becomes a `Linear`, and what is listed.
use candle::{DType, Device, IndexOp, Module, Result, Tensor, D};
use candle_nn::{Activation, VarBuilder};

// A layer with an activation and a span of its own.
#[derive(Debug, Clone)]
pub struct Linear {
    // [out, in]
    weight: Tensor,
    // [out]
    bias: Option<Tensor>,
    act: Option<Activation>,
    span: tracing::Span,
}

impl Linear {
    pub fn new(weight: Tensor, bias: Option<Tensor>, act: Option<Activation>) -> Self {
        let span = tracing::span!(tracing::Level::TRACE, "linear");
        Self {
            weight,
            bias,
            act,
            span,
        }
    }

    pub fn out_features(&self) -> Result<usize> {
        self.weight.dim(0)
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _enter = self.span.enter();
        if let (Device::Cuda(_), Some(library)) = (xs.device(), library()) {
            return library.product(&self.weight, xs, self.bias.as_ref());
        }
        // One product for each element of a batch.
        let (xs, w) = match xs.dims() {
            &[batch, _, _] => (xs, self.weight.broadcast_left(batch)?.t()?),
            _ if xs.device().is_metal() => (&xs.contiguous()?, self.weight.t()?),
            _ => (xs, self.weight.t()?),
        };
        let xs = xs.matmul(&w)?;
        // The bias is optional.
        let xs = match &self.bias {
            None => Ok(xs),
            Some(bias) => xs.broadcast_add(bias),
        }?;
        match &self.act {
            Some(act) => act.forward(&xs),
            None => Ok(xs),
        }
    }
}

/// As candle_nn writes it: reshaped, so that there is one product.
pub struct Flattened {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Flattened {
    pub fn load(d1: usize, d2: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self { weight: vb.get((d2, d1), "weight")?, bias: Some(vb.get(d2, "bias")?) })
    }
}

impl Module for Flattened {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = match *x.dims() {
            [b1, b2, m, k] => {
                if x.is_contiguous() {
                    let w = self.weight.t()?;
                    x.reshape((b1 * b2 * m, k))?.matmul(&w)?.reshape((b1, b2, m, ()))?
                } else {
                    let w = self.weight.broadcast_left((b1, b2))?.t()?;
                    x.matmul(&w)?
                }
            }
            [b, _, _] => x.matmul(&self.weight.broadcast_left(b)?.t()?)?,
            _ => x.matmul(&self.weight.t()?)?,
        };
        match &self.bias {
            None => Ok(x),
            Some(bias) => x.broadcast_add(bias),
        }
    }
}

/// A weight that is stored as `[in, out]`.
#[derive(Debug)]
pub struct Conv1D {
    weight: Tensor,
    bias: Tensor,
}

impl Conv1D {
    pub fn load(nx: usize, nf: usize, vb: VarBuilder) -> Result<Self> {
        let weight = vb.get((nx, nf), "weight")?;
        let bias = vb.get(nf, "bias")?;
        Ok(Self { weight, bias })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.broadcast_matmul(&self.weight)?.broadcast_add(&self.bias)
    }
}

/// A layer beside two of low rank.
pub struct Lora {
    old: candle_nn::Linear,
    lora_a: Tensor,
    lora_b: Tensor,
    scale: f64,
}

impl Lora {
    pub fn new(old: candle_nn::Linear, lora_a: Tensor, lora_b: Tensor, scale: f64) -> Self {
        Self { old, lora_a, lora_b, scale }
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let low = xs.matmul(&self.lora_a.t()?)?.matmul(&self.lora_b.t()?)?;
        self.old.forward(xs)? + (low * self.scale)?
    }
}

/// Query, key and value in one tensor.
pub struct Attention {
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    out: candle_nn::Linear,
    inv_freq: Tensor,
    size: usize,
}

impl Attention {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        let inv_freq = Tensor::arange(0f32, size as f32, vb.device())?.reshape((1, size))?;
        Ok(Self {
            qkv_weight: vb.get((3 * size, size), "qkv.weight")?,
            qkv_bias: vb.get(3 * size, "qkv.bias")?,
            out: candle_nn::linear(size, size, vb.pp("out"))?,
            inv_freq,
            size,
        })
    }

    pub fn forward(&self, xs: &Tensor, positions: &Tensor) -> Result<Tensor> {
        let mut qkv = xs.matmul(&self.qkv_weight.t()?)?;
        qkv = qkv.broadcast_add(&self.qkv_bias)?;
        let angles = positions.matmul(&self.inv_freq)?;
        let value = qkv.narrow(D::Minus1, 2 * self.size, self.size)?;
        self.out.forward(&value.broadcast_add(&angles)?)
    }
}

/// Experts in one tensor each.
pub struct Experts {
    up: Tensor,
    down: Tensor,
}

impl Experts {
    pub fn load(experts: usize, size: usize, inner: usize, vb: VarBuilder) -> Result<Self> {
        let up = vb.get((experts, inner, size), "up")?;
        let down = vb.get((experts, size, inner), "down")?;
        Ok(Self { up, down })
    }

    pub fn forward(&self, xs: &Tensor, expert: usize) -> Result<Tensor> {
        let up = self.up.narrow(0, expert, 1)?.squeeze(0)?.t()?;
        let ys = xs.broadcast_matmul(&up)?.silu()?;
        ys.broadcast_matmul(&self.down.i(expert)?.t()?)
    }
}

/// A weight that is changed, and one that others see.
pub struct Merged {
    weight: Tensor,
}

impl Merged {
    pub fn merge(&mut self, delta: &Tensor) -> Result<()> {
        self.weight = (&self.weight + delta)?;
        Ok(())
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.weight.t()?)
    }
}

/// A norm of its own: no product.
pub struct Norm {
    weight: Tensor,
}

impl Norm {
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.to_dtype(DType::F32)?.broadcast_mul(&self.weight)
    }
}
