use candle::{Module, Result, Tensor};
use candle_dynquant::nn::{linear_no_bias, Linear};
use candle_dynquant::Quantizable;
use candle_nn::VarBuilder;

#[derive(Clone, Quantizable)]
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
