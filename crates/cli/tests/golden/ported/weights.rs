//! Structs that hold a weight and multiply by it: what becomes a `Linear`, and what is listed.
use candle::{DType, Device, Module, Result, Tensor, D};
use candle_dynquant::nn::Activation;
use candle_dynquant::{nn, ops, Quantizable};
use candle_nn::VarBuilder;

// A layer with an activation and a span of its own.
#[derive(Debug, Clone, Quantizable)]
pub struct Linear {
    // [out, in]
    #[quantizable(flatten)]
    inner: nn::Linear,
    act: Option<Activation>,
    span: tracing::Span,
}

impl Linear {
    pub fn new(weight: Tensor, bias: Option<Tensor>, act: Option<Activation>) -> Self {
        let span = tracing::span!(tracing::Level::TRACE, "linear");
        Self {
            inner: nn::Linear::new(weight, bias),
            act,
            span,
        }
    }

    pub fn out_features(&self) -> Result<usize> {
        self.inner.weight().dim(0)
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _enter = self.span.enter();
        if let (Device::Cuda(_), Some(library)) = (xs.device(), library()) {
            return library.product(self.inner.weight(), xs, self.inner.bias());
        }
        let xs = self.inner.forward(xs)?;
        match &self.act {
            Some(act) => act.forward(&xs),
            None => Ok(xs),
        }
    }
}

/// As candle_nn writes it: reshaped, so that there is one product.
#[derive(Clone, Quantizable)]
pub struct Flattened {
    #[quantizable(flatten)]
    inner: nn::Linear,
}

impl Flattened {
    pub fn load(d1: usize, d2: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self { inner: nn::Linear::new(vb.get((d2, d1), "weight")?, Some(vb.get(d2, "bias")?)) })
    }
}

impl Module for Flattened {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.inner.forward(x)
    }
}

/// A weight that is stored as `[in, out]`.
#[derive(Debug, Clone, Quantizable)]
pub struct Conv1D {
    #[quantizable(flatten)]
    inner: nn::Linear,
}

impl Conv1D {
    pub fn load(nx: usize, nf: usize, vb: VarBuilder) -> Result<Self> {
        let weight = vb.get((nx, nf), "weight")?;
        let bias = vb.get(nf, "bias")?;
        Ok(Self { inner: nn::Linear::new(weight.t()?, Some(bias)) })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.inner.forward(xs)
    }
}

/// A layer beside two of low rank.
#[derive(Clone, Quantizable)]
pub struct Lora {
    old: nn::Linear,
    lora_a: nn::Linear,
    lora_b: nn::Linear,
    scale: f64,
}

impl Lora {
    pub fn new(old: nn::Linear, lora_a: Tensor, lora_b: Tensor, scale: f64) -> Self {
        Self { old, lora_a: nn::Linear::new(lora_a, None), lora_b: nn::Linear::new(lora_b, None), scale }
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let low = self.lora_a.forward(xs)?.apply(&self.lora_b)?;
        self.old.forward(xs)? + (low * self.scale)?
    }
}

/// Query, key and value in one tensor.
#[derive(Clone, Quantizable)]
pub struct Attention {
    qkv: nn::Linear,
    out: nn::Linear,
    inv_freq: Tensor,
    size: usize,
}

impl Attention {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        let inv_freq = Tensor::arange(0f32, size as f32, vb.device())?.reshape((1, size))?;
        Ok(Self {
            qkv: nn::Linear::new(vb.get((3 * size, size), "qkv.weight")?, Some(vb.get(3 * size, "qkv.bias")?)),
            out: nn::linear(size, size, vb.pp("out"))?,
            inv_freq,
            size,
        })
    }

    pub fn forward(&self, xs: &Tensor, positions: &Tensor) -> Result<Tensor> {
        let qkv = self.qkv.forward(xs)?;
        let angles = positions.matmul(&self.inv_freq)?;
        let value = qkv.narrow(D::Minus1, 2 * self.size, self.size)?;
        self.out.forward(&value.broadcast_add(&angles)?)
    }
}

/// Experts in one tensor each.
#[derive(Clone, Quantizable)]
pub struct Experts {
    up: Vec<nn::Linear>,
    down: Vec<nn::Linear>,
}

impl Experts {
    pub fn load(experts: usize, size: usize, inner: usize, vb: VarBuilder) -> Result<Self> {
        let up = vb.get((experts, inner, size), "up")?;
        let down = vb.get((experts, size, inner), "down")?;
        Ok(Self { up: (0..up.dim(0)?).map(|index| Ok(nn::Linear::new(up.get(index)?, None))).collect::<Result<_>>()?, down: (0..down.dim(0)?).map(|index| Ok(nn::Linear::new(down.get(index)?, None))).collect::<Result<_>>()? })
    }

    pub fn forward(&self, xs: &Tensor, expert: usize) -> Result<Tensor> {
        let ys = ops::silu(&self.up[expert].forward(xs)?)?;
        self.down[expert].forward(&ys)
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
// left: line 189: `weight` of `Merged` multiplies as a tensor, and is no layer
