//! Gated recurrent unit.

use candle_core::{D, Result as CandleResult, Tensor};
use candle_nn::ops::sigmoid;

use super::kind::{Gated, RecurrentKind};
use super::stack::Recurrent;
use super::state::Given;
use crate::kernels::Gates;
use crate::module::LayerKind;
use crate::trace;

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
pub type GRU = Recurrent<Gru>;

/// The kind of a [`GRU`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Gru;

impl Gated for Gru {}

impl RecurrentKind for Gru {
    type Cell = ();
    type State = Tensor;
    const KINDS: [LayerKind; 2] = [LayerKind::GRU, LayerKind::GRUCell];

    fn span(is_cell: bool, name: Option<&str>) -> trace::Span {
        if is_cell { trace::span!("gru-cell", name) } else { trace::span!("gru", name) }
    }

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
    fn state(h: Tensor, (): ()) -> Tensor {
        h
    }

    fn given<'a>(xs: &'a Tensor, h: Option<&'a Tensor>) -> Given<'a> {
        Given { xs, h, c: None }
    }
}
