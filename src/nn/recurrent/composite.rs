//! Float layers by candle's operations: with gradients, and on any device.

use candle_core::{D, DType, IndexOp, Result as CandleResult, Tensor};

use super::check_state;
use super::stack::{Axes, Input, Stack, States};
use super::weights::Direction;
use crate::error::Result;
use crate::kernels::Gates;
use crate::nn::Projection;
use crate::sizes;

/// Whether the kernels run these weights over these tensors; else candle's operations do.
pub(super) fn is_ours<'a>(
    mut projections: impl Iterator<Item = &'a Projection>,
    mut tensors: impl Iterator<Item = &'a Tensor>,
) -> bool {
    let ours = |tensor: &Tensor| tensor.device().is_cpu() && !tensor.track_op();
    projections.all(|p| p.qweight().is_some() || (ours(p.weight()) && p.bias().is_none_or(ours)))
        && tensors.all(ours)
}

/// The state after a step, `[batch, hidden]`, from the one before and the products of the input and
/// of the hidden state, `[batch, gates * hidden]`; an LSTM has a cell state.
pub(super) fn step(
    gates: Gates,
    [ih, hh]: [&Tensor; 2],
    h: &Tensor,
    c: Option<&Tensor>,
) -> CandleResult<(Tensor, Option<Tensor>)> {
    let sigmoid = candle_nn::ops::sigmoid;
    match (gates, c) {
        (Gates::Lstm, Some(c)) => {
            let sums = (ih + hh)?.chunk(4, D::Minus1)?;
            let (i, f) = (sigmoid(&sums[0])?, sigmoid(&sums[1])?);
            let (g, o) = (sums[2].tanh()?, sigmoid(&sums[3])?);
            let c = ((f * c)? + (i * g)?)?;
            Ok(((o * c.tanh()?)?, Some(c)))
        }
        (Gates::Lstm, None) => candle_core::bail!("an LSTM has a cell state"),
        (Gates::Gru, _) => {
            let (ih, hh) = (ih.chunk(3, D::Minus1)?, hh.chunk(3, D::Minus1)?);
            let r = sigmoid(&(&ih[0] + &hh[0])?)?;
            let z = sigmoid(&(&ih[1] + &hh[1])?)?;
            let n = (&ih[2] + (r * &hh[2])?)?.tanh()?;
            Ok((((z * (h - &n)?)? + n)?, None))
        }
        (Gates::Tanh, _) => Ok(((ih + hh)?.tanh()?, None)),
        (Gates::Relu, _) => Ok(((ih + hh)?.relu()?, None)),
    }
}

/// The steps of one direction.
struct Steps {
    /// After each step, in the order of the input, zeros where a sequence is over.
    hs: Vec<Tensor>,
    cs: Vec<Tensor>,
    h: Tensor,
    c: Option<Tensor>,
}

