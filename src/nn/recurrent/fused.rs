//! Recurrent layers by the kernels: quantized ones, and float ones on the CPU without gradients.

use std::slice::ChunksExactMut;

use candle_core::Tensor;

use super::kind::{CellState, Kind};
use super::schedule::Schedule;
use super::stack::{Input, Stack, States};
use super::state::read_state;
use super::steps::one_by_one;
use super::weights::Direction;
use crate::error::Result;
use crate::kernels::{self, Packed, Recurrence};
use crate::sizes;
use crate::tensor::{Elements, as_f32, from_f32_vec, without_gradient};

/// The cell state of an LSTM, which is replaced; empty of the other layers.
struct Memory<'a> {
    /// `[layers * directions, batch, hidden]`, of the longest sequence first.
    c: &'a mut [f32],
    /// Where c goes after each step, `[steps, batch, hidden]`, of one layer in one direction; empty
    /// if it is not asked for.
    cs: &'a mut [f32],
}

impl<K: Kind> Stack<K> {
    /// Runs all layers in f32.
    pub(super) fn by_kernels(
        &self,
        input: &Input<'_>,
        h_0: Option<&Tensor>,
        c_0: Option<&K::Cell>,
    ) -> Result<States<K::Cell>> {
        self.with_memory(input, h_0, c_0, &mut [])
    }

    /// Runs one layer in one direction in f32: the output, and c after each step.
    pub(super) fn each_by_kernels(
        &self,
        input: &Input<'_>,
        h_0: Option<&Tensor>,
        c_0: Option<&K::Cell>,
    ) -> Result<(Tensor, K::Cell)> {
        let shape = [input.steps, input.schedule.batch, self.shape.hidden];
        let count = sizes::elements("forward", &shape)?;
        let mut cs = vec![0.; if K::Cell::EXISTS { count } else { 0 }];
        let states = self.with_memory(input, h_0, c_0, &mut cs)?;
        let cs = K::Cell::of([], |[]| {
            let cs = from_f32_vec(cs, &shape, input.xs.dtype())?;
            marked::<K>(cs, input, h_0, c_0)
        })?;
        Ok((states.ys, cs))
    }

    fn with_memory(
        &self,
        input: &Input<'_>,
        h_0: Option<&Tensor>,
        c_0: Option<&K::Cell>,
        cs: &mut [f32],
    ) -> Result<States<K::Cell>> {
        let hidden = self.shape.hidden;
        let mut c = if K::Cell::EXISTS {
            let c_0 = c_0.and_then(K::Cell::tensor);
            self.read(input, "initial state c", c_0, hidden)?
        } else {
            Vec::new()
        };
        let (ys, h) = self.forward(input, h_0, Memory { c: &mut c, cs })?;
        let marked = |ys| marked::<K>(ys, input, h_0, c_0);
        Ok(States {
            ys: marked(ys)?,
            h: marked(h)?,
            c: K::Cell::of([], |[]| marked(self.write(input, c, hidden)?))?,
        })
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
        from_f32_vec(state, &self.state_shape(input, size), input.xs.dtype())
    }

    /// [`by_kernels`](Self::by_kernels) from the state `h_0` and `memory`, which is replaced: the
    /// output and the last h.
    fn forward(
        &self,
        input: &Input<'_>,
        h_0: Option<&Tensor>,
        Memory { c, cs }: Memory<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let Input {
            xs, axes, schedule, ..
        } = input;
        let f32s = as_f32(xs, "forward")?;
        let mut h = self.read(input, "initial state h", h_0, self.state_size())?;
        let of_batch = |size: usize| (schedule.batch * size).max(1);
        let mut hs = h.chunks_exact_mut(of_batch(self.state_size()));
        let mut c = c.chunks_exact_mut(of_batch(self.shape.hidden));

        let elements = Elements::of(&f32s);
        let rows = schedule.pack(elements.as_slice()?, self.shape.input, *axes);
        let mut rows = self.run_layer(0, &rows, schedule, [&mut hs, &mut c], cs)?;
        for layer in 1..self.config.num_layers {
            rows = self.run_layer(layer, &rows, schedule, [&mut hs, &mut c], &mut [])?;
        }

        let size = self.output_size();
        let shape = [&xs.dims()[..xs.rank() - 1], &[size]].concat();
        let ys = schedule.unpack(rows, size, *axes);
        let ys = from_f32_vec(ys, &shape, xs.dtype())?;
        Ok((ys, self.write(input, h, self.state_size())?))
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
        let state_size = self.state_size();
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

/// A result that refuses a backward pass if one of the tensors it was computed from tracks a
/// gradient.
fn marked<K: Kind>(
    result: Tensor,
    input: &Input<'_>,
    h_0: Option<&Tensor>,
    c_0: Option<&K::Cell>,
) -> Result<Tensor> {
    let sources = [Some(input.xs), h_0, c_0.and_then(K::Cell::tensor)];
    without_gradient(result, &sources.into_iter().flatten().collect::<Vec<_>>())
}
