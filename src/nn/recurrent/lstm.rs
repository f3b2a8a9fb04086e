//! Long short-term memory.

use candle_core::{D, Result as CandleResult, Tensor};
use candle_nn::ops::sigmoid;
use candle_nn::rnn::LSTMState;

use super::kind::{Gated, RecurrentKind};
use super::stack::Recurrent;
use super::state::Given;
use crate::kernels::Gates;
use crate::module::LayerKind;
use crate::trace;

/// Long short-term memory over a sequence, with all of `torch.nn.LSTM`'s options.
///
/// For each step, with gates stacked in the order i, f, g, o:
///
/// ```text
/// i, f, o = sigmoid(W_ih x + b_ih + W_hh h + b_hh)      g = tanh(the same)
/// c' = f c + i g
/// h' = o tanh(c')                                       or W_hr (o tanh(c')) with proj_size
/// ```
///
/// `candle_nn::LSTM::new`, with its `LSTMConfig`, is [`nn::lstm`](fn@crate::nn::lstm) here.
///
/// # Shapes
/// - input: `[steps, batch, input_size]`, with `batch_first` `[batch, steps, input_size]`, or
///   `[steps, input_size]` for one sequence; any float dtype
/// - output: the same with `directions * state_size` last, where `state_size` is `proj_size`
///   if there is one and else `hidden_size`
/// - state: `h` of `[num_layers * directions, batch, state_size]` and `c` of
///   `[num_layers * directions, batch, hidden_size]`, both without `batch` for one sequence
///
/// A sequence of length 0 leaves the state as it is. Float on the CPU, it is computed in f32; on
/// other devices, and where candle tracks a gradient (of variables and what was computed from
/// them), by candle's own operations in the dtype of the weights. Quantized, it runs on the CPU,
/// and a backward pass through it is an error.
///
/// Weights load under PyTorch's names: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`,
/// `bias_hh_l0`, `weight_hr_l0`, then `_l0_reverse`, `_l1` and so on.
///
/// Quantized, the input's projection of a whole sequence is one product, with one range of
/// activations per tensor or one for each row; the hidden state is quantized afresh at every
/// step.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::{nn, quantize_dynamic, QConfigSpec};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let config = nn::RecurrentConfig { num_layers: 2, bidirectional: true, ..Default::default() };
/// let mut lstm = nn::LSTM::new(16, 32, config, vb.pp("lstm"))?;
/// quantize_dynamic(&mut lstm, &QConfigSpec::int8())?;
/// let (ys, state) = lstm.forward(&Tensor::ones((7, 3, 16), DType::F32, &Device::Cpu)?, None)?;
/// assert_eq!((ys.dims(), state.h.dims()), (&[7, 3, 64][..], &[4, 3, 32][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type LSTM = Recurrent<Lstm>;

/// The kind of an [`LSTM`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Lstm;

impl Gated for Lstm {}

impl RecurrentKind for Lstm {
    type Cell = Tensor;
    type State = LSTMState;
    const KINDS: [LayerKind; 2] = [LayerKind::LSTM, LayerKind::LSTMCell];

    fn span(is_cell: bool, name: Option<&str>) -> trace::Span {
        if is_cell { trace::span!("lstm-cell", name) } else { trace::span!("lstm", name) }
    }

    fn gates(self) -> Gates {
        Gates::Lstm
    }

    fn step(
        self,
        [ih, hh]: [&Tensor; 2],
        _: &Tensor,
        c: &Tensor,
    ) -> CandleResult<(Tensor, Tensor)> {
        let sums = (ih + hh)?.chunk(4, D::Minus1)?;
        let (i, f) = (sigmoid(&sums[0])?, sigmoid(&sums[1])?);
        let (g, o) = (sums[2].tanh()?, sigmoid(&sums[3])?);
        let c = ((f * c)? + (i * g)?)?;
        Ok(((o * c.tanh()?)?, c))
    }
    fn state(h: Tensor, c: Tensor) -> LSTMState {
        LSTMState { h, c }
    }

    fn given<'a>(xs: &'a Tensor, state: Option<&'a LSTMState>) -> Given<'a> {
        Given { xs, h: state.map(|state| &state.h), c: state.map(|state| &state.c) }
    }
}
