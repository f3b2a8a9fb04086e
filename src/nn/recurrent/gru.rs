//! Gated recurrent unit.

use super::weights::Shape;
use super::{RecurrentConfig, Stack, forward_h, recurrent_layer};
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
/// Shapes, dtypes, gradients, names of weights and quantization are as in [`LSTM`](super::LSTM), with a
/// state of `h` alone, `[num_layers * directions, batch, hidden_size]`.
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
    pub(super) stack: Stack,
}

recurrent_layer!(GRU { stack: Stack }, Gates::Gru, [config: RecurrentConfig], config);
forward_h!(GRU, "gru");
