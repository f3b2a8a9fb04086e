//! The states that layers and cells are given.

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::sizes;
use crate::tensor::{Elements, as_f32, mismatch};

/// The tensors of a call: its input, and the states before the first step, zeros where none is given.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub xs: &'a Tensor,
    pub h: Option<&'a Tensor>,
    /// The cell state of an LSTM.
    pub c: Option<&'a Tensor>,
}

impl<'a> Given<'a> {
    /// The tensors of a call, from its inputs as they are reported.
    pub fn from_reported(inputs: &[&'a Tensor]) -> Option<Self> {
        match *inputs {
            [xs] => Some((xs, None, None)),
            [xs, h] => Some((xs, Some(h), None)),
            [xs, h, c] => Some((xs, Some(h), Some(c))),
            _ => None,
        }
        .map(|(xs, h, c)| Self { xs, h, c })
    }

    pub fn tensors(self) -> Vec<&'a Tensor> {
        let all = [Some(self.xs), self.h, self.c];
        all.into_iter().flatten().collect()
    }
}

/// A state that `copy` makes of f32 elements, or zeros where none is given.
pub fn read_state(
    op: &'static str,
    state: Option<&Tensor>,
    shape: &[usize],
    copy: impl FnOnce(&[f32]) -> Vec<f32>,
) -> Result<Vec<f32>> {
    let len = sizes::allocated(op, shape)?;
    let Some(state) = state else {
        return Ok(vec![0.; len]);
    };
    check_state(op, state, shape)?;
    let state = as_f32(state, op)?;
    Ok(copy(Elements::new(&state).as_slice()?))
}

/// A state of one shape as a tensor of another shape for candle's operations, or zeros where none
/// is given.
pub fn as_rows(
    op: &'static str,
    state: Option<&Tensor>,
    [shape, rows]: [&[usize]; 2],
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let Some(state) = state else {
        return Ok(Tensor::zeros(rows, dtype, device)?);
    };
    check_state(op, state, shape)?;
    Ok(state.to_dtype(dtype)?.reshape(rows)?)
}

/// Checks the shape of a state.
fn check_state(op: &'static str, state: &Tensor, shape: &[usize]) -> Result<()> {
    if state.dims() == shape { Ok(()) } else { Err(mismatch(op, format!("{shape:?}"), state)) }
}
