#![allow(unused)]
/* A licence, with candle_nn::Linear in it. */

use std::fmt; // kept
use candle_dynquant::nn::Linear;
use candle_dynquant::{nn, ops, Quantizable};
use candle_nn::{ // why these
    VarBuilder,
};
use candle::*;

/// Documentation of `candle_nn::Linear`.
#[derive(
    Debug, // shown
    Clone,
    Quantizable,
)]
pub struct Raw {
    a: Linear, /* "candle_nn" */
}

macro_rules! layer {
    ($vb:expr) => {
        nn::linear(1, 2, $vb)
    };
}

const TEXT: &str = r#"candle_nn::Linear "quoted" .silu()"#;

fn all(vb: VarBuilder, xs: &Tensor) -> Result<Vec<Tensor>> {
    let _ = layer!(vb.pp("ü"))?;
    let _ = vec![nn::linear(1, 2, vb.pp("b"))?];
    let ys = vec![ops::silu(xs)?, ops::silu(&(xs * 2.)?)?];
    let kept = xs.silu()?; // dynquant: keep
    let _ = |x: f64| x.tanh();
    Ok(ys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_dynquant::nn::Linear;
    use candle_dynquant::nn;

    fn one(l: &Linear) -> nn::LayerNorm {
        norm_of(l)
    }
}
