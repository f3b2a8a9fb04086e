use candle::{Result, Tensor};
use candle_nn::VarBuilder;

/// A weight without a name.
pub struct Proj(Tensor);

impl Proj {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        Ok(Self(vb.get((8, 4), "weight")?))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.0.t()?)
    }
}

/// `[in, out]`, and a bias that stays.
pub struct Turned(Tensor, Option<Tensor>);

impl Turned {
    pub fn load(vb: VarBuilder) -> Result<Self> {
        let weight = vb.get((4, 8), "weight")?;
        let bias = vb.get(8, "bias")?;
        Ok(Turned(weight, Some(bias)))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.matmul(&self.0)?;
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
