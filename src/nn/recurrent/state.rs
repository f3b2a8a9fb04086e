//! States as layers and cells are given them.

use candle_core::Tensor;

use crate::error::Result;
use crate::sizes;
use crate::tensor::{Elements, as_f32, mismatch};

/// A state that `copy` makes of f32 elements, or zeros where none is given.
pub fn read_state(
    op: &'static str,
    state: Option<&Tensor>,
    shape: &[usize],
    copy: impl FnOnce(&[f32]) -> Vec<f32>,
) -> Result<Vec<f32>> {
    let len = sizes::elements(op, shape)?;
    let Some(state) = state else {
        return Ok(vec![0.; len]);
    };
    check_state(op, state, shape)?;
    let state = as_f32(state, op)?;
    Ok(copy(Elements::of(&state).as_slice()?))
}

/// Checks the shape of a state.
pub fn check_state(op: &'static str, state: &Tensor, shape: &[usize]) -> Result<()> {
    if state.dims() == shape {
        Ok(())
    } else {
        Err(mismatch(op, format!("{shape:?}"), state))
    }
}
