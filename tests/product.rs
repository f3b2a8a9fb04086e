//! Every combination of weight, activation, layer, bias, rank and dtype: computed as the formulas
//! in plain f64 say, or refused with the error that stands here.

mod common;

use std::collections::{BTreeMap, HashMap};

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_dynquant::observer::{
    CustomObserver, MinMaxObserver, Observer, ObserverConfig, ObserverKind,
    PerChannelMinMaxObserver,
};
use candle_dynquant::{
    ActivationConfig, Arithmetic, DynamicConfig, Granularity, Layer, QConfig, QDType, QScheme,
    QWeight, WeightConfig, nn,
};
use candle_nn::VarBuilder;

const SCHEMES: [QScheme; 5] = [
    QScheme::PerTensorSymmetric,
    QScheme::PerTensorAffine,
    QScheme::PerChannelSymmetric,
    QScheme::PerChannelAffine,
    QScheme::PerChannelAffineFloatQParams,
];

/// MinMax under another name, of either granularity.
fn custom() -> ObserverKind {
    ObserverKind::Custom(CustomObserver::new("Mine", |config| {
        Ok(match config.qscheme.is_per_channel() {
            true => Box::new(PerChannelMinMaxObserver::new(config)?) as Box<dyn Observer>,
            false => Box::new(MinMaxObserver::new(config)?),
        })
    }))
}

fn observers() -> [ObserverKind; 8] {
    let averaging_constant = 0.01;
    [
        ObserverKind::MinMax,
        ObserverKind::PerChannelMinMax,
        ObserverKind::MovingAverageMinMax { averaging_constant },
        ObserverKind::MovingAveragePerChannelMinMax { averaging_constant },
        ObserverKind::Histogram { bins: 2_048 },
        ObserverKind::OnnxRuntime,
        ObserverKind::Placeholder,
        custom(),
    ]
}

fn weights() -> Vec<WeightConfig> {
    let mut all = vec![WeightConfig::Float16];
    for kind in observers() {
        for dtype in [QDType::QInt8, QDType::QUInt8] {
            for qscheme in SCHEMES {
                for (reduce_range, ch_axis) in [(false, 0), (true, 0), (false, 1)] {
                    for custom_range in [false, true] {
                        let mut config = ObserverConfig::new(kind.clone(), dtype, qscheme);
                        config.reduce_range = reduce_range;
                        config.ch_axis = ch_axis;
                        config.quant_range = custom_range.then_some(match dtype {
                            QDType::QInt8 => [-100, 90],
                            _ => [0, 200],
                        });
                        all.push(WeightConfig::Int8(config));
                    }
                }
            }
        }
    }
    all
}

fn activations() -> Vec<ActivationConfig> {
    let mut all = vec![ActivationConfig::Float];
    for granularity in [Granularity::PerTensor, Granularity::PerRow] {
        for reduce_range in [false, true] {
            for arithmetic in [Arithmetic::PyTorch, Arithmetic::OnnxRuntime] {
                let ActivationConfig::Dynamic(mut config) =
                    ActivationConfig::dynamic(granularity, reduce_range)
                else {
                    unreachable!("dynamic");
                };
                config.arithmetic = arithmetic;
                all.push(ActivationConfig::Dynamic(config));
            }
        }
    }
    all
}

/// Numbers in [-1, 1) that depend on nothing but the seed.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mixed = |i: usize| {
        let mixed = (i as u64 + 1 + 1_000 * seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40
    };
    (0..count)
        .map(|i| mixed(i) as f32 / (1u64 << 23) as f32 - 1.)
        .collect()
}

fn tensor(shape: &[usize], seed: u64) -> Result<Tensor> {
    Tensor::from_vec(values(shape.iter().product(), seed), shape, &Device::Cpu)
}

