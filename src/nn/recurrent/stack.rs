//! The layers and directions of a recurrent layer, and the loop over its steps.

use std::sync::Arc;

use candle_core::{DType, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;

use super::run::Run;
pub(super) use super::schedule::Axes;
use super::schedule::Schedule;
use super::weights::{Direction, Inits, Shape};
use super::{RecurrentConfig, read_state, uniform_init};
use crate::error::{Error, Result};
use crate::kernels::{self, Gates};
use crate::module::WeightInfo;
use crate::nn::prefix_of;
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tensor::{Elements, as_f32, check_cpu_float, from_f32_vec, mismatch};

/// The weights of all layers and directions.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    gates: Gates,
    input_size: usize,
    hidden_size: usize,
    config: RecurrentConfig,
    name: Option<Arc<str>>,
    /// Layer 0 forward, layer 0 reverse if there is one, layer 1 forward, ..
    directions: Vec<Direction>,
}

/// The input of a forward call, checked.
pub(super) struct Input<'a> {
    /// `[steps, batch, input]` or as the axes say, or `[steps, input]` without a batch.
    xs: &'a Tensor,
    axes: Axes,
    schedule: Schedule,
    steps: usize,
}

/// The cell state of an LSTM, which is replaced; empty of the other layers.
#[derive(Default)]
pub(super) struct Memory<'a> {
    /// `[layers * directions, batch, hidden]`.
    pub c: &'a mut [f32],
    /// Where the last direction's c goes after each step, `[steps, batch, hidden]`.
    pub cs: Option<&'a mut Vec<f32>>,
}

impl Stack {
    /// Loads the weights under PyTorch's names.
    pub fn load(
        gates: Gates,
        input_size: usize,
        hidden_size: usize,
        config: RecurrentConfig,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let wrong = |what, expected: &str, got: usize| {
            Err(Error::InvalidArgument {
                what,
                expected: expected.to_owned(),
                got: got.to_string(),
            })
        };
        if config.num_layers == 0 {
            return wrong("num_layers", "at least 1", 0);
        }
        if config.proj_size > 0 && gates != Gates::Lstm {
            return wrong("proj_size", "0 for any layer but LSTM", config.proj_size);
        }
        if config.proj_size > 0 && config.proj_size >= hidden_size {
            return wrong("proj_size", "less than hidden_size", config.proj_size);
        }
        let init = uniform_init(hidden_size);
        let mut stack = Self {
            gates,
            input_size,
            hidden_size,
            config,
            name: prefix_of(vb),
            directions: Vec::new(),
        };
        for layer in 0..config.num_layers {
            for suffix in ["", "_reverse"].iter().take(stack.direction_count()) {
                let in_size = match layer {
                    0 => input_size,
                    _ => stack.output_size(),
                };
                let inits = Inits {
                    w_ih: init,
                    w_hh: init,
                    b_ih: config.bias.then_some(init),
                    b_hh: config.bias.then_some(init),
                };
                let suffix = format!("_l{layer}{suffix}");
                let direction = Direction::load(stack.shape(in_size), suffix, inits, vb)?;
                stack.directions.push(direction);
            }
        }
        Ok(stack)
    }

    /// One direction of one layer, as candle's own layers are.
    pub fn load_single(
        gates: Gates,
        input_size: usize,
        hidden_size: usize,
        suffix: String,
        inits: Inits,
        vb: &VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let mut stack = Self {
            gates,
            input_size,
            hidden_size,
            config: RecurrentConfig {
                batch_first: true,
                ..Default::default()
            },
            name: prefix_of(vb),
            directions: Vec::new(),
        };
        let mut direction = Direction::load(stack.shape(input_size), suffix, inits, vb)?;
        // candle's callers turn the sequence around themselves.
        direction.reverse = false;
        stack.directions.push(direction);
        Ok(stack)
    }

    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// Dtype of the weights, dequantized ones being f32.
    pub fn dtype(&self) -> DType {
        self.directions.first().map_or(DType::F32, |d| d.ih.dtype())
    }

    pub fn is_single(&self) -> bool {
        self.directions.len() == 1
    }

    pub fn axes(&self) -> Axes {
        match self.config.batch_first {
            true => Axes::BatchFirst,
            false => Axes::StepsFirst,
        }
    }

    fn direction_count(&self) -> usize {
        if self.config.bidirectional { 2 } else { 1 }
    }

    /// The sizes of a direction of so many inputs.
    fn shape(&self, input: usize) -> Shape {
        Shape {
            gates: self.gates,
            input,
            hidden: self.hidden_size,
            proj: self.config.proj_size,
        }
    }

    /// Size of the hidden state as the next step and layer see it.
    fn state_size(&self) -> usize {
        self.shape(self.input_size).state()
    }

    fn output_size(&self) -> usize {
        self.direction_count() * self.state_size()
    }

    pub fn weights(&self) -> Vec<WeightInfo> {
        self.directions
            .iter()
            .flat_map(Direction::weights)
            .collect()
    }

