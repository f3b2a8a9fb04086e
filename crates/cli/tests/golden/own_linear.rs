use candle::{Module, Result, Tensor};
use candle_nn::VarBuilder;

#[derive(Debug, Clone)]
pub struct Linear {
    weight: Tensor,
    span: tracing::Span,
}

pub fn linear_no_bias(d1: usize, d2: usize, vb: VarBuilder) -> Result<Linear> {
    let weight = vb.get((d2, d1), "weight")?;
    let span = tracing::span!(tracing::Level::TRACE, "linear");
    Ok(Linear { weight, span })
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _enter = self.span.enter();
        let w = match *xs.dims() {
            [bsize, _, _] => self.weight.broadcast_left(bsize)?.t()?,
            _ => self.weight.t()?,
        };
        xs.matmul(&w)
    }
}

pub struct Dense {
    wi: Linear,
}

impl Dense {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let wi = linear_no_bias(4, 4, vb.pp("wi"))?;
        Ok(Self { wi })
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.wi.forward(xs)?.relu()
    }
}