fn floats(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Scale and zero point of a weight's values, as the documentation of the observers says.
fn weight_qparams(values: &[f64], config: &ObserverConfig) -> (f64, f64) {
    let min = values.iter().copied().fold(0., f64::min);
    let max = values.iter().copied().fold(0., f64::max);
    let symmetric = config.qscheme.is_symmetric();
    let signed = config.dtype == QDType::QInt8;
    if config.kind == ObserverKind::OnnxRuntime {
        let [low, high] = match (signed, config.reduce_range) {
            (true, true) => [-64., 64.],
            (true, false) if symmetric => [-127., 127.],
            (true, false) => [-128., 127.],
            (false, true) => [0., 127.],
            (false, false) => [0., 255.],
        };
        let (min, max) = match symmetric {
            true => (-f64::max(-min, max), f64::max(-min, max)),
            false => (min, max),
        };
        let scale = (max - min) / (high - low);
        let zero = if symmetric {
            (low + high) / 2.
        } else {
            low - min / scale
        };
        return (scale, zero.round_ties_even());
    }
    let [mut low, mut high] = match config.quant_range {
        Some([low, high]) => [low, high],
        None => config.dtype.codes(),
    };
    if config.reduce_range {
        [low, high] = [low.div_euclid(2), high.div_euclid(2)];
    }
    let (low, high) = (f64::from(low), f64::from(high));
    if symmetric {
        let zero = match (signed, config.quant_range) {
            (true, _) => 0.,
            (false, None) => 128.,
            (false, Some(_)) => ((low + high) / 2.).floor(),
        };
        return (f64::max(-min, max) / ((high - low) / 2.), zero);
    }
    let scale = (max - min) / (high - low);
    let zero = low - (min / scale).round_ties_even();
    (scale, zero.clamp(low, high))
}

/// Which codes there are.
fn code_range(config: &ObserverConfig) -> [f64; 2] {
    let [low, high] = match (&config.kind, config.quant_range) {
        (ObserverKind::OnnxRuntime, _) | (_, None) => config.dtype.codes(),
        (_, Some(range)) => range,
    };
    let halve = config.reduce_range && config.kind != ObserverKind::OnnxRuntime;
    let half = |code: i32| f64::from(if halve { code.div_euclid(2) } else { code });
    [half(low), half(high)]
}

/// That codes, scales and zero points of a weight are those of the formulas. The range of a
/// histogram is held by its own fixtures; here, that its codes fit its scale.
fn check_weight(qweight: &QWeight, weight: &[f64], config: &WeightConfig, case: &str) {
    let [n, k] = qweight.shape();
    let WeightConfig::Int8(config) = config else {
        let halves = qweight.halves();
        for (half, value) in halves.iter().zip(weight) {
            let error = (half.to_f64() - value).abs();
            assert!(
                error <= value.abs() / 2048. + 1e-7,
                "{case}: {half} for {value}"
            );
        }
        return;
    };
    let (codes, scales, zeros) = (qweight.codes(), qweight.scales(), qweight.zero_points());
    let [low, high] = code_range(config);
    for channel in 0..n {
        let own = match config.qscheme.is_per_channel() {
            true => channel,
            false => 0,
        };
        let (scale, zero) = (f64::from(scales[own]), f64::from(zeros[own]));
        if !matches!(config.kind, ObserverKind::Histogram { .. }) {
            let observed = match config.qscheme.is_per_channel() {
                true => &weight[channel * k..][..k],
                false => weight,
            };
            let (expected_scale, expected_zero) = weight_qparams(observed, config);
            assert!(
                (scale / expected_scale - 1.).abs() < 1e-6,
                "{case}: scale {scale}, {expected_scale}"
            );
            assert_eq!(zero, expected_zero, "{case}: zero point");
        }
        for input in 0..k {
            let exact = (weight[channel * k + input] / scale + zero).clamp(low, high);
            let code = f64::from(codes[channel * k + input]);
            assert!(
                (code - exact).abs() <= 0.5 + 1e-4,
                "{case}: code {code} for {exact}"
            );
        }
    }
}

/// A weight as it is multiplied, and what is done with activations.
struct Model {
    weight: Vec<f64>,
    n: usize,
    bias: Vec<f64>,
    activation: ActivationConfig,
}

/// How far the result may be from the exact one, beside the roundings of f32.
type Slack = f64;

impl Model {
    fn new(projection: &nn::Projection, activation: ActivationConfig) -> Result<Self> {
        let n = projection.weight().dim(0)?;
        Ok(Self {
            weight: floats(projection.weight())?,
            n,
            bias: match projection.bias() {
                Some(bias) => floats(bias)?,
                None => vec![0.; n],
            },
            activation,
        })
    }

    /// `[m, k]` to `[m, n]` in f64; the slack allows a code that is near a tie to be the other.
    fn multiply(&self, xs: &[f64], m: usize) -> (Vec<f64>, Slack) {
        let k = self.weight.len() / self.n;
        let mut slack: f64 = 0.;
        let mut out = Vec::new();
        for row in 0..m {
            let own = &xs[row * k..][..k];
            let (codes, step) = match self.activation {
                ActivationConfig::Float => (own.to_vec(), 0.),
                ActivationConfig::Dynamic(config) => {
                    let observed = match config.granularity {
                        Granularity::PerTensor => xs,
                        _ => own,
                    };
                    dequantized(own, observed, config)
                }
                _ => unreachable!("another activation"),
            };
            for channel in 0..self.n {
                let weights = &self.weight[channel * k..][..k];
                let products = codes.iter().zip(weights).map(|(x, w)| x * w);
                out.push(products.sum::<f64>() + self.bias[channel]);
                slack = slack.max(step * weights.iter().map(|w| w.abs()).fold(0., f64::max));
            }
        }
        (out, slack)
    }
}

/// Activations through u8 and back, and a step for each code that is near a tie.
fn dequantized(row: &[f64], observed: &[f64], config: DynamicConfig) -> (Vec<f64>, Slack) {
    let min = observed.iter().copied().fold(0., f64::min);
    let max = observed.iter().copied().fold(0., f64::max);
    let top = if config.reduce_range { 127. } else { 255. };
    let scale = match max - min {
        0. => return (vec![0.; row.len()], 0.),
        range => range / top,
    };
    let zero = (-min / scale).round_ties_even().clamp(0., top);
    let mut near = 0.;
    let codes = row.iter().map(|x| {
        let exact = x / scale;
        if (exact.fract().abs() - 0.5).abs() < 1e-3 {
            near += scale;
        }
        ((exact.round_ties_even() + zero).clamp(0., 255.) - zero) * scale
    });
    (codes.collect(), near)
}

fn sigmoid(x: f64) -> f64 {
    1. / (1. + (-x).exp())
}

/// One step of a recurrence from its two products: the next h and c.
fn step(kind: &str, ih: &[f64], hh: &[f64], h: &[f64], c: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let hidden = h.len();
    let gate = |g: usize, j: usize| ih[g * hidden + j] + hh[g * hidden + j];
    let mut next = (Vec::new(), Vec::new());
    for j in 0..hidden {
        let (h, c) = match kind {
            "LSTM" => {
                let [i, f, o] = [0, 1, 3].map(|g| sigmoid(gate(g, j)));
                let c = f * c[j] + i * gate(2, j).tanh();
                (o * c.tanh(), c)
            }
            "GRU" => {
                let (r, z) = (sigmoid(gate(0, j)), sigmoid(gate(1, j)));
                let n = (ih[2 * hidden + j] + r * hh[2 * hidden + j]).tanh();
                ((h[j] - n) * z + n, 0.)
            }
            "tanh" => (gate(0, j).tanh(), 0.),
            _ => (gate(0, j).max(0.), 0.),
        };
        next.0.push(h);
        next.1.push(c);
    }
    next
}

const INPUTS: usize = 7;
const HIDDEN: usize = 5;
const STEPS: usize = 3;
const BATCH: usize = 2;

/// A layer, its gates' name, and its projections.
enum Built {
    Linear(nn::Linear),
    Lstm(nn::LSTM),
    Gru(nn::GRU),
    Rnn(nn::RNN),
    LstmCell(nn::LSTMCell),
    GruCell(nn::GRUCell),
    RnnCell(nn::RNNCell),
}

const KINDS: [(&str, &str); 9] = [
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
fn float_projections(gates: &str, bias: bool) -> Result<[nn::Projection; 2]> {
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

fn build(kind: &str, gates: &str, bias: bool) -> Result<Built> {
    let [ih, hh] = float_projections(gates, bias)?;
    if kind == "Linear" {
        return Ok(Built::Linear(nn::Linear::new(
            ih.weight().clone(),
            ih.bias().cloned(),
        )));
    }
    let suffix = if kind.ends_with("Cell") { "" } else { "_l0" };
    let mut tensors = HashMap::new();
    for (name, projection) in [("ih", &ih), ("hh", &hh)] {
        tensors.insert(
            format!("weight_{name}{suffix}"),
            projection.weight().clone(),
        );
        if let Some(bias) = projection.bias() {
            tensors.insert(format!("bias_{name}{suffix}"), bias.clone());
        }
    }
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let config = nn::RecurrentConfig {
        bias,
        ..Default::default()
    };
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
    fn quantize(&self, qconfig: &QConfig) -> candle_dynquant::Result<Self> {
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
    fn run(&self, xs: &Tensor) -> Result<Tensor> {
        let steps = || (0..STEPS).map(|t| xs.get(t));
        let stack = |outs: Vec<Tensor>| Tensor::stack(&outs, 0);
        match self {
            Self::Linear(layer) => layer.forward(xs),
            Self::Lstm(layer) => Ok(layer.forward(xs, None)?.0),
            Self::Gru(layer) => Ok(layer.forward(xs, None)?.0),
            Self::Rnn(layer) => Ok(layer.forward(xs, None)?.0),
            Self::LstmCell(layer) => {
                let mut state = None;
                let outs = steps().map(|x| {
                    let next = layer.forward(&x?, state.as_ref())?;
                    let h = next.h.clone();
                    state = Some(next);
                    Ok(h)
                });
                stack(outs.collect::<Result<_>>()?)
            }
            Self::GruCell(layer) => {
                let mut h: Option<Tensor> = None;
                let outs = steps().map(|x| {
                    h = Some(layer.forward(&x?, h.as_ref())?);
                    Ok(h.clone().expect("a state"))
                });
                stack(outs.collect::<Result<_>>()?)
            }
            Self::RnnCell(layer) => {
                let mut h: Option<Tensor> = None;
                let outs = steps().map(|x| {
                    h = Some(layer.forward(&x?, h.as_ref())?);
                    Ok(h.clone().expect("a state"))
                });
                stack(outs.collect::<Result<_>>()?)
            }
        }
    }
}

/// What `run` should give, and how far off it may be.
fn expected(kind: &str, gates: &str, [ih, hh]: &[Model; 2], xs: &[f64]) -> (Vec<f64>, Slack) {
    if kind == "Linear" {
        return ih.multiply(xs, STEPS * BATCH);
    }
    // The input's product is one for the whole sequence, unless it is a cell.
    let cell = kind.ends_with("Cell");
    let width = BATCH * INPUTS;
    let (mut whole, mut slack) = (Vec::new(), 0f64);
    if !cell {
        (whole, slack) = ih.multiply(xs, STEPS * BATCH);
    }
    let (mut h, mut c) = (vec![vec![0.; HIDDEN]; BATCH], vec![vec![0.; HIDDEN]; BATCH]);
    let mut out = Vec::new();
    for t in 0..STEPS {
        let inputs = match cell {
            true => {
                let (product, own) = ih.multiply(&xs[t * width..][..width], BATCH);
                slack += own;
                product
            }
            false => whole[t * BATCH * ih.n..][..BATCH * ih.n].to_vec(),
        };
        let (hidden, own) = hh.multiply(&h.concat(), BATCH);
        slack += own;
        for row in 0..BATCH {
            let (ih, hh) = (&inputs[row * ih.n..][..ih.n], &hidden[row * hh.n..][..hh.n]);
            (h[row], c[row]) = step(gates, ih, hh, &h[row], &c[row]);
        }
        out.extend(h.concat());
    }
    // A code that flips at one step moves the states of those after it.
    (out, 10. * slack)
}

/// Why a combination is refused, in the words of the error up to what it got; `None` if it is
/// not. Where several reasons hold, the first is told.
fn refusal(weight: &WeightConfig, activation: ActivationConfig) -> Option<&'static str> {
    const PAIR: &str =
        "int8 weights with dynamic activations, or float16 weights with float activations, got ";
    let dynamic = matches!(activation, ActivationConfig::Dynamic(_));
    let WeightConfig::Int8(config) = weight else {
        return dynamic.then_some(PAIR);
    };
    let per_channel = config.qscheme.is_per_channel();
    let float_qparams = config.qscheme == QScheme::PerChannelAffineFloatQParams;
    let symmetric_quint8 = config.qscheme.is_symmetric() && config.dtype == QDType::QUInt8;
    let granularity = match (&config.kind, per_channel) {
        (ObserverKind::MinMax, true) => {
            Some("a scheme per tensor for the MinMax observer, got per_channel_")
        }
        (ObserverKind::MovingAverageMinMax { .. }, true) => {
            Some("a scheme per tensor for the MovingAverageMinMax observer, got per_channel_")
        }
        (ObserverKind::Histogram { .. }, true) => {
            Some("a scheme per tensor for the Histogram observer, got per_channel_")
        }
        (ObserverKind::PerChannelMinMax, false) => {
            Some("a scheme per channel for the PerChannelMinMax observer, got per_tensor_")
        }
        (ObserverKind::MovingAveragePerChannelMinMax { .. }, false) => Some(
            "a scheme per channel for the MovingAveragePerChannelMinMax observer, got per_tensor_",
        ),
        _ => None,
    };
    let onnxruntime = config.kind == ObserverKind::OnnxRuntime;
    [
        (!dynamic, Some(PAIR)),
        (
            per_channel && config.ch_axis != 0,
            Some("ch_axis 0, of the output channels, got ch_axis 1"),
        ),
        (
            config.kind == ObserverKind::Placeholder,
            Some("an observer that chooses a scale, got PlaceholderObserver"),
        ),
        (granularity.is_some(), granularity),
        (
            onnxruntime && float_qparams,
            Some("integer zero points for the OnnxRuntime observer, got per_channel_affine_float_qparams"),
        ),
        (
            onnxruntime && config.quant_range.is_some(),
            Some("no quant_range for the OnnxRuntime observer, got ["),
        ),
        (
            symmetric_quint8 && config.reduce_range && !onnxruntime,
            Some("an affine scheme, qint8 or the full range, got symmetric quint8 with reduce_range"),
        ),
        (
            float_qparams,
            Some("integer zero points, for a weight that is multiplied, got per_channel_affine_float_qparams"),
        ),
    ]
    .into_iter()
    .find_map(|(holds, text)| text.filter(|_| holds))
}

#[test]
fn every_combination_is_computed_as_documented_or_refused() -> Result<()> {
    let (mut computed, mut messages) = (0, BTreeMap::<String, usize>::new());
    let mut failures = Vec::new();
    let xs = tensor(&[STEPS, BATCH, INPUTS], 5)?;
    for (kind, gates) in KINDS {
        for bias in [true, false] {
            let float = build(kind, gates, bias)?;
            let projections = float_projections(gates, bias)?;
            for weight in weights() {
                for activation in activations() {
                    let qconfig = QConfig::new(activation, weight.clone());
                    let case = format!("{kind} {gates} bias {bias}: {weight:?}, {activation:?}");
                    let refused = refusal(&weight, activation);
                    let layer = match (float.quantize(&qconfig), refused) {
                        (Ok(layer), None) => layer,
                        (Err(error), Some(text)) => {
                            let error = error.to_string();
                            if !error.contains(&format!("unsupported qconfig: expected {text}")) {
                                failures.push(format!("{case}: expected {text:?}, got {error}"));
                            }
                            *messages.entry(text.to_owned()).or_default() += 1;
                            continue;
                        }
                        (Ok(_), Some(text)) => {
                            failures.push(format!("{case}: not refused: {text}"));
                            continue;
                        }
                        (Err(error), None) => {
                            failures.push(format!("{case}: refused: {error}"));
                            continue;
                        }
                    };
                    computed += 1;
                    let mut models = Vec::new();
                    for projection in &projections {
                        let weight_values = floats(projection.weight())?;
                        let quantized = projection.quantize(&qconfig).expect("as the layer");
                        let qweight = quantized.qweight().expect("a quantized weight");
                        check_weight(qweight, &weight_values, &weight, &case);
                        models.push(Model::new(&quantized, activation)?);
                    }
                    let models = models.try_into().unwrap_or_else(|_| unreachable!("two"));
                    // Each dtype in turn: the values are its own, the result is rounded to it.
                    let (dtype, rounding) = [
                        (DType::F32, 1e-5),
                        (DType::F64, 1e-5),
                        (DType::F16, 2e-3),
                        (DType::BF16, 2e-2),
                    ][computed % 4];
                    // A state that is rounded to its dtype between the calls of a cell is another.
                    let dtype = if kind.ends_with("Cell") {
                        DType::F32
                    } else {
                        dtype
                    };
                    let xs = xs.to_dtype(dtype)?;
                    let (expected, slack) = expected(kind, gates, &models, &floats(&xs)?);
                    let got = layer.run(&xs)?;
                    assert_eq!(got.dtype(), dtype, "{case}");
                    let worst = (floats(&got)?.iter().zip(&expected))
                        .map(|(got, expected)| {
                            (got - expected).abs() - rounding * (1. + expected.abs()) - slack
                        })
                        .fold(f64::NEG_INFINITY, f64::max);
                    if worst.is_nan() || worst > 0. {
                        failures.push(format!(
                            "{case} {dtype:?}: {worst:e} too far, slack {slack:e}"
                        ));
                    }
                }
            }
        }
    }
    let some: Vec<_> = failures.iter().take(12).collect();
    assert!(
        failures.is_empty(),
        "{} failures, such as {some:#?}",
        failures.len()
    );
    // All the classes of refusal there are, none of them empty.
    assert_eq!(messages.len(), 12, "{messages:?}");
    assert!(computed > 8_000, "{computed}");
    Ok(())
}

#[test]
fn any_rank_gives_the_rows_of_the_same_product() -> Result<()> {
    for weight in weights() {
        for activation in activations() {
            if refusal(&weight, activation).is_some() {
                continue;
            }
            let Built::Linear(float) = build("Linear", "", true)? else {
                unreachable!("a Linear");
            };
            let layer = float
                .quantize(&QConfig::new(activation, weight.clone()))
                .expect("quantizes");
            let one = tensor(&[INPUTS], 6)?;
            let expected = floats(&layer.forward(&one)?)?;
            for shape in [&[1, INPUTS][..], &[1, 1, INPUTS], &[1, 1, 1, INPUTS]] {
                let got = floats(&layer.forward(&one.reshape(shape)?)?)?;
                assert_eq!(got, expected, "{weight:?} {activation:?} {shape:?}");
            }
        }
    }
    Ok(())
}

/// An element of a row of a table through its code and back, and what it may be off: a step
/// where the code is near a tie.
fn looked_up(row: &[f64], table: &[f64], column: usize, config: &ObserverConfig) -> (f64, Slack) {
    let observed = match config.qscheme.is_per_channel() {
        true => row,
        false => table,
    };
    // The range of a histogram is held by its own fixtures; here, that little is cut off.
    if let ObserverKind::Histogram { .. } = config.kind {
        return (row[column], 0.05);
    }
    let [low, high] = code_range(config);
    let (scale, zero) = match config.qscheme {
        QScheme::PerChannelAffineFloatQParams => {
            let min = observed.iter().copied().fold(f64::INFINITY, f64::min);
            let max = observed.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let scale = (max - min) / (high - low);
            (scale, -min / scale)
        }
        _ => weight_qparams(observed, config),
    };
    let code = (row[column] / scale + zero).clamp(low, high);
    let near = (code.fract().abs() - 0.5).abs() < 1e-3;
    let slack = if near { scale } else { 0. };
    ((code.round_ties_even() - zero) * scale, slack)
}

/// What a table of `[n, k]` becomes, or why not.
#[test]
fn embeddings_are_computed_as_documented_or_refused() -> Result<()> {
    let (n, k) = (9, 6);
    let table = tensor(&[n, k], 7)?;
    let exact = floats(&table)?;
    let indexes = Tensor::new(&[[3u32, 0], [8, 3]], &Device::Cpu)?;
    let float = nn::Embedding::new(table, k);
    let (mut computed, mut refused) = (0, 0);
    for weight in weights() {
        for activation in activations() {
            let case = format!("{weight:?} {activation:?}");
            let layer = match float.quantize(&QConfig::new(activation, weight.clone())) {
                Ok(layer) => layer,
                Err(error) => {
                    // A table has no activations.
                    let needs = matches!(activation, ActivationConfig::Dynamic(_));
                    let hint = error.to_string().contains("float_qparams_weight_only");
                    assert!(hint || !needs, "{case}: {error}");
                    refused += 1;
                    continue;
                }
            };
            assert_eq!(activation, ActivationConfig::Float, "{case}");
            computed += 1;
            let got = floats(&layer.forward(&indexes)?)?;
            for (i, got) in got.iter().enumerate() {
                let (row, column) = ([3, 0, 8, 3][i / k], i % k);
                let own = &exact[row * k..][..k];
                let (expected, slack) = match &weight {
                    WeightConfig::Float16 => (own[column], own[column].abs() / 2_048.),
                    WeightConfig::Int8(config) => looked_up(own, &exact, column, config),
                    _ => unreachable!("another weight"),
                };
                let error = (got - expected).abs();
                assert!(error <= slack + 1e-6, "{case}: {got} for {expected}");
            }
        }
    }
    assert!(computed > 50 && refused > 500, "{computed} {refused}");
    Ok(())
}

/// Each argument changes something, somewhere: none is taken and ignored.
#[test]
fn no_argument_is_ignored() -> Result<()> {
    let weight = tensor(&[HIDDEN, INPUTS], 1)?;
    let zeros = weight.zeros_like()?;
    let int8 = |kind, qscheme| ObserverConfig::new(kind, QDType::QInt8, qscheme);
    let min_max = int8(ObserverKind::MinMax, QScheme::PerTensorSymmetric);
    let histogram = |bins| int8(ObserverKind::Histogram { bins }, QScheme::PerTensorAffine);
    let changed = |change: &dyn Fn(&mut ObserverConfig)| {
        let mut config = min_max.clone();
        change(&mut config);
        config
    };
    // The argument, two configurations that differ in it, and the weight.
    let pairs = [
        (
            "dtype",
            min_max.clone(),
            changed(&|c| c.dtype = QDType::QUInt8),
            &weight,
        ),
        (
            "qscheme",
            min_max.clone(),
            changed(&|c| c.qscheme = QScheme::PerTensorAffine),
            &weight,
        ),
        (
            "reduce_range",
            min_max.clone(),
            changed(&|c| c.reduce_range = true),
            &weight,
        ),
        (
            "quant_range",
            min_max.clone(),
            changed(&|c| c.quant_range = Some([-9, 9])),
            &weight,
        ),
        ("eps", min_max.clone(), changed(&|c| c.eps = 0.5), &zeros),
        ("bins", histogram(2_048), histogram(3), &weight),
        (
            "observer",
            min_max.clone(),
            changed(&|c| c.kind = ObserverKind::OnnxRuntime),
            &weight,
        ),
    ];
    for (argument, one, other, weight) in pairs {
        let facts = |config: ObserverConfig| {
            let qweight = QWeight::from_float(weight, None, &WeightConfig::Int8(config));
            let qweight = qweight.expect(argument);
            (
                qweight.codes(),
                qweight.scales().to_vec(),
                qweight.zero_points(),
            )
        };
        assert_ne!(facts(one), facts(other), "{argument}");
    }
    // A weight is observed once, where the average is the first value; over more it shows.
    let observed = |averaging_constant| -> candle_dynquant::Result<_> {
        let kind = ObserverKind::MovingAverageMinMax { averaging_constant };
        let mut observer = int8(kind, QScheme::PerTensorAffine).build()?;
        observer.observe(&weight)?;
        observer.observe(&(&weight * 2.)?)?;
        observer.calculate_qparams()
    };
    assert_ne!(
        observed(0.01).expect("averages"),
        observed(0.5).expect("averages")
    );
    // An axis of channels is 0, or an error.
    let mut axis = int8(ObserverKind::PerChannelMinMax, QScheme::PerChannelSymmetric);
    axis.ch_axis = 1;
    assert!(QWeight::from_float(&weight, None, &WeightConfig::Int8(axis)).is_err());

    let xs = tensor(&[BATCH, INPUTS], 5)?;
    let float = nn::Projection::new(weight.clone(), None);
    let outputs = activations().into_iter().skip(1).map(|activation| {
        let qconfig = QConfig::new(activation, WeightConfig::PER_CHANNEL);
        let output = float.quantize(&qconfig).expect("quantizes").forward(&xs);
        floats(&output.expect("an output")).expect("floats")
    });
    // Granularity and range; whose arithmetic shows at ties only, which the fixtures have.
    let outputs: Vec<_> = outputs.collect();
    for (i, j) in [(0, 2), (0, 4), (2, 6), (4, 6)] {
        assert_ne!(outputs[i], outputs[j], "{i} {j}");
    }
    Ok(())
}
