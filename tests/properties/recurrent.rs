//! Recurrent layers and cells, whose sequences are alone with a scale per row and with halves.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use candle_dynquant::nn::{self, LSTMState, Nonlinearity, RecurrentConfig};
use candle_dynquant::{Layer, QConfig};
use candle_nn::VarBuilder;
use proptest::prelude::*;

use super::cases;
use super::values::{Values, View, bits, copied, dtype};

const INPUTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Lstm,
    Gru,
    Rnn(Nonlinearity),
}

impl Kind {
    fn any() -> impl Strategy<Value = Self> {
        let (tanh, relu) = (Nonlinearity::Tanh, Nonlinearity::Relu);
        let all = [Self::Lstm, Self::Gru, Self::Rnn(tanh), Self::Rnn(relu)];
        proptest::sample::select(all.to_vec())
    }

    fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Rnn(_) => 1,
        }
    }
}

/// A layer of any kind.
enum Sequence {
    Lstm(nn::LSTM),
    Gru(nn::GRU),
    Rnn(nn::RNN),
}

impl Sequence {
    fn new(
        kind: Kind,
        hidden: usize,
        config: RecurrentConfig,
        vb: VarBuilder<'_>,
        qconfig: &QConfig,
    ) -> Result<Self> {
        Ok(match kind {
            Kind::Lstm => Self::Lstm(nn::LSTM::new(INPUTS, hidden, config, vb)?.quantize(qconfig)?),
            Kind::Gru => Self::Gru(nn::GRU::new(INPUTS, hidden, config, vb)?.quantize(qconfig)?),
            Kind::Rnn(act) => {
                Self::Rnn(nn::RNN::new(INPUTS, hidden, act, config, vb)?.quantize(qconfig)?)
            }
        })
    }

    /// Output, and the state's tensors.
    fn forward(
        &self,
        xs: &Tensor,
        lengths: Option<&[usize]>,
        state: Option<&[Tensor]>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let h = state.map(|state| &state[0]);
        let (ys, h) = match (self, lengths) {
            (Self::Lstm(layer), _) => {
                let state = state.map(|s| LSTMState::new(s[0].clone(), s[1].clone()));
                let (ys, state) = match lengths {
                    Some(lengths) => layer.forward_lengths(xs, lengths, state.as_ref())?,
                    None => layer.forward(xs, state.as_ref())?,
                };
                return Ok((ys, vec![state.h, state.c]));
            }
            (Self::Gru(layer), Some(lengths)) => layer.forward_lengths(xs, lengths, h)?,
            (Self::Gru(layer), None) => layer.forward(xs, h)?,
            (Self::Rnn(layer), Some(lengths)) => layer.forward_lengths(xs, lengths, h)?,
            (Self::Rnn(layer), None) => layer.forward(xs, h)?,
        };
        Ok((ys, vec![h]))
    }
}

/// A cell of any kind.
enum Cell {
    Lstm(nn::LSTMCell),
    Gru(nn::GRUCell),
    Rnn(nn::RNNCell),
}

impl Cell {
    fn new(kind: Kind, hidden: usize, vb: VarBuilder<'_>, qconfig: &QConfig) -> Result<Self> {
        Ok(match kind {
            Kind::Lstm => {
                Self::Lstm(nn::LSTMCell::new(INPUTS, hidden, true, vb)?.quantize(qconfig)?)
            }
            Kind::Gru => Self::Gru(nn::GRUCell::new(INPUTS, hidden, true, vb)?.quantize(qconfig)?),
            Kind::Rnn(act) => {
                Self::Rnn(nn::RNNCell::new(INPUTS, hidden, true, act, vb)?.quantize(qconfig)?)
            }
        })
    }

    fn forward(&self, xs: &Tensor, state: Option<&[Tensor]>) -> Result<Vec<Tensor>> {
        let h = state.map(|state| &state[0]);
        Ok(match self {
            Self::Lstm(cell) => {
                let state = state.map(|s| LSTMState::new(s[0].clone(), s[1].clone()));
                let state = cell.forward(xs, state.as_ref())?;
                vec![state.h, state.c]
            }
            Self::Gru(cell) => vec![cell.forward(xs, h)?],
            Self::Rnn(cell) => vec![cell.forward(xs, h)?],
        })
    }
}

fn qconfig() -> impl Strategy<Value = QConfig> {
    prop_oneof![Just(QConfig::int8()), Just(QConfig::float16())]
}

