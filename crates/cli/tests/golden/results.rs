//! Products in functions whose errors are not candle's.
use candle::{Result, Tensor};
use candle_nn::VarBuilder;

pub struct MyError(String);

type MyResult<T> = std::result::Result<T, MyError>;

impl From<candle::Error> for MyError {
    fn from(error: candle::Error) -> Self {
        Self(error.to_string())
    }
}

pub struct Head {
    w: Tensor,
    bias: Option<Tensor>,
}

impl Head {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        let bias = vb.get(4, "bias").ok();
        Ok(Self { w, bias })
    }

    pub fn project(&self, h: &Tensor) -> MyResult<Tensor> {
        let ys = h.matmul(&self.w.t()?)?;
        let ys = match &self.bias {
            None => Ok(ys),
            Some(bias) => ys.broadcast_add(bias),
        }?;
        Ok(ys)
    }
}

pub struct Own {
    w: Tensor,
}

impl Own {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        Ok(Self { w })
    }

    pub fn project(&self, h: &Tensor) -> MyResult<Tensor> {
        Ok(h.matmul(&self.w.t()?)?)
    }

    pub fn anyhow(&self, h: &Tensor) -> anyhow::Result<Tensor> {
        Ok(h.matmul(&self.w.t()?)?)
    }

    pub fn candle(&self, h: &Tensor) -> Result<Tensor> {
        Ok(h.matmul(&self.w.t()?)?)
    }

    pub fn each(&self, hs: &[Tensor]) -> Result<Vec<Tensor>> {
        let each = |h: &Tensor| Ok(h.matmul(&self.w.t()?)?);
        let all: MyResult<Vec<Tensor>> = hs.iter().map(each).collect();
        all.map_err(|error| candle::Error::msg(error.0))
    }
}

pub struct Branches {
    w: Tensor,
    bias: Option<Tensor>,
}

impl Branches {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let w = vb.get((4, 4), "w")?;
        let bias = vb.get(4, "bias").ok();
        Ok(Self { w, bias })
    }

    pub fn project(&self, h: &Tensor) -> MyResult<Tensor> {
        let ys = h.matmul(&self.w.t()?)?;
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
