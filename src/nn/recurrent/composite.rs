//! Float layers by candle's operations: with gradients, and on any device.

use candle_core::{D, DType, IndexOp, Result as CandleResult, Tensor};

use super::kind::{CellState, RecurrentKind};
use super::stack::{Axes, Input, Recurrent, States};
use super::state::{Given, as_rows};
use super::weights::Direction;
use crate::error::Result;
use crate::sizes;

/// The steps of one direction.
struct Steps<C> {
    /// The h after each step, in the order of the input; zeros where a sequence is over.
    hs: Vec<Tensor>,
    cs: Vec<Tensor>,
    h: Tensor,
    c: C,
}

impl<K: RecurrentKind> Recurrent<K> {
    /// All layers, as the kernels run them, in the dtype of the weights; and c after each step of
    /// the last direction, `[steps, batch, hidden]`.
    pub(super) fn by_candle(&self, input: &Input<'_>) -> Result<(States<K::Cell>, K::Cell)> {
        let (dtype, Given { xs, h, c }) = (self.dtype(), input.given);
        let h_0 = self.states(input, "initial state h", h, self.shape.state())?;
        let c_0 =
            K::Cell::apply([], |[]| self.states(input, "initial state c", c, self.shape.hidden))?;
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
        for directions in self.directions.chunks(self.direction_count()) {
            let mut outs = Vec::new();
            for direction in directions {
                let h = h_0.i(last_h.len())?;
                let c = K::Cell::apply([&c_0], |[c]| Ok(c.i(last_h.len())?))?;
                let steps = self.steps(direction, &rows, masks.as_ref(), h, c)?;
                outs.push(Tensor::stack(&steps.hs, 0)?);
                last_h.push(steps.h);
                last_c.extend(steps.c.tensor().cloned());
                cs = steps.cs;
            }
            rows = Tensor::cat(&outs, D::Minus1)?;
        }
        let ys = match (xs.rank(), input.axes) {
            (2, _) => rows.squeeze(1)?,
            (_, Axes::BatchFirst) => rows.transpose(0, 1)?,
            (_, Axes::StepsFirst) => rows,
        };
        let all = |parts: &[Tensor]| Tensor::stack(parts, 0)?.to_dtype(xs.dtype());
        let state = |parts: &[Tensor]| match xs.rank() {
            2 => all(parts)?.squeeze(1),
            _ => all(parts),
        };
        let states = States {
            ys: ys.contiguous()?.to_dtype(xs.dtype())?,
            h: state(&last_h)?,
            c: K::Cell::apply([], |[]| Ok(state(&last_c)?))?,
        };
        Ok((states, K::Cell::apply([], |[]| Ok(all(&cs)?))?))
    }

    /// States of all layers and directions, `[layers * directions, batch, size]`; zeros for none.
    fn states(
        &self,
        input: &Input<'_>,
        op: &'static str,
        given: Option<&Tensor>,
        size: usize,
    ) -> Result<Tensor> {
        let all = [self.directions.len(), input.schedule.batch, size];
        let device = input.given.xs.device();
        sizes::allocated(op, &all)?;
        let shape = self.state_shape(input, size);
        as_rows(op, given, [&shape, &all], self.dtype(), device)
    }

    fn steps(
        &self,
        direction: &Direction,
        rows: &Tensor,
        masks: Option<&Tensor>,
        mut h: Tensor,
        mut c: K::Cell,
    ) -> Result<Steps<K::Cell>> {
        let ih = direction.ih.try_forward(rows)?;
        let steps = rows.dim(0)?;
        let (mut hs, mut cs) = (Vec::new(), Vec::new());
        for count in 0..steps {
            let at = if direction.reverse { steps - 1 - count } else { count };
            let hh = direction.hh.try_forward(&h)?;
            let (mut next_h, mut next_c) = self.kind.step([&ih.i(at)?, &hh], &h, &c)?;
            if let Some(hr) = &direction.hr {
                next_h = hr.try_forward(&next_h)?;
            }
            if let Some(masks) = masks {
                let mask = masks.i(at)?;
                hs.push(masked(&mask, &next_h, &next_h.zeros_like()?)?);
                next_h = masked(&mask, &next_h, &h)?;
                next_c = K::Cell::apply([&next_c, &c], |[next, c]| Ok(masked(&mask, next, c)?))?;
            } else {
                hs.push(next_h.clone());
            }
            cs.extend(next_c.tensor().cloned());
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
