//! The documented formulas in plain f64.

use candle_core::Result;
use half::bf16;

use crate::kit::*;
use crate::layers::{BATCH, HIDDEN, INPUTS, STEPS, floats};

/// The scale and zero point of a weight's values, by the documentation of the observers.
pub fn weight_qparams(values: &[f64], config: &ObserverConfig) -> (f64, f64) {
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
        let (min, max) =
            if symmetric { (-f64::max(-min, max), f64::max(-min, max)) } else { (min, max) };
        let scale = (max - min) / (high - low);
        let zero = if symmetric { (low + high) / 2. } else { low - min / scale };
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

/// The smallest and the largest code.
pub fn code_range(config: &ObserverConfig) -> [f64; 2] {
    let [low, high] = match (&config.kind, config.quant_range) {
        (ObserverKind::OnnxRuntime, _) | (_, None) => config.dtype.codes(),
        (_, Some(range)) => range,
    };
    let halve = config.reduce_range && config.kind != ObserverKind::OnnxRuntime;
    let half = |code: i32| f64::from(if halve { code.div_euclid(2) } else { code });
    [half(low), half(high)]
}

/// Checks codes, scales and zero points of a weight against the formulas. Fixtures check the range
/// of a histogram; here its codes must fit its scale.
pub fn check_weight(qweight: &QWeight, weight: &[f64], config: &QConfig, case: &str) {
    let [n, k] = qweight.shape();
    let QConfig::Int8 { weight: config, .. } = config else {
        let (halves, precision): (Vec<f64>, _) = match config {
            QConfig::Half(HalfType::BFloat16) => {
                let bfloats = qweight.bfloats();
                (bfloats.iter().map(|x| x.to_f64()).collect(), 256.)
            }
            _ => {
                let halves = qweight.halves();
                (halves.iter().map(|x| x.to_f64()).collect(), 2048.)
            }
        };
        assert_eq!(halves.len(), weight.len(), "{case}");
        for (half, value) in halves.iter().zip(weight) {
            let error = (half - value).abs();
            assert!(error <= value.abs() / precision + 1e-7, "{case}: {half} for {value}");
        }
        return;
    };
    let (codes, scales, zeros) = (qweight.codes(), qweight.scales(), qweight.zero_points());
    let [low, high] = code_range(config);
    for channel in 0..n {
        let index = if config.qscheme.is_per_channel() { channel } else { 0 };
        let (scale, zero) = (f64::from(scales[index]), f64::from(zeros[index]));
        if !matches!(config.kind, ObserverKind::Histogram { .. }) {
            let observed =
                if config.qscheme.is_per_channel() { &weight[channel * k..][..k] } else { weight };
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
            assert!((code - exact).abs() <= 0.5 + 1e-4, "{case}: code {code} for {exact}");
        }
    }
}

/// A weight as it multiplies, and the configuration of its activations.
pub struct Model {
    weight: Vec<f64>,
    n: usize,
    bias: Vec<f64>,
    qconfig: QConfig,
}

/// The tolerance of a result, beyond the roundings of f32.
pub type Slack = f64;

impl Model {
    pub fn new(projection: &nn::Projection, qconfig: &QConfig) -> Result<Self> {
        let n = projection.weight().dim(0)?;
        Ok(Self {
            weight: floats(projection.weight())?,
            n,
            bias: match projection.bias() {
                Some(bias) => floats(bias)?,
                None => vec![0.; n],
            },
            qconfig: qconfig.clone(),
        })
    }

    /// Multiplies `[m, k]` to `[m, n]` in f64; the slack allows a code near a tie to round either
    /// way.
    pub fn multiply(&self, xs: &[f64], m: usize) -> (Vec<f64>, Slack) {
        let k = self.weight.len() / self.n;
        let mut slack: f64 = 0.;
        let mut out = Vec::new();
        for row in 0..m {
            let row_values = &xs[row * k..][..k];
            let (codes, step) = match &self.qconfig {
                QConfig::Half(HalfType::Float16) => (row_values.to_vec(), 0.),
                QConfig::Half(_) => rounded(row_values),
                QConfig::Int8 { activation, .. } => {
                    let observed = match activation.granularity {
                        Granularity::PerTensor => xs,
                        _ => row_values,
                    };
                    dequantized(row_values, observed, *activation)
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

/// Activations through bfloat16 and back, and a step for each that is near a tie.
fn rounded(row: &[f64]) -> (Vec<f64>, Slack) {
    let mut near = 0.;
    let values = row.iter().map(|x| {
        let rounded = bf16::from_f64(*x).to_f64();
        let step = x.abs().log2().floor().exp2() / 128.;
        if ((x - rounded).abs() - step / 2.).abs() < 1e-3 * step {
            near += step;
        }
        rounded
    });
    (values.collect(), near)
}

/// Activations through u8 and back, and a step for each code that is near a tie.
pub fn dequantized(row: &[f64], observed: &[f64], config: DynamicConfig) -> (Vec<f64>, Slack) {
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

pub fn sigmoid(x: f64) -> f64 {
    1. / (1. + (-x).exp())
}

/// A step of a recurrence from its two products: the next h and c.
pub fn step(kind: &str, ih: &[f64], hh: &[f64], h: &[f64], c: &[f64]) -> (Vec<f64>, Vec<f64>) {
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

/// The expected result of `run`, and its tolerance.
pub fn expected(kind: &str, gates: &str, [ih, hh]: &[Model; 2], xs: &[f64]) -> (Vec<f64>, Slack) {
    if kind == "Linear" {
        return ih.multiply(xs, STEPS * BATCH);
    }
    // The input's product covers the whole sequence, except in a cell.
    let cell = kind.ends_with("Cell");
    let width = BATCH * INPUTS;
    let (mut whole, mut slack) = (Vec::new(), 0f64);
    if !cell {
        (whole, slack) = ih.multiply(xs, STEPS * BATCH);
    }
    let (mut h, mut c) = (vec![vec![0.; HIDDEN]; BATCH], vec![vec![0.; HIDDEN]; BATCH]);
    let mut out = Vec::new();
    for t in 0..STEPS {
        let inputs = if cell {
            let (product, slack_ih) = ih.multiply(&xs[t * width..][..width], BATCH);
            slack += slack_ih;
            product
        } else {
            whole[t * BATCH * ih.n..][..BATCH * ih.n].to_vec()
        };
        let (hidden, slack_hh) = hh.multiply(&h.concat(), BATCH);
        slack += slack_hh;
        for row in 0..BATCH {
            let (ih, hh) = (&inputs[row * ih.n..][..ih.n], &hidden[row * hh.n..][..hh.n]);
            (h[row], c[row]) = step(gates, ih, hh, &h[row], &c[row]);
        }
        out.extend(h.concat());
    }
    // A code that flips at a step changes the later states.
    (out, 10. * slack)
}

/// An element of a row of a table through its code and back, and its tolerance: a step if the code
/// is near a tie.
pub fn looked_up(
    row: &[f64],
    table: &[f64],
    column: usize,
    config: &ObserverConfig,
) -> (f64, Slack) {
    let observed = if config.qscheme.is_per_channel() { row } else { table };
    // Fixtures check the range of a histogram; here that little is cut off.
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
