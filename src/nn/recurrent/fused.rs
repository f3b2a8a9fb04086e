//! Recurrent layers by the kernels: quantized ones, and float ones on the CPU without gradients.

use std::slice::ChunksExactMut;

use candle_core::Tensor;

use super::kind::{CellState, RecurrentKind};
use super::schedule::Schedule;
use super::stack::{Input, Recurrent, States};
use super::state::{Given, read_state};
use super::steps::one_by_one;
use super::weights::Direction;
use crate::error::Result;
use crate::kernels::{self, Packed, Recurrence};
use crate::sizes;
use crate::tensor::{Elements, as_f32, from_f32_vec, without_gradient};

impl<K: RecurrentKind> Recurrent<K> {
    /// Runs all layers in f32; and if `each` is asked for, c after each step.
    pub(super) fn by_kernels(
        &self,
        input: &Input<'_>,
        each: bool,
    ) -> Result<(States<K::Cell>, K::Cell)> {
        let Given { xs, h, c } = input.given;
        let (schedule, axes) = (&input.schedule, input.axes);
        let (state, hidden) = (self.shape.state(), self.shape.hidden);
        let of_each = [if each { input.steps } else { 0 }, schedule.batch, hidden];
        let count = sizes::allocated("forward", &of_each)?;
        let (mut c, mut cs) = if K::Cell::EXISTS {
            (self.read(input, "initial state c", c, hidden)?, vec![0.; count])
        } else {
            (Vec::new(), Vec::new())
        };
        let f32s = as_f32(xs, "forward")?;
        let mut h = self.read(input, "initial state h", h, state)?;
        let of_batch = |size: usize| (schedule.batch * size).max(1);
        let mut hs_of = h.chunks_exact_mut(of_batch(state));
        let mut cs_of = c.chunks_exact_mut(of_batch(hidden));

        let elements = Elements::new(&f32s);
        let rows = schedule.pack(elements.as_slice()?, self.shape.input, axes);
        let mut rows = self.run_layer(0, &rows, schedule, [&mut hs_of, &mut cs_of], &mut cs)?;
        for layer in 1..self.config.num_layers {
            rows = self.run_layer(layer, &rows, schedule, [&mut hs_of, &mut cs_of], &mut [])?;
        }

        let size = self.output_size();
        let shape = [&xs.dims()[..xs.rank() - 1], &[size]].concat();
        let ys = schedule.unpack(rows, size, axes);
        // A backward pass is refused if one of the tensors that were given tracks a gradient.
        let sources = input.given.tensors();
        let marked = |ys| without_gradient(ys, &sources);
        let tensor = |values, shape: &[usize]| marked(from_f32_vec(values, shape, xs.dtype())?);
        let states = States {
            ys: tensor(ys, &shape)?,
            h: marked(self.write(input, h, state)?)?,
            c: K::Cell::apply([], |[]| marked(self.write(input, c, hidden)?))?,
        };
        Ok((states, K::Cell::apply([], |[]| tensor(cs, &of_each))?))
    }

    /// A state of all layers and directions, of the longest sequence first; zeros where none is
    /// given.
    fn read(
        &self,
        input: &Input<'_>,
        op: &'static str,
        state: Option<&Tensor>,
        size: usize,
    ) -> Result<Vec<f32>> {
        let sort = |state: &[f32]| input.schedule.sort(state, size);
        read_state(op, state, &self.state_shape(input, size), sort)
    }

    /// The inverse of [`read`](Self::read), in the dtype of the input.
    fn write(&self, input: &Input<'_>, state: Vec<f32>, size: usize) -> Result<Tensor> {
        let state = input.schedule.restore(state, size);
        from_f32_vec(state, &self.state_shape(input, size), input.given.xs.dtype())
    }

    /// Runs both directions of a layer over packed rows and returns its packed output. `h` and `c`
    /// are the states of this layer's directions and of those behind it.
    fn run_layer(
        &self,
        layer: usize,
        rows: &[f32],
        schedule: &Schedule,
        [h, c]: [&mut ChunksExactMut<'_, f32>; 2],
        mut cs: &mut [f32],
    ) -> Result<Vec<f32>> {
        let state_size = self.shape.state();
        let count = self.direction_count();
        let directions = &self.directions[layer * count..][..count];
        let steps = directions.iter().map(|d| schedule.rows_of_steps(d.reverse));
        let steps: Vec<_> = steps.collect();
        let mut outs = vec![vec![0.; schedule.rows * state_size]; count];
        let runs = directions.iter().zip(&steps).zip(&mut outs);
        let runs: Vec<_> = runs
            .map(|((weights, steps), hs)| Recurrence {
                gates: self.shape.gates,
                steps,
                weights,
                // A state without elements has no part.
                h: h.next().unwrap_or_default(),
                c: c.next().unwrap_or_default(),
                hs,
                cs: std::mem::take(&mut cs),
            })
            .collect();
        let packed = directions.iter().map(Direction::packed);
        let packed = packed.collect::<Option<Vec<_>>>().unwrap_or_default();
        let alike = |[a, b]: [&[&Packed; 2]; 2]| a[0].element() == b[0].element();
        match &packed[..] {
            [first, rest @ ..] if rest.iter().all(|other| alike([first, other])) => {
                let runs = runs.into_iter().zip(&packed);
                let runs = runs.map(|(run, weights)| run.with(*weights));
                kernels::recur(rows, runs.collect());
            }
            _ => runs.into_iter().try_for_each(|run| one_by_one(run, rows))?,
        }
        let mut outs = outs.into_iter();
        Ok(match (outs.next(), outs.next()) {
            (Some(forward), Some(reverse)) => {
                let size = state_size.max(1);
                let mut both = Vec::with_capacity(2 * forward.len());
                for (forward, reverse) in forward.chunks_exact(size).zip(reverse.chunks_exact(size))
                {
                    both.extend_from_slice(forward);
                    both.extend_from_slice(reverse);
                }
                both
            }
            (forward, _) => forward.unwrap_or_default(),
        })
    }
}
