//! Products in functions whose errors are not candle's.
use candle::{Result, Tensor};
use candle_dynquant::{nn, Quantizable};
use candle_nn::VarBuilder;

pub struct MyError(String);

type MyResult<T> = std::result::Result<T, MyError>;

impl From<candle::Error> for MyError {
    fn from(error: candle::Error) -> Self {
        Self(error.to_string())
    }
}

#[derive(Clone, Quantizable)]
pub struct Head {
    #[quantizable(flatten)]
    inner: nn::Linear,
}

impl Head {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        let bias = vb.get(4, "bias").ok();
        Ok(Self {
            inner: nn::Linear::new(w, bias),
        })
    }

    pub fn project(&self, h: &Tensor) -> MyResult<Tensor> {
        let ys = h.apply(&self.inner)?;
        Ok(ys)
    }
}

#[derive(Clone, Quantizable)]
pub struct Own {
    #[quantizable(flatten)]
    inner: nn::Linear,
}

impl Own {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self {
            inner: nn::Linear::new(w, None),
        })
    }

    pub fn project(&self, h: &Tensor) -> MyResult<Tensor> {
        Ok(h.apply(&self.inner)?)
    }

    pub fn anyhow(&self, h: &Tensor) -> anyhow::Result<Tensor> {
        Ok(h.apply(&self.inner)?)
    }

    pub fn candle(&self, h: &Tensor) -> Result<Tensor> {
        h.apply(&self.inner)
    }

    pub fn each(&self, hs: &[Tensor]) -> Result<Vec<Tensor>> {
        let each = |h: &Tensor| Ok(h.apply(&self.inner)?);
        let all: MyResult<Vec<Tensor>> = hs.iter().map(each).collect();
        all.map_err(|error| candle::Error::msg(error.0))
    }
}

#[derive(Clone, Quantizable)]
pub struct Branches {
    #[quantizable(flatten)]
    inner: nn::Linear,
    bias: Option<Tensor>,
}

impl Branches {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        let bias = vb.get(4, "bias").ok();
        Ok(Self {
            inner: nn::Linear::new(w, None),
            bias,
        })
    }

    pub fn project(&self, h: &Tensor) -> MyResult<Tensor> {
        let ys = h.apply(&self.inner)?;
        match &self.bias {
            None => Ok(ys),
            Some(bias) => Ok(ys.broadcast_add(bias)?),
        }
    }
}

/// A constant function calls no accessor.
pub struct Constant {
    w: Tensor,
}

impl Constant {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self { w })
    }

    pub const fn weight(&self) -> &Tensor {
        &self.w
    }

    pub fn forward(&self, h: &Tensor) -> Result<Tensor> {
        h.matmul(&self.w.t()?)
    }
}
// left: line 103: `w` of `Constant` multiplies as a tensor, and is no layer