    pub fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        let directions = self.directions.iter();
        let directions = directions.map(|direction| direction.quantize(qconfig));
        Ok(Self {
            directions: directions.collect::<Result<_>>()?,
            name: self.name.clone(),
            ..*self
        })
    }

    /// [`forward`](Self::forward) of a layer whose state is h alone.
    pub fn forward_h(
        &self,
        kind: &str,
        xs: &Tensor,
        lengths: Option<&[usize]>,
        h: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let run = || {
            let input = self.input(xs, self.axes(), lengths)?;
            self.forward(&input, h, Memory::default())
        };
        run().map_err(|e| e.at(self.name().unwrap_or(kind)))
    }

    /// Checks `xs`, `[steps, batch, input]` or as `axes` says, or `[steps, input]` for one sequence
    /// without a batch.
    pub fn input<'a>(
        &self,
        xs: &'a Tensor,
        axes: Axes,
        lengths: Option<&[usize]>,
    ) -> Result<Input<'a>> {
        check_cpu_float(xs, "forward")?;
        let (steps, batch) = match (xs.dims(), axes) {
            (&[steps, batch, last], Axes::StepsFirst)
            | (&[batch, steps, last], Axes::BatchFirst)
                if last == self.input_size =>
            {
                (steps, batch)
            }
            (&[steps, last], _) if last == self.input_size => (steps, 1),
            _ => {
                let outer = match axes {
                    Axes::StepsFirst => "steps, batch",
                    Axes::BatchFirst => "batch, steps",
                };
                let expected = format!("[{outer}, {0}] or [steps, {0}]", self.input_size);
                return Err(mismatch("forward", expected, xs));
            }
        };
        for width in [self.gates.count() * self.hidden_size, self.output_size()] {
            sizes::elements("forward", &[steps, batch, width])?;
        }
        Ok(Input {
            xs,
            axes,
            schedule: Schedule::new(steps, batch, lengths)?,
            steps,
        })
    }

    /// The cell state of an LSTM before the first step: `c_0`, or zeros.
    pub fn read_c(&self, input: &Input<'_>, c_0: Option<&Tensor>) -> Result<Vec<f32>> {
        let shape = self.state_shape(input, self.hidden_size);
        read_state("initial state c", c_0, &shape)
    }

    /// The cell state of all layers and directions as a tensor.
    pub fn c(&self, input: &Input<'_>, c: Vec<f32>) -> Result<Tensor> {
        let shape = self.state_shape(input, self.hidden_size);
        from_f32_vec(c, &shape, input.xs.dtype())
    }

    /// That of the last direction after each step.
    pub fn cs(&self, input: &Input<'_>, cs: Vec<f32>) -> Result<Tensor> {
        let shape = [input.steps, input.schedule.batch, self.hidden_size];
        from_f32_vec(cs, &shape, input.xs.dtype())
    }

    /// The shape of a state of all layers and directions.
    fn state_shape(&self, input: &Input<'_>, size: usize) -> Vec<usize> {
        match input.xs.rank() {
            3 => vec![self.directions.len(), input.schedule.batch, size],
            _ => vec![self.directions.len(), size],
        }
    }

    /// Runs all layers over the input, from the state `h_0` and `memory`, which is replaced: the
    /// output, `[steps, batch, directions * state]` or as the axes of the input, and the last h,
    /// `[layers * directions, batch, state]`.
    pub fn forward(
        &self,
        input: &Input<'_>,
        h_0: Option<&Tensor>,
        mut memory: Memory<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let Input {
            xs, axes, schedule, ..
        } = input;
        let f32s = as_f32(xs, "forward")?;
        let h_shape = self.state_shape(input, self.state_size());
        let mut h = read_state("initial state h", h_0, &h_shape)?;

        let elements = Elements::of(&f32s);
        let rows = schedule.pack(elements.as_slice()?, self.input_size, *axes);
        let mut rows = self.run_layer(0, &rows, schedule, &mut h, &mut memory)?;
        for layer in 1..self.config.num_layers {
            rows = self.run_layer(layer, &rows, schedule, &mut h, &mut memory)?;
        }

        let size = self.output_size();
        let shape = [&xs.dims()[..xs.rank() - 1], &[size]].concat();
        let ys = schedule.unpack(rows, size, *axes);
        Ok((
            from_f32_vec(ys, &shape, xs.dtype())?,
            from_f32_vec(h, &h_shape, xs.dtype())?,
        ))
    }

    /// Runs both directions of a layer over packed rows and returns its packed output.
    fn run_layer(
        &self,
        layer: usize,
        rows: &[f32],
        schedule: &Schedule,
        h: &mut [f32],
        Memory { c, cs }: &mut Memory<'_>,
    ) -> Result<Vec<f32>> {
        let (state_size, hidden_size) = (self.state_size(), self.hidden_size);
        let sides = 0..self.direction_count();
        let first = layer * sides.len();
        let part = |side: usize, size: usize| {
            let start = (first + side) * schedule.batch * size;
            start..start + schedule.batch * size
        };
        let c_size = match self.gates {
            Gates::Lstm => hidden_size,
            _ => 0,
        };
        let mut runs: Vec<Run<'_>> = sides
            .map(|side| Run {
                gates: self.gates,
                hidden_size,
                state_size,
                direction: &self.directions[first + side],
                schedule,
                steps: schedule.rows_of_steps(self.directions[first + side].reverse),
                h: schedule.sort(&h[part(side, state_size)], state_size),
                c: schedule.sort(&c[part(side, c_size)], c_size),
                cs: cs.as_ref().map(|_| Vec::new()),
                out: Vec::new(),
            })
            .collect();
        let quantized = runs.iter().map(|run| run.direction.quantized());
        match quantized.collect::<Option<Vec<_>>>().as_deref() {
            Some(weights @ [(_, activations), ..]) => {
                let directions = runs.iter_mut().zip(weights);
                let directions = directions.map(|(run, (weights, _))| run.recurrence(*weights));
                kernels::recur(rows, directions.collect(), *activations);
            }
            _ => runs.iter_mut().try_for_each(|run| run.one_by_one(rows))?,
        }
        for (side, run) in runs.iter().enumerate() {
            schedule.restore(&run.h, state_size, &mut h[part(side, state_size)]);
            schedule.restore(&run.c, c_size, &mut c[part(side, c_size)]);
            if let (Some(all), Some(own)) = (cs.as_mut(), &run.cs) {
                all.extend_from_slice(own);
            }
        }
        let mut outs = runs.into_iter().map(|run| run.out);
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
