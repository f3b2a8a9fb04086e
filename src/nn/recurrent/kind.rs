//! Kinds of recurrent layers, LSTM, GRU and RNN: gates, state and step.

use std::fmt;

use candle_core::{Result as CandleResult, Tensor};

use crate::error::Result;
use crate::kernels::Gates;

/// A kind of recurrent layer.
pub(super) trait Kind: Copy + fmt::Debug {
    /// The state besides h.
    type Cell: CellState;

    fn gates(self) -> Gates;

    /// The state after a step by candle's operations, `[batch, hidden]`, from the one before and
    /// the products of the input and of the hidden state, `[batch, gates * hidden]`.
    fn step(
        self,
        products: [&Tensor; 2],
        h: &Tensor,
        c: &Self::Cell,
    ) -> CandleResult<(Tensor, Self::Cell)>;
}

/// The state besides h: c, a tensor, of an LSTM; `()` of the other layers.
pub(super) trait CellState: Sized {
    /// Whether there is one.
    const EXISTS: bool;

    fn tensor(&self) -> Option<&Tensor>;

    /// The one that `make` makes of the tensors of others, if there is one.
    fn of<const N: usize>(
        others: [&Self; N],
        make: impl FnOnce([&Tensor; N]) -> Result<Tensor>,
    ) -> Result<Self>;
}

impl CellState for Tensor {
    const EXISTS: bool = true;

    fn tensor(&self) -> Option<&Tensor> {
        Some(self)
    }

    fn of<const N: usize>(
        others: [&Self; N],
        make: impl FnOnce([&Tensor; N]) -> Result<Tensor>,
    ) -> Result<Self> {
        make(others)
    }
}

impl CellState for () {
    const EXISTS: bool = false;

    fn tensor(&self) -> Option<&Tensor> {
        None
    }

    fn of<const N: usize>(
        _: [&Self; N],
        _: impl FnOnce([&Tensor; N]) -> Result<Tensor>,
    ) -> Result<Self> {
        Ok(())
    }
}
