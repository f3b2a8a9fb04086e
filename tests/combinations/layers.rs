//! The layers, small, and their inputs.

use candle_core::Result;

use crate::kit::*;

/// Numbers in [-1, 1) that depend on nothing but the seed.
pub fn values(count: usize, seed: u64) -> Vec<f32> {
    let mixed = |i: usize| {
        let mixed = (i as u64 + 1 + 1_000 * seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40
    };
    (0..count).map(|i| mixed(i) as f32 / (1u64 << 23) as f32 - 1.).collect()
}

pub fn tensor(shape: &[usize], seed: u64) -> Result<Tensor> {
    Tensor::from_vec(values(shape.iter().product(), seed), shape, &Device::Cpu)
}

pub fn floats(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

pub const INPUTS: usize = 7;
pub const HIDDEN: usize = 5;
pub const STEPS: usize = 3;
pub const BATCH: usize = 2;

/// A layer, its gates' name, and its projections.
pub enum Built {
    Linear(nn::Linear),
    Lstm(nn::LSTM),
    Gru(nn::GRU),
    Rnn(nn::RNN),
    LstmCell(nn::LSTMCell),
    GruCell(nn::GRUCell),
    RnnCell(nn::RNNCell),
}

pub const KINDS: [(&str, &str); 9] = [
    ("Linear", ""),
    ("LSTM", "LSTM"),
    ("GRU", "GRU"),
    ("RNN", "tanh"),
    ("RNN", "relu"),
    ("LSTMCell", "LSTM"),
    ("GRUCell", "GRU"),
    ("RNNCell", "tanh"),
    ("RNNCell", "relu"),
];

/// Weight and bias of the input's and of the hidden state's projection.
pub fn float_projections(gates: &str, bias: bool) -> Result<[nn::Projection; 2]> {
    let rows = HIDDEN
        * match gates {
            "LSTM" => 4,
            "GRU" => 3,
            _ => 1,
        };
    let bias = |seed| bias.then(|| tensor(&[rows], seed)).transpose();
    Ok([
        nn::Projection::new(tensor(&[rows, INPUTS], 1)?, bias(2)?),
        nn::Projection::new(tensor(&[rows, HIDDEN], 3)?, bias(4)?),
    ])
}

pub fn build(kind: &str, gates: &str, bias: bool) -> Result<Built> {
    let [ih, hh] = float_projections(gates, bias)?;
    if kind == "Linear" {
        return Ok(Built::Linear(nn::Linear::new(ih.weight().clone(), ih.bias().cloned())));
    }
    let suffix = if kind.ends_with("Cell") { "" } else { "_l0" };
    let mut tensors = HashMap::new();
    for (name, projection) in [("ih", &ih), ("hh", &hh)] {
        tensors.insert(format!("weight_{name}{suffix}"), projection.weight().clone());
        if let Some(bias) = projection.bias() {
            tensors.insert(format!("bias_{name}{suffix}"), bias.clone());
        }
    }
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let config = nn::RecurrentConfig { bias, ..Default::default() };
    let nonlinearity = match gates {
        "relu" => nn::Nonlinearity::Relu,
        _ => nn::Nonlinearity::Tanh,
    };
    let (i, h) = (INPUTS, HIDDEN);
    Ok(match kind {
        "LSTM" => Built::Lstm(nn::LSTM::new(i, h, config, vb)?),
        "GRU" => Built::Gru(nn::GRU::new(i, h, config, vb)?),
        "RNN" => Built::Rnn(nn::RNN::new(i, h, nonlinearity, config, vb)?),
        "LSTMCell" => Built::LstmCell(nn::LSTMCell::new(i, h, bias, vb)?),
        "GRUCell" => Built::GruCell(nn::GRUCell::new(i, h, bias, vb)?),
        _ => Built::RnnCell(nn::RNNCell::new(i, h, bias, nonlinearity, vb)?),
    })
}

impl Built {
    pub fn quantize(&self, qconfig: &QConfig) -> candle_dynquant::Result<Self> {
        Ok(match self {
            Self::Linear(layer) => Self::Linear(layer.quantize(qconfig)?),
            Self::Lstm(layer) => Self::Lstm(layer.quantize(qconfig)?),
            Self::Gru(layer) => Self::Gru(layer.quantize(qconfig)?),
            Self::Rnn(layer) => Self::Rnn(layer.quantize(qconfig)?),
            Self::LstmCell(layer) => Self::LstmCell(layer.quantize(qconfig)?),
            Self::GruCell(layer) => Self::GruCell(layer.quantize(qconfig)?),
            Self::RnnCell(layer) => Self::RnnCell(layer.quantize(qconfig)?),
        })
    }

    /// The outputs of all steps of `[STEPS, BATCH, INPUTS]`; of a Linear, its product.
    pub fn run(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Linear(layer) => layer.forward(xs),
            Self::Lstm(layer) => Ok(layer.forward(xs, None)?.0),
            Self::Gru(layer) => Ok(layer.forward(xs, None)?.0),
            Self::Rnn(layer) => Ok(layer.forward(xs, None)?.0),
            Self::LstmCell(cell) => by_steps(xs, |x, state| {
                let state: nn::LSTMState = cell.forward(x, state)?;
                Ok((state.h.clone(), state))
            }),
            Self::GruCell(cell) => by_steps(xs, |x, h| {
                let h = cell.forward(x, h)?;
                Ok((h.clone(), h))
            }),
            Self::RnnCell(cell) => by_steps(xs, |x, h| {
                let h = cell.forward(x, h)?;
                Ok((h.clone(), h))
            }),
        }
    }
}

/// The outputs of a cell, whose step gives an output and the next state.
fn by_steps<S>(
    xs: &Tensor,
    step: impl Fn(&Tensor, Option<&S>) -> Result<(Tensor, S)>,
) -> Result<Tensor> {
    let (mut state, mut outs) = (None, Vec::new());
    for t in 0..STEPS {
        let (out, next) = step(&xs.get(t)?, state.as_ref())?;
        outs.push(out);
        state = Some(next);
    }
    Tensor::stack(&outs, 0)
}
