//! Reads of a weight besides its products: a quantized layer keeps the float weight for them.
use candle::{DType, Device, Result, Tensor};
use candle_dynquant::{nn, Quantizable};
use candle_nn::VarBuilder;

/// In `forward`.
pub struct Cast {
    w: Tensor,
}

impl Cast {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self { w })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.to_dtype(self.w.dtype())?.matmul(&self.w.t()?)
    }
}

/// In what it calls.
pub struct Shaped {
    w: Tensor,
}

impl Shaped {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self { w })
    }

    fn outputs(&self) -> usize {
        self.w.dims()[0]
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = xs.matmul(&self.w.t()?)?;
        ys.reshape(((), self.outputs()))
    }
}

/// By another one.
pub struct Outer {
    inner: Gated,
}

impl Outer {
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.inner.project(xs)?.to_dtype(self.inner.of())
    }
}

pub struct Gated {
    w: Tensor,
}

impl Gated {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self { w })
    }

    pub fn of(&self) -> DType {
        self.w.dtype()
    }

    pub fn project(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.w.t()?)
    }
}

/// As a product that is not understood.
pub struct Unwrapped {
    w: Tensor,
}

impl Unwrapped {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self { w })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.w.t().unwrap())
    }
}

/// Beside one that is.
pub struct Both {
    w: Tensor,
}

impl Both {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self { w })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.w.t().unwrap())
    }

    pub fn project(&self, xs: &Tensor) -> Result<Tensor> {
        xs.matmul(&self.w.t()?)
    }
}

/// On a GPU, or by who asks for it.
#[derive(Clone, Quantizable)]
pub struct Branches {
    #[quantizable(flatten)]
    inner: nn::Linear,
}

impl Branches {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self {
            inner: nn::Linear::new(w, None),
        })
    }

    pub fn size(&self) -> Result<usize> {
        self.inner.weight().dim(0)
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if xs.device().is_cuda() || xs.device().is_metal() {
            return xs.to_dtype(self.inner.weight().dtype());
        }
        match xs.device() {
            Device::Cuda(_) | Device::Metal(_) => library(self.inner.weight(), xs),
            Device::Cpu => xs.apply(&self.inner),
        }
    }
}

/// On a CPU.
pub struct Other {
    w: Tensor,
}

impl Other {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self { w })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if !xs.device().is_cuda() {
            return library(&self.w, xs);
        }
        xs.matmul(&self.w.t()?)
    }
}
// left: line 17: `w` of `Cast` multiplies as a tensor, and is no layer
// left: line 37: `w` of `Shaped` multiplies as a tensor, and is no layer
// left: line 68: `w` of `Gated` multiplies as a tensor, and is no layer
// left: line 84: `w` of `Unwrapped` multiplies as a tensor, and is no layer
// left: line 100: `w` of `Both` multiplies as a tensor, and is no layer
// left: line 149: `w` of `Other` multiplies as a tensor, and is no layer
