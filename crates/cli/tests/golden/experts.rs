//! Scores that choose experts.
use candle::{DType, Module, Result, Tensor, D};
use candle_nn::{linear, linear_no_bias, Linear, VarBuilder};

struct Sorted {
    gate: Linear,
    shared: Linear,
    experts: Vec<Linear>,
}

impl Sorted {
    fn new(vb: VarBuilder) -> Result<Self> {
        let gate = linear_no_bias(64, 8, vb.pp("gate"))?;
        let experts = (0..8).map(|i| linear_no_bias(64, 64, vb.pp(i)));
        Ok(Self {
            gate,
            shared: linear_no_bias(64, 1, vb.pp("shared"))?,
            experts: experts.collect::<Result<_>>()?,
        })
    }
}

impl Module for Sorted {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let logits = xs.apply(&self.gate)?;
        let weights = candle_nn::ops::softmax_last_dim(&logits)?;
        let chosen = weights.arg_sort_last_dim(false)?.narrow(D::Minus1, 0, 2)?;
        self.experts[0].forward(xs)? * chosen.apply(&self.shared)?
    }
}

struct Read {
    router: Linear,
    biased: Linear,
}

impl Read {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            router: candle_nn::linear_no_bias(64, 8, vb.pp("router"))?,
            biased: linear(64, 8, vb.pp("biased"))?,
        })
    }

    fn choose(&self, xs: &Tensor) -> Result<Vec<Vec<f32>>> {
        let scores = candle_nn::ops::sigmoid(&self.router.forward(xs)?)?;
        let mut rows = scores.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let others = self.biased.forward(xs)?.to_vec2::<f32>()?;
        rows.extend(others);
        rows.iter_mut().for_each(|row| row.sort_by(f32::total_cmp));
        Ok(rows)
    }
}
