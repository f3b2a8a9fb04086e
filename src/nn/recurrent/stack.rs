//! The layers and directions of a recurrent layer.

use std::sync::Arc;

use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;

use super::config::RecurrentConfig;
use super::kind::{CellState, Gated, RecurrentKind};
pub(super) use super::schedule::Axes;
use super::schedule::Schedule;
use super::state::Given;
use super::weights::{Direction, DirectionShape, Inits, check_input, is_for_kernels};
use crate::error::{Error, Result};
use crate::nn::prefix::prefix_of;
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tap::{self, Tap};
use crate::tensor::mismatch;

/// Recurrent layers over a sequence: [`LSTM`](super::LSTM), [`GRU`](super::GRU) and
/// [`RNN`](super::RNN).
#[derive(Clone, Debug)]
pub struct Recurrent<K> {
    pub(super) kind: K,
    /// The sizes of the first layer.
    pub(super) shape: DirectionShape,
    pub(super) config: RecurrentConfig,
    name: Option<Arc<str>>,
    /// Layer 0 forward, layer 0 reverse if there is one, layer 1 forward, ..
    pub(super) directions: Vec<Direction>,
    pub(super) tap: Option<Tap>,
}

/// The input of a forward call, checked.
pub(super) struct Input<'a> {
    /// `xs` is `[steps, batch, input]` or as the axes say, or `[steps, input]` without a batch.
    pub given: Given<'a>,
    pub axes: Axes,
    lengths: Option<&'a [usize]>,
    pub schedule: Schedule,
    pub steps: usize,
}

/// The result of a forward call, in the dtype of the input.
pub(super) struct States<C> {
    /// `[steps, batch, directions * state]`, or as the axes of the input.
    pub ys: Tensor,
    /// The last h, `[layers * directions, batch, state]`.
    pub h: Tensor,
    /// The last c, `[layers * directions, batch, hidden]`.
    pub c: C,
}

impl<K: Gated> Recurrent<K> {
    /// Loads the layer from `vb`.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape, or the options make no sense.
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        config: RecurrentConfig,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        Self::load(K::default(), [input_size, hidden_size], config, &vb)
    }
}

impl<K: RecurrentKind> Recurrent<K> {
    /// The output and the last state; the state before the first step is `state`, or zeros. The
    /// state of an LSTM is candle's `LSTMState`, else it is the tensor `h`.
    ///
    /// # Errors
    /// When the input or the state has a wrong shape or dtype, or is on another device than the
    /// weights.
    pub fn forward(&self, xs: &Tensor, state: Option<&K::State>) -> Result<(Tensor, K::State)> {
        self.run_sequences(xs, None, state)
    }

    /// [`forward`](Self::forward) over sequences of different lengths: the rest of each is
    /// padding, which influences nothing and is zero in the output.
    ///
    /// # Errors
    /// Also when there is not one length a sequence, or one is longer than the input.
    pub fn forward_lengths(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        state: Option<&K::State>,
    ) -> Result<(Tensor, K::State)> {
        self.run_sequences(xs, Some(lengths), state)
    }

    fn run_sequences(
        &self,
        xs: &Tensor,
        lengths: Option<&[usize]>,
        state: Option<&K::State>,
    ) -> Result<(Tensor, K::State)> {
        let _span = K::span(false, self.name());
        let input = self.input(K::given(xs, state), self.axes(), lengths);
        let (states, _) = self.named(input.and_then(|input| self.run(&input, false)))?;
        Ok((states.ys, K::state(states.h, states.c)))
    }