impl Stack {
    /// All layers, as the kernels run them, in the dtype of the weights.
    pub(super) fn by_candle(
        &self,
        input: &Input<'_>,
        h_0: Option<&Tensor>,
        c_0: Option<&Tensor>,
    ) -> Result<States> {
        let (dtype, xs) = (self.dtype(), input.xs);
        let h_0 = self.states(input, "initial state h", h_0, self.state_size())?;
        let c_0 = match self.shape.gates {
            Gates::Lstm => {
                let hidden = self.hidden_size();
                Some(self.states(input, "initial state c", c_0, hidden)?)
            }
            _ => None,
        };
        // [steps, batch, features], and 1 where a sequence is not over.
        let mut rows = match (xs.rank(), input.axes) {
            (2, _) => xs.unsqueeze(1)?,
            (_, Axes::BatchFirst) => xs.transpose(0, 1)?,
            (_, Axes::StepsFirst) => xs.clone(),
        };
        rows = rows.to_dtype(dtype)?.contiguous()?;
        let masks = input.schedule.mask();
        let masks = masks.map(|mask| {
            let shape = (input.steps, input.schedule.batch, 1);
            Tensor::from_vec(mask, shape, xs.device())
        });
        let masks = masks.transpose()?;
        if let Some(masks) = &masks {
            rows = masked(masks, &rows, &rows.zeros_like()?)?;
        }
        let (mut last_h, mut last_c, mut cs) = (Vec::new(), Vec::new(), Vec::new());
        for directions in self.layers() {
            let mut outs = Vec::new();
            for direction in directions {
                let h = h_0.i(last_h.len())?;
                let c = c_0.as_ref().map(|c| c.i(last_h.len())).transpose()?;
                let steps = self.steps(direction, &rows, masks.as_ref(), h, c)?;
                outs.push(Tensor::stack(&steps.hs, 0)?);
                last_h.push(steps.h);
                last_c.extend(steps.c);
                cs = steps.cs;
            }
            rows = Tensor::cat(&outs, D::Minus1)?;
        }
        let ys = match (xs.rank(), input.axes) {
            (2, _) => rows.squeeze(1)?,
            (_, Axes::BatchFirst) => rows.transpose(0, 1)?,
            (_, Axes::StepsFirst) => rows,
        };
        let state = |parts: &[Tensor]| {
            let all = Tensor::stack(parts, 0)?.to_dtype(xs.dtype())?;
            if xs.rank() == 2 {
                all.squeeze(1)
            } else {
                Ok(all)
            }
        };
        let all = |parts: &[Tensor]| Tensor::stack(parts, 0)?.to_dtype(xs.dtype());
        let lstm = c_0.is_some();
        Ok(States {
            ys: ys.contiguous()?.to_dtype(xs.dtype())?,
            h: state(&last_h)?,
            c: lstm.then(|| state(&last_c)).transpose()?,
            cs: lstm.then(|| all(&cs)).transpose()?,
        })
    }

    /// States of all layers and directions, `[layers * directions, batch, size]`; zeros for none.
    fn states(
        &self,
        input: &Input<'_>,
        op: &'static str,
        given: Option<&Tensor>,
        size: usize,
    ) -> Result<Tensor> {
        let all = (self.directions.len(), input.schedule.batch, size);
        let device = input.xs.device();
        sizes::elements(op, &[self.directions.len(), input.schedule.batch, size])?;
        Ok(match given {
            None => Tensor::zeros(all, self.dtype(), device)?,
            Some(given) => {
                check_state(op, given, &self.state_shape(input, size))?;
                given.to_dtype(self.dtype())?.reshape(all)?
            }
        })
    }

    fn steps(
        &self,
        direction: &Direction,
        rows: &Tensor,
        masks: Option<&Tensor>,
        mut h: Tensor,
        mut c: Option<Tensor>,
    ) -> Result<Steps> {
        let ih = direction.ih.try_forward(rows)?;
        let steps = rows.dim(0)?;
        let (mut hs, mut cs) = (Vec::new(), Vec::new());
        for count in 0..steps {
            let at = if direction.reverse {
                steps - 1 - count
            } else {
                count
            };
            let hh = direction.hh.try_forward(&h)?;
            let (mut next_h, mut next_c) =
                step(self.shape.gates, [&ih.i(at)?, &hh], &h, c.as_ref())?;
            if let Some(hr) = &direction.hr {
                next_h = hr.try_forward(&next_h)?;
            }
            if let Some(masks) = masks {
                let mask = masks.i(at)?;
                hs.push(masked(&mask, &next_h, &next_h.zeros_like()?)?);
                next_h = masked(&mask, &next_h, &h)?;
                next_c = match (next_c, &c) {
                    (Some(next), Some(c)) => Some(masked(&mask, &next, c)?),
                    (next, _) => next,
                };
            } else {
                hs.push(next_h.clone());
            }
            cs.extend(next_c.clone());
            (h, c) = (next_h, next_c);
        }
        if direction.reverse {
            hs.reverse();
            cs.reverse();
        }
        Ok(Steps { hs, cs, h, c })
    }
}

/// `xs` where the mask, `[.., 1]`, is 1, else `others`.
fn masked(mask: &Tensor, xs: &Tensor, others: &Tensor) -> CandleResult<Tensor> {
    debug_assert_eq!(mask.dtype(), DType::U8);
    mask.broadcast_as(xs.shape())?.where_cond(xs, others)
}