/// Weights of every name that a layer or a cell may ask for.
fn weights(
    kind: Kind,
    hidden: usize,
    config: RecurrentConfig,
    values: Values,
    seed: u64,
) -> Result<VarBuilder<'static>> {
    let rows = kind.gates() * hidden;
    let state = match config.proj_size {
        0 => hidden,
        size => size,
    };
    let directions = 1 + usize::from(config.bidirectional);
    let mut tensors = HashMap::new();
    // A cell has the weights of the first layer.
    let mut suffixes = vec![(String::new(), INPUTS, seed)];
    for layer in 0..config.num_layers {
        let inputs = match layer {
            0 => INPUTS,
            _ => directions * state,
        };
        let seed = seed.wrapping_add(100 * layer as u64);
        suffixes.push((format!("_l{layer}"), inputs, seed));
        suffixes.push((format!("_l{layer}_reverse"), inputs, seed ^ 1 << 32));
    }
    for (suffix, inputs, seed) in suffixes {
        let shapes: [(&str, &[usize]); 5] = [
            ("weight_ih", &[rows, inputs]),
            ("weight_hh", &[rows, state]),
            ("bias_ih", &[rows]),
            ("bias_hh", &[rows]),
            ("weight_hr", &[config.proj_size, hidden]),
        ];
        for (i, (name, shape)) in shapes.into_iter().enumerate() {
            let tensor = values.tensor(shape, seed.wrapping_add(i as u64))?;
            tensors.insert(format!("{name}{suffix}"), tensor);
        }
    }
    Ok(VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu))
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn sequences_are_alone_however_their_batch_lies(
        (steps, batch, hidden) in (0..7usize, 0..9usize, 1..40usize),
        (values, view, dtype) in (Values::any(), View::any(), dtype()),
        (kind, num_layers, proj_size) in (Kind::any(), 1..3usize, 0..5usize),
        (bias, batch_first, bidirectional) in any::<(bool, bool, bool)>(),
        (qconfig, of_weight, seed) in (qconfig(), Values::finite(), any::<u64>()),
        lengths in proptest::collection::vec(any::<prop::sample::Index>(), 9),
    ) {
        let proj_size = match kind {
            Kind::Lstm if proj_size < hidden => proj_size,
            _ => 0,
        };
        let config = RecurrentConfig { num_layers, bias, batch_first, bidirectional, proj_size };
        let vb = weights(kind, hidden, config, of_weight, seed)?;
        // The values of a weight or bias may be too large for halves.
        let Ok(layer) = Sequence::new(kind, hidden, config, vb, &qconfig) else { return Ok(()) };
        let lengths = lengths.iter().map(|length| length.index(steps + 1));
        let lengths: Vec<usize> = lengths.take(batch).collect();
        let (shape, of_batch, of_steps) = if batch_first { ([batch, steps, INPUTS], 0, 1) } else { ([steps, batch, INPUTS], 1, 0) };
        let xs = view.of(&values.tensor(&shape, seed ^ 7)?.to_dtype(dtype)?)?;
        let (ys, state) = layer.forward(&xs, Some(&lengths), None)?;
        let plain = copied(&xs)?.to_dtype(dtype)?;
        let (same, _) = layer.forward(&plain, Some(&lengths), None)?;
        prop_assert_eq!(bits(&ys), bits(&same));
        for (sequence, length) in lengths.iter().enumerate() {
            let own = plain.narrow(of_batch, sequence, 1)?.narrow(of_steps, 0, *length)?;
            let (own_ys, own_state) = layer.forward(&own, None, None)?;
            let got = ys.narrow(of_batch, sequence, 1)?.narrow(of_steps, 0, *length)?;
            prop_assert_eq!(bits(&got), bits(&own_ys));
            for (got, own) in state.iter().zip(&own_state) {
                prop_assert_eq!(bits(&got.narrow(1, sequence, 1)?), bits(own));
            }
        }
    }

    #[test]
    fn a_sequence_is_the_same_in_one_piece_in_two_and_by_its_cell(
        (before, after, batch, hidden) in (0..5usize, 0..5usize, 1..6usize, 1..40usize),
        (values, view, kind) in (Values::any(), View::any(), Kind::any()),
        (qconfig, of_weight, seed) in (qconfig(), Values::finite(), any::<u64>()),
    ) {
        let config = RecurrentConfig::default();
        let vb = weights(kind, hidden, config, of_weight, seed)?;
        let Ok(layer) = Sequence::new(kind, hidden, config, vb.clone(), &qconfig) else { return Ok(()) };
        let cell = Cell::new(kind, hidden, vb, &qconfig)?;
        let steps = before + after;
        let xs = view.of(&values.tensor(&[steps, batch, INPUTS], seed ^ 7)?)?;
        let (ys, whole) = layer.forward(&xs, None, None)?;
        let (first, state) = layer.forward(&xs.narrow(0, 0, before)?, None, None)?;
        let (second, state) = layer.forward(&xs.narrow(0, before, after)?, None, Some(&state))?;
        prop_assert_eq!(bits(&ys), [bits(&first), bits(&second)].concat());
        let mut by_cell = None;
        for step in 0..steps {
            by_cell = Some(cell.forward(&xs.get(step)?, by_cell.as_deref())?);
        }
        for (i, whole) in whole.iter().enumerate() {
            prop_assert_eq!(bits(whole), bits(&state[i]));
            if let Some(state) = &by_cell {
                prop_assert_eq!(bits(whole), bits(&state[i]));
            }
        }
    }
}
