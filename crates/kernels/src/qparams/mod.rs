//! Scales and zero points of activations, and codes: the arithmetic that kernels share with whoever
//! quantizes weights.

pub mod activation;
pub mod blocks;

/// A scale and a zero point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QParams {
    /// The real difference between two successive codes.
    pub scale: f32,
    /// The code of 0.0.
    pub zero_point: i32,
}

/// How a value and its scale become a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Multiply by the scale's inverse, which is rounded to f32 first: PyTorch's way.
    Multiply,
    /// Divide by the scale: ONNX Runtime's way.
    Divide,
}

/// The codes of values with one scale and zero point.
///
/// Round half to even, add the zero point, clamp: equals `torch.quantize_per_tensor` where
/// values are multiplied, onnxruntime's `quantize_nparray` where they are divided.
///
/// ```
/// # extern crate candle_dynquant_kernels as candle_dynquant;
/// use candle_dynquant::qparams::{Rounding, quantize};
///
/// let codes = quantize(&[-50., 0., 0.75, 1000.], 0.5, 100, [0, 255], Rounding::Multiply);
/// assert_eq!(codes, [0, 100, 102, 255]);
/// ```
pub fn quantize(
    values: &[f32],
    scale: f32,
    zero_point: i32,
    quant_range: [i32; 2],
    rounding: Rounding,
) -> Vec<i32> {
    let inv_scale = 1. / scale;
    let shift = |steps: f32| clamp(steps.round_ties_even() + zero_point as f32, quant_range);
    match rounding {
        Rounding::Multiply => values.iter().map(|x| shift(x * inv_scale)).collect(),
        Rounding::Divide => values.iter().map(|x| shift(x / scale)).collect(),
    }
}

/// The codes of values with one scale and a float zero point.
///
/// Equals `torch.quantize_per_channel` with float zero points: multiply by the scale's
/// inverse, add the zero point, round half to even, clamp.
///
/// ```
/// # extern crate candle_dynquant_kernels as candle_dynquant;
/// use candle_dynquant::qparams::quantize_float;
///
/// assert_eq!(quantize_float(&[-1., 0.25, 9.], 0.5, 2.5, [0, 15]), [0, 3, 15]);
/// ```
pub fn quantize_float(
    values: &[f32],
    scale: f32,
    zero_point: f32,
    quant_range: [i32; 2],
) -> Vec<i32> {
    let inv_scale = 1. / scale;
    let code = |x: &f32| (x * inv_scale + zero_point).round_ties_even();
    values.iter().map(|x| clamp(code(x), quant_range)).collect()
}

fn clamp(code: f32, quant_range: [i32; 2]) -> i32 {
    let [least, greatest] = quant_range;
    // In range after `max` and `min`, so the cast is exact.
    code.max(least as f32).min(greatest as f32) as i32
}

/// Scale and zero point of u8 activations in `[min, max]`, one for a whole call.
///
/// Equals `torch._choose_qparams_per_tensor`, the steps of which it follows: the scale is
/// computed in f64; a scale below 6.1e-5 is raised to it; the zero point is taken from the
/// end of the range with the smaller error.
pub fn per_tensor_activation(min: f32, max: f32, reduce_range: bool) -> QParams {
    const SMALL_SCALE_THRESHOLD: f32 = 6.1e-5;
    let (qmin, qmax) = activation_range(reduce_range);
    let (mut min, mut max) = (min.min(0.), max.max(0.));
    let mut scale = (f64::from(max) - f64::from(min)) / (qmax - qmin);
    if scale as f32 == 0. || (1. / scale as f32).is_infinite() {
        scale = 0.1;
    }
    if scale < f64::from(SMALL_SCALE_THRESHOLD) {
        let amplifier = SMALL_SCALE_THRESHOLD / scale as f32;
        let stretched = SMALL_SCALE_THRESHOLD * (qmax - qmin) as f32;
        scale = f64::from(SMALL_SCALE_THRESHOLD);
        if min == 0. {
            max = stretched;
        } else if max == 0. {
            min = -stretched;
        } else {
            min *= amplifier;
            max *= amplifier;
        }
    }
    let (min, max) = (f64::from(min) / scale, f64::from(max) / scale);
    let from_min = qmin - min;
    let from_max = qmax - max;
    let min_error = qmin.abs() - min.abs();
    let max_error = qmax.abs() - max.abs();
    let zero_point = if min_error < max_error { from_min } else { from_max };
    QParams {
        scale: scale as f32,
        zero_point: zero_point.clamp(qmin, qmax).round_ties_even() as i32,
    }
}

/// Scale and zero point of u8 activations in `[min, max]`, one for each row.
///
/// The plain affine formula: `scale = (max - min) / 255`, `zero_point = round(-min / scale)`,
/// with a scale of at least the minimum normal f32, so that small rows keep all their bits.
pub fn per_row_activation(min: f32, max: f32, reduce_range: bool) -> QParams {
    let (_, qmax) = activation_range(reduce_range);
    let (min, max) = (min.min(0.), max.max(0.));
    let scale = ((f64::from(max) - f64::from(min)) / qmax) as f32;
    let scale = scale.max(f32::MIN_POSITIVE);
    // Adding 1.5 * 2^23 rounds half to even, without the C library: its call costs a row as much as
    // all the rest.
    const ROUND: f32 = 12_582_912.;
    let zero_point = ((-min / scale).min(qmax as f32) + ROUND) - ROUND;
    QParams { scale, zero_point: zero_point as i32 }
}

/// The scale of a row of i8 codes within +-127, without a zero point, of values up to `max` in
/// magnitude: `max / 127`, and at least 2^-118, so that 255 divided by it is finite.
pub fn symmetric_row(max: f32) -> f32 {
    const MIN: f32 = f32::from_bits((127 - 118) << 23);
    (max / 127.).max(MIN)
}

/// Scale and zero point of u8 activations in `[min, max]`, as ONNX Runtime has them.
///
/// Equals `DynamicQuantizeLinear` of onnxruntime 1.31.1, all of it in f32: a scale of 1 where
/// the range, stretched to 0, is empty; the zero point is clamped, then rounded half to even.
/// Its code of `x` is `clamp(round(x / scale) + zero_point, 0, 255)`. The operator knows no
/// `reduce_range`: with it, the formula is the same over 127.
///
/// ```
/// # extern crate candle_dynquant_kernels as candle_dynquant;
/// use candle_dynquant::qparams::onnxruntime_activation;
///
/// let qparams = onnxruntime_activation(-1., 1.55, false);
/// assert_eq!((qparams.scale, qparams.zero_point), (0.01, 100));
/// ```
pub fn onnxruntime_activation(min: f32, max: f32, reduce_range: bool) -> QParams {
    let qmax = activation_range(reduce_range).1 as f32;
    let (min, max) = (min.min(0.), max.max(0.));
    let scale = if min == max { 1. } else { (max - min) / qmax };
    QParams {
        scale,
        // The NaN of a range so small that its scale is 0 becomes the maximum code.
        zero_point: (0. - min / scale).min(qmax).max(0.).round_ties_even() as i32,
    }
}

fn activation_range(reduce_range: bool) -> (f64, f64) {
    (0., if reduce_range { 127. } else { 255. })
}