    /// A result whose error names the layer.
    pub(super) fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match self.name() {
            Some(name) => error.at(name),
            None => error.at(&K::KINDS[0].to_string()),
        })
    }

    /// Loads the weights under PyTorch's names.
    pub(super) fn load(
        kind: K,
        [input, hidden]: [usize; 2],
        config: RecurrentConfig,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let shape = DirectionShape::new(kind.gates(), input, hidden);
        let wrong = |what, expected: &str, got: usize| {
            let error = Error::argument(what, expected, got);
            Err(error.at(&vb.prefix()))
        };
        if config.num_layers == 0 {
            return wrong("num_layers", "at least 1", 0);
        }
        if config.proj_size > 0 && !K::Cell::EXISTS {
            return wrong("proj_size", "0 for any layer but LSTM", config.proj_size);
        }
        if config.proj_size >= shape.hidden.max(1) {
            return wrong("proj_size", "less than hidden_size", config.proj_size);
        }
        let mut stack = Self {
            kind,
            shape: DirectionShape { proj: config.proj_size, ..shape },
            config,
            name: prefix_of(vb),
            directions: Vec::new(),
            tap: None,
        };
        for layer in 0..config.num_layers {
            for suffix in ["", "_reverse"].iter().take(stack.direction_count()) {
                let input = match layer {
                    0 => shape.input,
                    _ => stack.output_size(),
                };
                let shape = DirectionShape { input, ..stack.shape };
                let inits = Inits::uniform(shape.hidden, config.bias);
                let suffix = format!("_l{layer}{suffix}");
                let direction = Direction::load(shape, suffix, inits, vb)?;
                stack.directions.push(direction);
            }
        }
        Ok(stack)
    }

    /// A single direction of a single layer, as candle's own layers are, loaded from `vb`.
    pub(super) fn single(
        kind: K,
        [input, hidden]: [usize; 2],
        suffix: String,
        inits: Inits,
        vb: &VarBuilder<'_>,
    ) -> CandleResult<Self> {
        let shape = DirectionShape::new(kind.gates(), input, hidden);
        let direction = Direction::load(shape, suffix, inits, vb)?;
        let config = RecurrentConfig { batch_first: true, ..Default::default() };
        Ok(Self {
            kind,
            shape,
            config,
            name: prefix_of(vb),
            // candle's callers turn the sequence around themselves.
            directions: vec![Direction { reverse: false, ..direction }],
            tap: None,
        })
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Dtype of the weights, dequantized ones being f32.
    pub(super) fn dtype(&self) -> DType {
        self.directions.first().map_or(DType::F32, |d| d.ih.dtype())
    }

    /// The device of the weights.
    pub(super) fn device(&self) -> Device {
        let first = self.directions.first().map(|direction| &direction.ih);
        let float = first.filter(|ih| ih.qweight().is_none());
        float.map_or(Device::Cpu, |ih| ih.weight().device().clone())
    }

    pub(super) fn axes(&self) -> Axes {
        if self.config.batch_first { Axes::BatchFirst } else { Axes::StepsFirst }
    }

    pub(super) fn direction_count(&self) -> usize {
        if self.config.bidirectional { 2 } else { 1 }
    }

    pub(super) fn output_size(&self) -> usize {
        self.direction_count() * self.shape.state()
    }

    pub(super) fn directions(&self) -> &[Direction] {
        &self.directions
    }

    pub(super) fn quantized(&self, qconfig: &QConfig) -> Result<Self> {
        let directions = self.directions.iter();
        let directions = directions.map(|direction| direction.quantize(qconfig));
        Ok(Self {
            directions: directions.collect::<Result<_>>()?,
            name: self.name.clone(),
            tap: None,
            ..*self
        })
    }

    /// Checks `xs`, `[steps, batch, input]` or as `axes` says, or `[steps, input]` for one sequence
    /// without a batch.
    pub(super) fn input<'a>(
        &self,
        given: Given<'a>,
        axes: Axes,
        lengths: Option<&'a [usize]>,
    ) -> Result<Input<'a>> {
        let xs = given.xs;
        check_input(&self.directions, xs)?;
        let (steps, batch) = match (xs.dims(), axes) {
            (&[steps, batch, last], Axes::StepsFirst)
            | (&[batch, steps, last], Axes::BatchFirst)
                if last == self.shape.input =>
            {
                (steps, batch)
            }
            (&[steps, last], _) if last == self.shape.input => (steps, 1),
            _ => {
                let outer = match axes {
                    Axes::StepsFirst => "steps, batch",
                    Axes::BatchFirst => "batch, steps",
                };
                let expected = format!("[{outer}, {0}] or [steps, {0}]", self.shape.input);
                return Err(mismatch("forward", expected, xs));
            }
        };
        let products = self.shape.gates.count() * self.shape.hidden;
        for width in [products, self.output_size()] {
            // Each sequence has a state, each step a schedule.
            let computed = [steps.max(1), batch, width.max(1)];
            sizes::computed("forward", &computed, xs.elem_count())?;
        }
        Ok(Input { given, axes, lengths, schedule: Schedule::new(steps, batch, lengths)?, steps })
    }

    /// Runs all layers over the input; and if `each` is asked for, which is for one layer in one
    /// direction, c after each step, `[steps, batch, hidden]`.
    pub(super) fn run(&self, input: &Input<'_>, each: bool) -> Result<(States<K::Cell>, K::Cell)> {
        if each {
            // Each step has a separate state.
            sizes::computed("forward", &[input.steps], input.given.xs.elem_count())?;
        }
        let sizes = [input.schedule.rows, self.shape.hidden];
        let (states, cs) = if is_for_kernels(&self.directions, input.given, sizes) {
            self.by_kernels(input, each)?
        } else {
            self.by_candle(input)?
        };
        self.report(input, &states.ys)?;
        Ok((states, cs))
    }

    /// Reports to a tap the sequence, the initial states and the lengths, as u32, that were given,
    /// and the output.
    fn report(&self, input: &Input<'_>, ys: &Tensor) -> Result<()> {
        let Some(tap) = &self.tap else {
            return Ok(());
        };
        let own_axes = |tensor: &Tensor| {
            if input.axes == self.axes() { Ok(tensor.clone()) } else { tensor.transpose(0, 1) }
        };
        let Given { xs, h, c } = input.given;
        let xs = own_axes(xs)?;
        let lengths = input.lengths.map(|lengths| {
            let lengths = lengths.iter().map(|length| *length as u32);
            Tensor::from_iter(lengths, &Device::Cpu)
        });
        let lengths = lengths.transpose()?;
        let inputs = [Some(&xs), h, c, lengths.as_ref()];
        let inputs: Vec<_> = inputs.into_iter().flatten().collect();
        tap.report(&inputs, &own_axes(ys)?);
        Ok(())
    }

    /// The output for inputs as they are reported.
    pub(super) fn output(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let (lengths, inputs) = match inputs.split_last() {
            Some((last, rest)) if last.dtype() == DType::U32 => {
                let lengths = last.to_vec1::<u32>()?.into_iter();
                (Some(lengths.map(|length| length as usize).collect()), rest)
            }
            _ => (None::<Vec<_>>, inputs),
        };
        let given = Given::from_reported(inputs);
        let given = given.ok_or_else(|| tap::unlike("a sequence and states", inputs))?;
        let silent = Self { tap: None, ..self.clone() };
        let input = silent.input(given, silent.axes(), lengths.as_deref())?;
        Ok(silent.run(&input, false)?.0.ys)
    }

    /// The shape of a state of all layers and directions.
    pub(super) fn state_shape(&self, input: &Input<'_>, size: usize) -> Vec<usize> {
        match input.given.xs.rank() {
            3 => vec![self.directions.len(), input.schedule.batch, size],
            _ => vec![self.directions.len(), size],
        }
    }
}
