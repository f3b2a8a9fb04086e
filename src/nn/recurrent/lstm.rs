//! Long short-term memory.

use candle_core::{Device, IndexOp, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;
use candle_nn::rnn::Direction;

use super::stack::{Axes, Memory};
use super::weights::Inits;
use super::{LSTMConfig, LSTMState, RecurrentConfig, Stack, quantizable_layer, single};
use crate::error::{Error, Result};
use crate::kernels::Gates;
use crate::module::LayerKind;
use crate::sizes;

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
/// # Shapes
/// - input: `[steps, batch, input_size]`, with `batch_first` `[batch, steps, input_size]`, or
///   `[steps, input_size]` for one sequence; any float dtype
/// - output: the same with `directions * state_size` last, where `state_size` is `proj_size`
///   if there is one and else `hidden_size`
/// - state: `h` of `[num_layers * directions, batch, state_size]` and `c` of
///   `[num_layers * directions, batch, hidden_size]`, both without `batch` for one sequence
///
/// A sequence of length 0 leaves the state as it is. Computed in f32, without gradients.
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
    stack: Stack,
}

quantizable_layer!(LSTM, stack, LayerKind::LSTM);

impl LSTM {
    /// Loads a layer from `vb`.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape, or the configuration makes no sense.
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        config: RecurrentConfig,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let stack = Stack::load(Gates::Lstm, input_size, hidden_size, config, &vb)?;
        Ok(Self { stack })
    }

    /// Output and last state; the state before the first step is `state`, or zeros.
    ///
    /// # Errors
    /// When the input or the state has a wrong shape or dtype, or is not on the CPU.
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
        let run = || {
            let input = self.stack.input(xs, self.stack.axes(), lengths)?;
            let mut c = self.stack.read_c(&input, state.map(|s| &s.c))?;
            let (h, memory) = (
                state.map(|s| &s.h),
                Memory {
                    c: &mut c,
                    cs: None,
                },
            );
            let (ys, h) = self.stack.forward(&input, h, memory)?;
            let c = self.stack.c(&input, c)?;
            Ok((ys, LSTMState { h, c }))
        };
        run().map_err(|e| self.at(e))
    }

    fn at(&self, error: Error) -> Error {
        error.at(self.stack.name().unwrap_or("LSTM"))
    }
}

/// candle's interface: one layer, one direction, `[batch, steps, features]`, and states of
/// `[batch, hidden_size]`. To go step by step, [`forward`](LSTM::forward) on one step is faster:
/// it does not rearrange the state.
impl candle_nn::RNN for LSTM {
    type State = LSTMState;

    fn zero_state(&self, batch_dim: usize) -> CandleResult<LSTMState> {
        single(&self.stack, "LSTM")?;
        sizes::elements("zero_state", &[batch_dim, self.stack.hidden_size()])?;
        let zeros = Tensor::zeros(
            (batch_dim, self.stack.hidden_size()),
            self.stack.dtype(),
            &Device::Cpu,
        )?;
        Ok(LSTMState::new(zeros.clone(), zeros))
    }

    fn step(&self, input: &Tensor, state: &LSTMState) -> CandleResult<LSTMState> {
        let states = self.seq_init(&input.unsqueeze(1)?, state)?;
        states
            .into_iter()
            .next()
            .ok_or_else(|| candle_core::Error::msg("a step has a state"))
    }

    fn seq_init(&self, input: &Tensor, state: &LSTMState) -> CandleResult<Vec<LSTMState>> {
        single(&self.stack, "LSTM")?;
        let (h, c) = (state.h.unsqueeze(0)?, state.c.unsqueeze(0)?);
        let run = || {
            let input = self.stack.input(input, Axes::BatchFirst, None)?;
            let (mut c, mut cs) = (self.stack.read_c(&input, Some(&c))?, Vec::new());
            let memory = Memory {
                c: &mut c,
                cs: Some(&mut cs),
            };
            let (ys, _) = self.stack.forward(&input, Some(&h), memory)?;
            Ok((ys, self.stack.cs(&input, cs)?))
        };
        let (ys, cs) = run().map_err(|e| self.at(e))?;
        let state = |step| {
            let h = ys.i((.., step))?.contiguous()?;
            Ok(LSTMState::new(h, cs.i(step)?))
        };
        (0..input.dim(1)?).map(state).collect()
    }

    fn states_to_tensor(&self, states: &[LSTMState]) -> CandleResult<Tensor> {
        let states: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::stack(&states, 1)
    }
}

/// One layer in one direction, as [`candle_nn::lstm`] makes it; use it through
/// [`candle_nn::RNN`].
///
/// As in candle, a backward layer reads the backward weights, and its caller turns the
/// sequence around.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn lstm(
    in_dim: usize,
    hidden_dim: usize,
    config: LSTMConfig,
    vb: VarBuilder<'_>,
) -> CandleResult<LSTM> {
    let side = match config.direction {
        Direction::Forward => "",
        Direction::Backward => "_reverse",
    };
    let suffix = format!("_l{}{side}", config.layer_idx);
    let inits = Inits {
        w_ih: config.w_ih_init,
        w_hh: config.w_hh_init,
        b_ih: config.b_ih_init,
        b_hh: config.b_hh_init,
    };
    let stack = Stack::load_single(Gates::Lstm, in_dim, hidden_dim, suffix, inits, &vb)?;
    Ok(LSTM { stack })
}
