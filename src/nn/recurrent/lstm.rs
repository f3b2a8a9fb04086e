//! Long short-term memory.

use candle_core::{D, Result as CandleResult, Tensor};
use candle_nn::ops::sigmoid;
use candle_nn::rnn::LSTMState;

use super::config::RecurrentConfig;
use super::kind::RecurrentKind;
use super::layer::recurrent_layer;
use super::stack::Stack;
use super::state::Given;
use super::weights::Direction;
use crate::error::Result;
use crate::kernels::Gates;
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
#[derive(Clone, Debug)]
pub struct LSTM {
    pub(super) stack: Stack<Lstm>,
}

recurrent_layer!(LSTM { stack: Stack<Lstm> }, Lstm, [config: RecurrentConfig], config);

impl LSTM {
    /// Output and last state; the state before the first step is `state`, or zeros.
    ///
    /// # Errors
    /// When the input or the state has a wrong shape or dtype, or is on another device than the
    /// weights.
    pub fn forward(&self, xs: &Tensor, state: Option<&LSTMState>) -> Result<(Tensor, LSTMState)> {
        self.run(xs, None, state)
    }

    /// [`forward`](Self::forward) over sequences of different lengths: the rest of each is
    /// padding, which influences nothing and is zero in the output.
    ///
    /// # Errors
    /// Also when there is not one length a sequence, or one is longer than the input.
    pub fn forward_lengths(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        state: Option<&LSTMState>,
    ) -> Result<(Tensor, LSTMState)> {
        self.run(xs, Some(lengths), state)
    }

    fn run(
        &self,
        xs: &Tensor,
        lengths: Option<&[usize]>,
        state: Option<&LSTMState>,
    ) -> Result<(Tensor, LSTMState)> {
        trace::forward!("lstm", self.stack.name());
        let (h, c) = (state.map(|s| &s.h), state.map(|s| &s.c));
        let states = self.stack.forward("LSTM", Given { xs, h, c }, lengths)?;
        Ok((states.ys, LSTMState::new(states.h, states.c)))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Lstm;

impl RecurrentKind for Lstm {
    type Cell = Tensor;

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
}
