//! The codes of a quantized weight, to be read.

use crate::observer::ZeroPoints;

/// The codes of a quantized weight or table, of which each stands for
/// `scale * (code - zero_point)`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{nn::Projection, observer::ZeroPoints, QConfig};
///
/// let weight = Tensor::new(&[[0.5f32, -1.0], [0.02, 0.01]], &Device::Cpu)?;
/// let int8 = Projection::new(weight, None).quantize(&QConfig::int8())?;
/// let codes = int8.codes().expect("int8");
/// assert_eq!(codes.codes, [64, -127, 127, 64]);
/// assert_eq!(codes.scales.len(), 2); // one per output channel
/// assert_eq!(codes.zero_points, ZeroPoints::Int(vec![0, 0]));
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WeightCodes {
    /// Output channels and inputs; of a table, rows and their length.
    pub shape: [usize; 2],
    /// The codes in row order.
    pub codes: Vec<i32>,
    /// The scale of the weight, of each channel or of each group of inputs, channel by channel.
    pub scales: Vec<f32>,
    /// A zero point for each scale; none for groups that have a minimum in place of it, as GGUF's
    /// Q4_1.
    pub zero_points: ZeroPoints,
}
