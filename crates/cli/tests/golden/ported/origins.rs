//! Weights that come from loaders of a project's own, and tensors that are computed.
use std::collections::HashMap;

use candle::{Device, Result, Tensor};
use candle_dynquant::{nn, Quantizable};
use candle_nn::VarBuilder;

fn load_weight(vb: &VarBuilder, name: &str) -> Result<Tensor> {
    vb.get((4, 4), name)
}

fn frequencies(size: usize, device: &Device) -> Result<Tensor> {
    let all: Vec<_> = (0..size).map(|i| 1f32 / (i as f32).exp()).collect();
    Tensor::from_vec(all, (1, size), device)
}

/// By a method of a loader.
pub struct Own {
    w: Tensor,
}

impl Own {
    pub fn load(loader: &Loader) -> Result<Self> {
        Ok(Self { w: loader.tensor("w")? })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.w.t()?)
    }
}

/// By a function of another file.
pub struct Far {
    w: Tensor,
}

impl Far {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = crate::helpers::fetch(&vb)?;
        Ok(Self { w })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.w.t()?)
    }
}

/// By one of this file.
pub struct Near {
    w: Tensor,
}

impl Near {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = load_weight(&vb, "w")?;
        Ok(Self { w })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.w.t()?)
    }
}

/// From a map.
pub struct Mapped {
    w: Tensor,
}

impl Mapped {
    pub fn load(path: &str) -> Result<Self> {
        let tensors = candle::safetensors::load(path, &Device::Cpu)?;
        Ok(Self { w: tensors["w"].clone() })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.w.t()?)
    }
}

/// Computed.
pub struct Rotary {
    inv_freq: Tensor,
    other: Tensor,
}

impl Rotary {
    pub fn new(size: usize, device: &Device) -> Result<Self> {
        let inv_freq = frequencies(size, device)?;
        let other = Tensor::ones((1, size), candle::DType::F32, device)?;
        Ok(Self { inv_freq, other })
    }

    pub fn forward(&self, positions: &Tensor) -> Result<Tensor> {
        positions.matmul(&self.inv_freq)? + positions.matmul(&self.other)?
    }
}

/// Without a name.
#[derive(Clone, Quantizable)]
pub struct Tuple(nn::Linear, usize);

impl Tuple {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        Ok(Self(nn::Linear::new(vb.get((4, 4), "w")?, None), 4))
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.apply(&self.0)
    }
}

/// That may be there.
pub struct Optional {
    w: Option<Tensor>,
}

impl Optional {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = Some(vb.get((4, 4), "w")?);
        Ok(Self { w })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.w.as_ref().unwrap().t()?)
    }
}

/// Matched.
pub struct Matched {
    a: Option<Tensor>,
    b: Option<Tensor>,
}

impl Matched {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let a = Some(vb.get((4, 4), "a")?);
        let b = vb.get((4, 4), "b").ok();
        Ok(Self { a, b })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if let Some(w) = &self.b {
            return xs.matmul(w);
        }
        match &self.a {
            Some(w) => xs.matmul(&w.t()?),
            None => Ok(xs.clone()),
        }
    }
}
// left: line 27: `w` of `Own` multiplies as a tensor, and is no layer
// left: line 38: `crate::helpers` is not in this crate
// left: line 43: `w` of `Far` multiplies as a tensor, and is no layer
// left: line 59: `w` of `Near` multiplies as a tensor, and is no layer
// left: line 75: `w` of `Mapped` multiplies as a tensor, and is no layer
// left: line 122: `w` of `Optional` multiplies as a tensor, and is no layer
// left: line 141: `b` of `Matched` multiplies as a tensor, and is no layer
// left: line 144: `a` of `Matched` multiplies as a tensor, and is no layer
