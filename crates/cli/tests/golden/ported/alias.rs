use candle::{Result, Tensor};
use candle_dynquant::{nn, ops, Quantizable};
use nn::Module;

#[derive(Debug, Clone)]
enum Act {
    Gelu,
    Silu,
}

impl Act {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Act::Gelu => ops::gelu_tanh(xs),
            Act::Silu => nn::ops::silu(xs),
        }
    }
}

#[derive(Debug, Clone, Quantizable)]
pub struct Mlp {
    fc1: nn::Linear,
    fc2: nn::Linear,
    conv: nn::Conv2d,
    #[quantizable(skip)]
    act: Act,
}

impl Mlp {
    pub fn new(vs: nn::VarBuilder) -> Result<Self> {
        let fc1 = nn::linear(4, 8, vs.pp("fc1"))?;
        let fc2 = nn::linear(8, 4, vs.pp("fc2"))?;
        let conv = nn::conv2d(3, 4, 2, Default::default(), vs.pp("conv"))?;
        Ok(Self { fc1, fc2, conv, act: Act::Gelu })
    }
}

impl nn::Module for Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.conv.forward(xs)?;
        let xs = self.act.forward(&self.fc1.forward(&xs)?)?;
        self.fc2.forward(&xs)
    }
}
