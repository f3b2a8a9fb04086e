use candle_core as candle;
use candle_dynquant::nn::{layer_norm, linear, linear_b, LayerNorm, Linear};
use candle_dynquant::Quantizable;
use candle_nn::*;

#[derive(Clone, Quantizable)]
pub struct Net {
    first: Linear,
    norm: LayerNorm,
    second: self::Linear,
}

pub fn net(vb: VarBuilder<'_>) -> candle::Result<Net> {
    Ok(Net {
        first: linear(1, 2, vb.pp("a"))?,
        norm: layer_norm(2, 1e-5, vb.pp("n"))?,
        second: linear_b(2, 1, true, vb.pp("b"))?,
    })
}
