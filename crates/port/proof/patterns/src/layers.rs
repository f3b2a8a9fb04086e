//! Layers that the project defines.
use candle::{DType, Device, Result, Tensor, D};
use candle_nn::VarBuilder;
use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    Gelu,
    Tanh,
}

impl Act {
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Gelu => xs.gelu(),
            Self::Tanh => xs.tanh(),
        }
    }
}

/// A layer with an activation, and a library for GPUs.
#[derive(Debug)]
pub struct Linear {
    // [out, in]
    weight: Tensor,
    // [out]
    bias: Option<Tensor>,
    act: Option<Act>,
    span: tracing::Span,
}

impl Linear {
    pub fn new(weight: Tensor, bias: Option<Tensor>, act: Option<Act>) -> Self {
        let span = tracing::span!(tracing::Level::TRACE, "linear");
        Self {
            weight,
            bias,
            act,
            span,
        }
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _enter = self.span.enter();
        #[allow(unused)]
        if let (Device::Cuda(_), Some(library)) = (xs.device(), library()) {
            library.product(&self.weight, xs, self.bias.as_ref())
        } else {
            let (xs, w) = match xs.dims() {
                &[batch, _, _] => (xs, self.weight.broadcast_left(batch)?.t()?),
                // Other devices want it contiguous.
                _ if xs.device().is_metal() => (&xs.contiguous()?, self.weight.t()?),
                _ => (xs, self.weight.t()?),
            };
            let xs = xs.matmul(&w)?;
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
}

pub struct Library;

impl Library {
    #[allow(unused)]
    fn product(&self, weight: &Tensor, xs: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        return library_of_gpus::product(weight, xs, bias);
        #[cfg(not(feature = "cuda"))]
        candle::bail!("`cuda` is not enabled")
    }
}

pub fn library() -> Option<Library> {
    None
}

#[derive(Debug)]
pub struct Norm {
    weight: Tensor,
    epsilon: f64,
}

impl Norm {
    pub fn load(vb: VarBuilder, size: usize) -> Result<Self> {
        Ok(Self {
            weight: vb.get(size, "weight")?,
            epsilon: 1e-6,
        })
    }

    pub fn forward(&self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let xs = match residual {
            Some(residual) => xs.add(residual)?,
            None => xs.clone(),
        };
        let xs = xs.to_dtype(DType::F32)?;
        let mean = xs.sqr()?.mean_keepdim(D::Minus1)?;
        xs.broadcast_div(&(mean + self.epsilon)?.sqrt()?)?
            .broadcast_mul(&self.weight)
    }
}

/// A weight `[in, out]`, as in GPT-2.
#[derive(Debug, Clone)]
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

/// A layer with two low-rank layers beside it.
pub struct Lora {
    old: candle_nn::Linear,
    lora_a: Tensor,
    lora_b: Tensor,
    scale: f64,
}

impl Lora {
    pub fn load(size: usize, rank: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            old: candle_nn::linear(size, size, vb.pp("old"))?,
            lora_a: vb.get((rank, size), "lora_a")?,
            lora_b: vb.get((size, rank), "lora_b")?,
            scale: 0.5,
        })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = xs.flatten_to(D::Minus2)?;
        let low = xs.matmul(&self.lora_a.t()?)?.matmul(&self.lora_b.t()?)?;
        xs.apply(&self.old)? + (low * self.scale)?
    }
}

/// A weight that is changed after it was loaded: it is left, with its place.
pub struct Merged {
    weight: Tensor,
}

impl Merged {
    pub fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get((size, size), "weight")?,
        })
    }

    pub fn merge(&mut self, delta: &Tensor) -> Result<()> {
        self.weight = (&self.weight + delta)?;
        Ok(())
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.broadcast_matmul(&self.weight.t()?)
    }
}
