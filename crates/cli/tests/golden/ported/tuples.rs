use candle::{Result, Tensor};
use candle_dynquant::{nn, Quantizable};
use candle_nn::VarBuilder;

/// A weight without a name.
#[derive(Clone, Quantizable)]
pub struct Proj(nn::Linear);

impl Proj {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        Ok(Self(nn::Linear::new(vb.get((8, 4), "weight")?, None)))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply(&self.0)
    }
}

/// `[in, out]`, and a bias that stays.
#[derive(Clone, Quantizable)]
pub struct Turned(nn::Linear, Option<Tensor>);

impl Turned {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let weight = vb.get((4, 8), "weight")?;
        let bias = vb.get(8, "bias")?;
        Ok(Turned(nn::Linear::new(weight.t()?, None), Some(bias)))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.apply(&self.0)?;
        match &self.1 {
            Some(bias) => x.broadcast_add(bias),
            None => Ok(x),
        }
    }
}

/// Numbers, not weights.
pub struct Angles(Tensor);

impl Angles {
    pub fn new(size: usize, device: &candle::Device) -> Result<Self> {
        Ok(Self(Tensor::arange(0f32, size as f32, device)?.reshape((1, size))?))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.0)
    }
}

/// It is made by a function of that name.
pub struct Passed(Tensor);

impl Passed {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        vb.get((8, 4), "weight").map(Self)
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.0.t()?)
    }
}
// left: line 58: `0` of `Passed` multiplies as a tensor, and is no layer
