//! Kinds of recurrent layers, LSTM, GRU and RNN: gates, state and step.

use std::fmt;

use candle_core::{Result as CandleResult, Tensor};

use super::state::Given;
use crate::error::Result;
use crate::kernels::Gates;
use crate::module::LayerKind;
use crate::trace::Span;

/// A kind of recurrent layer.
pub trait RecurrentKind: Copy + fmt::Debug + Send + Sync {
    /// The state besides h.
    type Cell: CellState;
    /// The state of a call: candle's for an LSTM, else the tensor h.
    type State;
    /// The layer and its cell.
    const KINDS: [LayerKind; 2];

    /// The span of a forward call of the layer, or of its cell.
    fn span(is_cell: bool, name: Option<&str>) -> Span;

    fn gates(self) -> Gates;

    /// The state after a step by candle's operations, `[batch, hidden]`, from the one before and
    /// the products of the input and of the hidden state, `[batch, gates * hidden]`.
    fn step(
        self,
        products: [&Tensor; 2],
        h: &Tensor,
        c: &Self::Cell,
    ) -> CandleResult<(Tensor, Self::Cell)>;

    fn state(h: Tensor, c: Self::Cell) -> Self::State;

    /// The tensors of an input and of a state.
    fn given<'a>(xs: &'a Tensor, state: Option<&'a Self::State>) -> Given<'a>;
}

/// A kind without options.
pub trait Gated: RecurrentKind + Default {}

/// The state besides h: the tensor c for an LSTM, `()` for other layers.
pub trait CellState: Sized {
    /// Whether the state is a tensor.
    const EXISTS: bool;

    fn tensor(&self) -> Option<&Tensor>;

    /// Applies `make` to the tensors of `others`; does nothing for layers without such a state.
    fn apply<const N: usize>(
        others: [&Self; N],
        make: impl FnOnce([&Tensor; N]) -> Result<Tensor>,
    ) -> Result<Self>;
}

impl CellState for Tensor {
    const EXISTS: bool = true;

    fn tensor(&self) -> Option<&Tensor> {
        Some(self)
    }

    fn apply<const N: usize>(
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

    fn apply<const N: usize>(
        _: [&Self; N],
        _: impl FnOnce([&Tensor; N]) -> Result<Tensor>,
    ) -> Result<Self> {
        Ok(())
    }
}
