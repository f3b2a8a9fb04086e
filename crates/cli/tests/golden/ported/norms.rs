use candle::{DType, Result, Tensor, D};
use candle_dynquant::nn::Linear;
use candle_dynquant::{ops, Quantizable};
use candle_nn::{Module, VarBuilder};

#[derive(Clone)]
pub struct Norm {
    weight: Tensor,
    bias: Tensor,
    planes: Tensor,
    given: Tensor,
    size: usize,
    eps: f64,
}

impl Norm {
    pub fn load(size: usize, given: Tensor, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get(size, "weight").or_else(|_| vb.get(size, "gamma"))?,
            bias: vb.get(size, "bias")?,
            planes: vb.get(size, "planes")?.unsqueeze(0)?,
            given,
            size,
            eps: 1e-12,
        })
    }

    // A residual that may be there, and a dtype to compute in.
    pub fn add(&self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        match residual {
            Some(residual) => ops::add_layer_norm(xs, residual, &self.weight, &self.bias, self.eps),
            None => ops::layer_norm(xs, &self.weight, &self.bias, self.eps),
        }
    }

    // The same in a match.
    pub fn matched(&self, xs: &Tensor, residual: &Option<Tensor>) -> Result<Tensor> {
        match residual {
            Some(residual) => ops::add_layer_norm(xs, residual, &self.weight, None, self.eps),
            None => ops::layer_norm(xs, &self.weight, None, self.eps),
        }
    }

    // A condition in the place of the match.
    pub fn narrow(&self, xs: &Tensor) -> Result<Tensor> {
        ops::layer_norm(xs, &self.weight, None, 1e-5)
    }

    // No mean, a weight about zero, and a dtype that is read again.
    pub fn rms(&self, xs: &Tensor) -> Result<(Tensor, DType)> {
        let dtype = xs.dtype();
        Ok((
            // The checkpoint has what is added to one.
            ops::rms_norm(xs, &(&self.weight + 1.0)?, self.eps)?,
            dtype,
        ))
    }

    // One expression, of a variable with a name of its own later.
    pub fn once(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = ops::rms_norm(xs, &self.weight, self.eps)?;
        let xs = (xs + &ys)?;
        xs.broadcast_add(&self.bias)
    }

    // Another dimension, another size, and no weight.
    pub fn others(&self, xs: &Tensor) -> Result<Tensor> {
        let squares = xs.sqr()?.mean_keepdim(1)?;
        let xs = xs.broadcast_div(&(squares + self.eps)?.sqrt()?)?;
        let xs = xs.broadcast_mul(&self.weight)?;
        let squares = (xs.sqr()?.sum_keepdim(D::Minus1)? / self.size as f64)?;
        let xs = xs.broadcast_div(&(squares + self.eps)?.sqrt()?)?;
        let xs = xs.broadcast_mul(&self.weight)?;
        let squares = xs.sqr()?.mean_keepdim(D::Minus1)?;
        xs.broadcast_div(&(squares + self.eps)?.sqrt()?)
    }

    // Weights of other ranks, or of any.
    pub fn weights(&self, xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let squares = xs.sqr()?.mean_keepdim(D::Minus1)?;
        let xs = xs.broadcast_div(&(squares + self.eps)?.sqrt()?)?;
        let ys = (xs.broadcast_mul(weight)? + xs.broadcast_mul(&self.planes)?)?;
        let squares = ys.sqr()?.mean_keepdim(D::Minus1)?;
        let ys = ys.broadcast_div(&(squares + self.eps)?.sqrt()?)?;
        ys.broadcast_mul(&self.given)
    }

    // The result stays in f32.
    pub fn wide(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = xs.to_dtype(DType::F32)?;
        let squares = xs.sqr()?.mean_keepdim(D::Minus1)?;
        let xs = xs.broadcast_div(&(squares + self.eps)?.sqrt()?)?;
        xs.broadcast_mul(&self.weight)
    }

    // What is computed on the way is read.
    pub fn read(&self, xs: &Tensor) -> Result<(Tensor, Tensor)> {
        let squares = xs.sqr()?.mean_keepdim(D::Minus1)?;
        let ys = xs.broadcast_div(&(&squares + self.eps)?.sqrt()?)?;
        Ok((ys.broadcast_mul(&self.weight)?, squares))
    }

    // Not the rows that the mean is of.
    pub fn changed(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let mut xs = xs.clone();
        let squares = xs.sqr()?.mean_keepdim(D::Minus1)?;
        xs = (xs + residual)?;
        let xs = xs.broadcast_div(&(squares + self.eps)?.sqrt()?)?;
        xs.broadcast_mul(&self.weight)
    }

    // The name of the residual hides the rows.
    pub fn hidden(&self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let mut ys = xs.clone();
        if let Some(xs) = residual {
            ys = ys.add(xs)?;
        }
        ops::layer_norm(&ys, &self.weight, None, self.eps)
    }

    pub fn kept(&self, xs: &Tensor) -> Result<Tensor> {
        // dynquant: keep
        let squares = xs.sqr()?.mean_keepdim(D::Minus1)?;
        let xs = xs.broadcast_div(&(squares + self.eps)?.sqrt()?)?;
        xs.broadcast_mul(&self.weight)
    }
}

#[derive(Clone, Quantizable)]
pub struct Model {
    #[quantizable(skip)]
    norm: Norm,
    head: Linear,
}

impl Module for Model {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.norm.add(xs, None)?)
    }
}
