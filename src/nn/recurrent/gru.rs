//! Gated recurrent unit.

use candle_core::{D, Result as CandleResult, Tensor};
use candle_nn::ops::sigmoid;

use super::config::RecurrentConfig;
use super::kind::RecurrentKind;
use super::layer::{forward_h, recurrent_layer};
use super::stack::Stack;
use super::state::Given;
use super::weights::Direction;
use crate::error::Result;
use crate::kernels::Gates;

/// Gated recurrent units over a sequence, with all of `torch.nn.GRU`'s options.
///
/// For each step, with gates stacked in the order r, z, n:
///
/// ```text
/// r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh)
/// n    = tanh(W_in x + b_in + r (W_hn h + b_hn))
/// h'   = z (h - n) + n
/// ```
///
/// `candle_nn::GRU::new`, with its `GRUConfig`, is [`nn::gru`](fn@crate::nn::gru) here.
///
/// Shapes, dtypes, gradients, names of weights and quantization are as in [`LSTM`](super::LSTM),
/// with a state of `h` alone, `[num_layers * directions, batch, hidden_size]`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::nn;
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let config = nn::RecurrentConfig { batch_first: true, ..Default::default() };
/// let gru = nn::GRU::new(16, 32, config, vb.pp("gru"))?;
/// let xs = Tensor::ones((3, 7, 16), DType::F32, &Device::Cpu)?;
/// let (ys, h) = gru.forward_lengths(&xs, &[7, 2, 5], None)?;
/// assert_eq!((ys.dims(), h.dims()), (&[3, 7, 32][..], &[1, 3, 32][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GRU {
    pub(super) stack: Stack<Gru>,
}

recurrent_layer!(GRU { stack: Stack<Gru> }, Gru, [config: RecurrentConfig], config);
forward_h!(GRU, "gru");

#[derive(Clone, Copy, Debug)]
pub(super) struct Gru;

impl RecurrentKind for Gru {
    type Cell = ();

    fn gates(self) -> Gates {
        Gates::Gru
    }

    fn step(self, [ih, hh]: [&Tensor; 2], h: &Tensor, (): &()) -> CandleResult<(Tensor, ())> {
        let (ih, hh) = (ih.chunk(3, D::Minus1)?, hh.chunk(3, D::Minus1)?);
        let r = sigmoid(&(&ih[0] + &hh[0])?)?;
        let z = sigmoid(&(&ih[1] + &hh[1])?)?;
        let n = (&ih[2] + (r * &hh[2])?)?.tanh()?;
        Ok((((z * (h - &n)?)? + n)?, ()))
    }
}
