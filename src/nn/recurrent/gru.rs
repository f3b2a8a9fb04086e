//! Gated recurrent unit.

use candle_core::{Device, IndexOp, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;

use super::stack::{Axes, Memory};
use super::weights::Inits;
use super::{GRUConfig, GRUState, RecurrentConfig, Stack, quantizable_layer, single};
use crate::error::{Error, Result};
use crate::kernels::Gates;
use crate::module::LayerKind;
use crate::sizes;

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
/// Shapes, dtypes, names of weights and quantization are as in [`LSTM`](super::LSTM), with a
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
    stack: Stack,
}

quantizable_layer!(GRU, stack, LayerKind::GRU);

impl GRU {
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
        let stack = Stack::load(Gates::Gru, input_size, hidden_size, config, &vb)?;
        Ok(Self { stack })
    }

    /// Output and last state; the state before the first step is `h`, or zeros.
    ///
    /// # Errors
    /// When the input or the state has a wrong shape or dtype, or is not on the CPU.
    pub fn forward(&self, xs: &Tensor, h: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        self.stack.forward_h("GRU", xs, None, h)
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
        h: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        self.stack.forward_h("GRU", xs, Some(lengths), h)
    }
}

/// candle's interface: one layer, one direction, `[batch, steps, features]`, and states of
/// `[batch, hidden_size]`.
impl candle_nn::RNN for GRU {
    type State = GRUState;

    fn zero_state(&self, batch_dim: usize) -> CandleResult<GRUState> {
        single(&self.stack, "GRU")?;
        sizes::elements("zero_state", &[batch_dim, self.stack.hidden_size()])?;
        let shape = (batch_dim, self.stack.hidden_size());
        let h = Tensor::zeros(shape, self.stack.dtype(), &Device::Cpu)?;
        Ok(GRUState { h })
    }

    fn step(&self, input: &Tensor, state: &GRUState) -> CandleResult<GRUState> {
        let states = self.seq_init(&input.unsqueeze(1)?, state)?;
        states
            .into_iter()
            .next()
            .ok_or_else(|| candle_core::Error::msg("a step has a state"))
    }

    fn seq_init(&self, input: &Tensor, state: &GRUState) -> CandleResult<Vec<GRUState>> {
        single(&self.stack, "GRU")?;
        let h = state.h.unsqueeze(0)?;
        let run = || {
            let input = self.stack.input(input, Axes::BatchFirst, None)?;
            let state = self.stack.forward(&input, Some(&h), Memory::default())?;
            Ok(state.0)
        };
        let ys = run().map_err(|e: Error| e.at(self.stack.name().unwrap_or("GRU")))?;
        let state = |step| {
            let h = ys.i((.., step))?.contiguous()?;
            Ok(GRUState { h })
        };
        (0..input.dim(1)?).map(state).collect()
    }

    /// `[batch, steps, hidden_size]`.
    fn states_to_tensor(&self, states: &[GRUState]) -> CandleResult<Tensor> {
        let states: Vec<_> = states.iter().map(|state| &state.h).collect();
        Tensor::stack(&states, 1)
    }
}

/// One layer in one direction, as [`candle_nn::gru`] makes it; use it through
/// [`candle_nn::RNN`].
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn gru(
    in_dim: usize,
    hidden_dim: usize,
    config: GRUConfig,
    vb: VarBuilder<'_>,
) -> CandleResult<GRU> {
    let inits = Inits {
        w_ih: config.w_ih_init,
        w_hh: config.w_hh_init,
        b_ih: config.b_ih_init,
        b_hh: config.b_hh_init,
    };
    let stack = Stack::load_single(Gates::Gru, in_dim, hidden_dim, "_l0".into(), inits, &vb)?;
    Ok(GRU { stack })
}
