//! candle's own interface to recurrent layers: `candle_nn::{lstm, gru}` and `candle_nn::RNN`, which
//! is one layer in one direction.

use candle_core::{IndexOp, Result as CandleResult, Tensor};
use candle_nn::rnn::{self, GRUConfig, GRUState, LSTMConfig, LSTMState};
use candle_nn::{RNN, VarBuilder};

use super::gru::{GRU, Gru};
use super::kind::RecurrentKind;
use super::lstm::{LSTM, Lstm};
use super::stack::{Axes, Recurrent};
use super::state::Given;
use super::weights::Inits;
use crate::error::{Error, Result};
use crate::sizes;
use crate::tensor::mismatch;

/// A single layer in one direction, as [`candle_nn::lstm`] makes it; use it through
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
        rnn::Direction::Forward => "",
        rnn::Direction::Backward => "_reverse",
    };
    let suffix = format!("_l{}{side}", config.layer_idx);
    let inits = Inits {
        w_ih: config.w_ih_init,
        w_hh: config.w_hh_init,
        b_ih: config.b_ih_init,
        b_hh: config.b_hh_init,
    };
    Recurrent::single(Lstm, [in_dim, hidden_dim], suffix, inits, &vb)
}

/// A single layer in one direction, as [`candle_nn::gru`] makes it; use it through
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
    Recurrent::single(Gru, [in_dim, hidden_dim], "_l0".into(), inits, &vb)
}

/// candle's interface: one layer, one direction, `[batch, steps, features]`, and states of
/// `[batch, hidden_size]`. To go step by step, [`forward`](LSTM::forward) on one step is faster:
/// it does not rearrange the state.
impl RNN for LSTM {
    type State = LSTMState;

    fn zero_state(&self, batch_dim: usize) -> CandleResult<LSTMState> {
        let zeros = zeros(self, batch_dim)?;
        Ok(LSTMState::new(zeros.clone(), zeros))
    }

    fn step(&self, input: &Tensor, state: &LSTMState) -> CandleResult<LSTMState> {
        only(self.seq_init(&input.unsqueeze(1)?, state)?)
    }

    fn seq_init(&self, input: &Tensor, state: &LSTMState) -> CandleResult<Vec<LSTMState>> {
        let _span = Lstm::span(false, self.name());
        let (ys, cs) = run_each(self, input, &state.h, Some(&state.c))?;
        let state = |step| Ok(LSTMState::new(row(&ys, step)?, cs.i(step)?));
        (0..input.dim(1)?).map(state).collect()
    }

    fn states_to_tensor(&self, states: &[LSTMState]) -> CandleResult<Tensor> {
        together(states.iter().map(|state| &state.h))
    }
}

/// candle's interface: one layer, one direction, `[batch, steps, features]`, and states of
/// `[batch, hidden_size]`.
impl RNN for GRU {
    type State = GRUState;

    fn zero_state(&self, batch_dim: usize) -> CandleResult<GRUState> {
        let h = zeros(self, batch_dim)?;
        Ok(GRUState { h })
    }

    fn step(&self, input: &Tensor, state: &GRUState) -> CandleResult<GRUState> {
        only(self.seq_init(&input.unsqueeze(1)?, state)?)
    }

    fn seq_init(&self, input: &Tensor, state: &GRUState) -> CandleResult<Vec<GRUState>> {
        let _span = Gru::span(false, self.name());
        let (ys, ()) = run_each(self, input, &state.h, None)?;
        let state = |step| Ok(GRUState { h: row(&ys, step)? });
        (0..input.dim(1)?).map(state).collect()
    }

    /// `[batch, steps, hidden_size]`.
    fn states_to_tensor(&self, states: &[GRUState]) -> CandleResult<Tensor> {
        together(states.iter().map(|state| &state.h))
    }
}

/// The output for an input `[batch, steps, features]` from states of `[batch, hidden_size]`, and c
/// after each step.
fn run_each<K: RecurrentKind>(
    layer: &Recurrent<K>,
    xs: &Tensor,
    h: &Tensor,
    c: Option<&Tensor>,
) -> CandleResult<(Tensor, K::Cell)> {
    let (h, c) = (h.unsqueeze(0)?, c.map(|c| c.unsqueeze(0)).transpose()?);
    on_single(layer, |layer| {
        let [_, _, _] = *xs.dims() else {
            let expected = format!("[batch, steps, {}]", layer.shape.input);
            return Err(mismatch("forward", expected, xs));
        };
        let (h, c) = (Some(&h), c.as_ref());
        let input = layer.input(Given { xs, h, c }, Axes::BatchFirst, None)?;
        let (states, cs) = layer.run(&input, true)?;
        Ok((states.ys, cs))
    })
}

/// Calls `f` with a layer of one layer and one direction, and names the layer in an error.
fn on_single<K: RecurrentKind, T>(
    layer: &Recurrent<K>,
    f: impl FnOnce(&Recurrent<K>) -> Result<T>,
) -> CandleResult<T> {
    let result = if layer.directions.len() == 1 {
        f(layer)
    } else {
        let what = "layer used through candle_nn::RNN";
        let expected = "one layer in one direction; use forward";
        Err(Error::argument(what, expected, "several"))
    };
    Ok(layer.named(result)?)
}

/// A state of zeros, `[batch, hidden_size]`.
fn zeros<K: RecurrentKind>(layer: &Recurrent<K>, batch: usize) -> CandleResult<Tensor> {
    on_single(layer, |_| Ok(()))?;
    sizes::allocated("zero_state", &[batch, layer.shape.hidden])?;
    let shape = (batch, layer.shape.hidden);
    Tensor::zeros(shape, layer.dtype(), &layer.device())
}

/// The state after one step.
fn only<S>(states: Vec<S>) -> CandleResult<S> {
    let first = states.into_iter().next();
    first.ok_or_else(|| candle_core::Error::msg("a step has a state"))
}

/// The hidden state after a step, of outputs `[batch, steps, hidden_size]`.
fn row(ys: &Tensor, step: usize) -> CandleResult<Tensor> {
    ys.i((.., step))?.contiguous()
}

/// Hidden states as one tensor, `[batch, steps, hidden_size]`.
fn together<'a>(hs: impl Iterator<Item = &'a Tensor>) -> CandleResult<Tensor> {
    Tensor::stack(&hs.collect::<Vec<_>>(), 1)
}
