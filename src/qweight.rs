//! A quantized weight: codes or halves, and the packed form that is multiplied.

use std::sync::OnceLock;

use candle_core::{DType, Tensor};
use half::f16;

use crate::error::{Error, Result};
use crate::kernels::reference::Int8;
use crate::kernels::{self, Isa, Packed};
use crate::observer::{ObserverConfig, ZeroPoints};
use crate::qconfig::WeightConfig;
use crate::qparams::{QDType, QScheme};
use crate::sizes;
use crate::tensor::{from_f32_vec, to_f32_vec};

/// A weight `[out_features, in_features]` as int8 codes with their scales and zero points, or
/// as float16.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{QConfig, QWeight};
///
/// let weight = Tensor::new(&[[0.5f32, -1.0], [0.02, 0.01]], &Device::Cpu)?;
/// let qweight = QWeight::from_float(&weight, None, &QConfig::per_row_dynamic().weight)?;
/// assert_eq!(qweight.codes(), [64, -127, 127, 64]);
/// assert_eq!(qweight.scales().len(), 2); // one per output channel
/// assert_eq!(qweight.zero_points(), [0, 0]);
/// let error = (qweight.dequantize()? - weight)?.abs()?.max_all()?;
/// assert!(error.to_scalar::<f32>()? < 1.0 / 127.0);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Debug)]
pub struct QWeight {
    packed: Packed,
    format: Format,
    /// Filled when the weight is first asked for as a tensor.
    dequantized: OnceLock<Tensor>,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Int8 { dtype: QDType, qscheme: QScheme },
    Float16 { saturated: usize },
}

impl QWeight {
    /// Quantizes a float weight, once; `bias`, `[out_features]`, stays f32.
    ///
    /// Scales and zero points are the observer's, of the whole weight or of each output channel.
    /// In float16, elements beyond ±65,504 are clamped to it.
    ///
    /// # Errors
    /// When a shape or dtype is wrong, a tensor is not on the CPU, an element is NaN or
    /// infinite, `DYNQUANT_ISA` is wrong, the observer does not support its arguments, or a channel
    /// could overflow its accumulator.
    pub fn from_float(
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: &WeightConfig,
    ) -> Result<Self> {
        Self::of_gates(1, weight, bias, config)
    }

    /// [`from_float`](Self::from_float) of a weight whose output channels are `gates` gates of
    /// recurrent units, gate by gate.
    pub(crate) fn of_gates(
        gates: usize,
        weight: &Tensor,
        bias: Option<&Tensor>,
        config: &WeightConfig,
    ) -> Result<Self> {
        let isa = Isa::active()?;
        let &[n, k] = weight.dims() else {
            return Err(Error::ShapeMismatch {
                op: "quantize weight",
                expected: "[out_features, in_features]".into(),
                got: weight.dims().to_vec(),
            });
        };
        sizes::elements("quantize weight", &[n, k])?;
        if gates == 0 || !n.is_multiple_of(gates) {
            return Err(Error::ShapeMismatch {
                op: "quantize weight",
                expected: format!("[out_features, in_features] of {gates} gates"),
                got: vec![n, k],
            });
        }
        if let Some(bias) = bias.filter(|bias| bias.dims() != [n]) {
            return Err(Error::ShapeMismatch {
                op: "quantize bias",
                expected: format!("[{n}]"),
                got: bias.dims().to_vec(),
            });
        }
        let bias = match bias {
            Some(bias) => to_f32_vec(bias, "quantize bias")?,
            None => vec![0.; n],
        };
        if let Some(index) = bias.iter().position(|value| !value.is_finite()) {
            let value = bias[index];
            return Err(Error::NonFiniteBias { index, value });
        }
        match config {
            WeightConfig::Int8(config) => Self::int8(isa, gates, weight, (n, k), &bias, config),
            WeightConfig::Float16 => Self::float16(isa, gates, weight, k, &bias),
        }
    }

    fn int8(
        isa: Isa,
        gates: usize,
        weight: &Tensor,
        (n, k): (usize, usize),
        bias: &[f32],
        config: &ObserverConfig,
    ) -> Result<Self> {
        if !matches!(config.ch_axis, 0 | -2) {
            return Err(Error::UnsupportedQConfig {
                expected: "ch_axis 0, of the output channels".into(),
                got: format!("ch_axis {}", config.ch_axis),
            });
        }
        // Before anything that a user's own observer might let pass.
        let values = finite_values(weight)?;
        let mut observer = config.build()?;
        observer.observe(weight)?;
        let qparams = observer.calculate_qparams()?;
        let dtype = qparams.dtype();
        if dtype != config.dtype {
            return Err(Error::UnsupportedQConfig {
                expected: format!("an observer for {}", config.dtype),
                got: format!("one that chose {dtype}"),
            });
        }
        let ZeroPoints::Int(zero_points) = qparams.zero_points() else {
            return Err(Error::UnsupportedQConfig {
                expected: "integer zero points, for a weight that is multiplied".into(),
                got: config.qscheme.to_string(),
            });
        };
        // One for each channel: a single one is that of all.
        let per_channel = config.qscheme.is_per_channel();
        let of_channels = |count: usize| match count {
            1 => Ok((0..n).map(|_| 0).collect::<Vec<usize>>()),
            count if count == n && per_channel => Ok((0..n).collect()),
            count => Err(Error::UnsupportedQConfig {
                expected: match per_channel {
                    true => format!("one scale, or one for each of {n} output channels"),
                    false => format!("one scale for {}", config.qscheme),
                },
                got: count.to_string(),
            }),
        };
        let of_channels = of_channels(zero_points.len())?;
        let scales: Vec<_> = of_channels.iter().map(|i| qparams.scales()[*i]).collect();
        let zero_points = of_channels.iter().map(|i| zero_points[*i] - offset(dtype));
        let zero_points: Vec<_> = zero_points.collect();

        let mut codes = Vec::with_capacity(n * k);
        for (index, zero_point) in zero_points.iter().enumerate() {
            let channel = qparams.quantize(index, &values[index * k..][..k]);
            let mut bound = 0;
            for code in channel {
                let code = code - offset(dtype);
                bound += 255 * i64::from(code.abs_diff(*zero_point));
                // A code less the offset of its dtype is an i8.
                codes.push(code as i8);
            }
            if bound > i32::MAX.into() {
                return Err(Error::AccumulatorOverflow {
                    channel: index,
                    got: bound,
                });
            }
        }
        let int8 = Int8 {
            codes: &codes,
            scales: &scales,
            zero_points: &zero_points,
        };
        let qscheme = config.qscheme;
        let packed = Packed::int8(isa, k, gates, int8, bias);
        Ok(Self::new(packed, Format::Int8 { dtype, qscheme }))
    }

    fn float16(isa: Isa, gates: usize, weight: &Tensor, k: usize, bias: &[f32]) -> Result<Self> {
        let (halves, saturated) = to_halves(&finite_values(weight)?);
        let packed = Packed::float16(isa, k, gates, &halves, bias);
        Ok(Self::new(packed, Format::Float16 { saturated }))
    }

    fn new(packed: Packed, format: Format) -> Self {
        Self {
            packed,
            format,
            dequantized: OnceLock::new(),
        }
    }

    /// `out_features` and `in_features`.
    pub fn shape(&self) -> [usize; 2] {
        [self.packed.n(), self.packed.k()]
    }

    /// The dtype of the codes; `None` of float16.
    pub fn dtype(&self) -> Option<QDType> {
        match self.format {
            Format::Int8 { dtype, .. } => Some(dtype),
            Format::Float16 { .. } => None,
        }
    }

    /// Over how much of the weight one scale stretches; `None` of float16.
    pub fn qscheme(&self) -> Option<QScheme> {
        match self.format {
            Format::Int8 { qscheme, .. } => Some(qscheme),
            Format::Float16 { .. } => None,
        }
    }

    /// The codes in row order, `[out_features, in_features]`; none of float16.
    pub fn codes(&self) -> Vec<i32> {
        let Some(dtype) = self.dtype() else {
            return Vec::new();
        };
        let codes = self.packed.codes().into_iter();
        codes.map(|code| i32::from(code) + offset(dtype)).collect()
    }

    /// The float16 elements in row order, `[out_features, in_features]`; none of int8.
    pub fn halves(&self) -> Vec<f16> {
        self.packed.halves()
    }

    /// The scale of the weight, or of each output channel; none of float16.
    pub fn scales(&self) -> Vec<f32> {
        match self.qscheme() {
            None => Vec::new(),
            Some(qscheme) => (0..self.qparams(qscheme))
                .map(|i| self.packed.scale(i))
                .collect(),
        }
    }

    /// The zero point of the weight, or of each output channel; none of float16.
    pub fn zero_points(&self) -> Vec<i32> {
        let Format::Int8 { dtype, qscheme } = self.format else {
            return Vec::new();
        };
        let zero_points = (0..self.qparams(qscheme)).map(|i| self.packed.zero_point(i));
        zero_points.map(|zero| zero + offset(dtype)).collect()
    }

    /// How many scales there are.
    fn qparams(&self, qscheme: QScheme) -> usize {
        match qscheme.is_per_channel() {
            true => self.packed.n(),
            false => self.packed.n().min(1),
        }
    }

    /// How many elements were beyond the range of float16.
    pub fn saturated(&self) -> usize {
        match self.format {
            Format::Int8 { .. } => 0,
            Format::Float16 { saturated } => saturated,
        }
    }

    /// The instruction set it is packed for.
    pub fn isa(&self) -> Isa {
        self.packed.isa()
    }

    /// Bytes in memory, scales and padding included.
    pub fn bytes(&self) -> usize {
        self.packed.bytes()
    }

    /// The f32 weight that this represents, `[out_features, in_features]`.
    ///
    /// # Errors
    /// When candle cannot make the tensor.
    pub fn dequantize(&self) -> Result<Tensor> {
        let [n, k] = self.shape();
        let mut values = Vec::with_capacity(n * k);
        for channel in 0..n {
            let sink = |chunk: &[f32]| values.extend_from_slice(chunk);
            self.read_channel(channel, sink);
        }
        from_f32_vec(values, &[n, k], DType::F32)
    }

    /// [`dequantize`](Self::dequantize), computed at the first call and kept.
    pub(crate) fn dequantized(&self) -> &Tensor {
        self.dequantized.get_or_init(|| {
            // A tensor of the right length on the CPU cannot fail to be made.
            let weight = self.dequantize();
            weight.unwrap_or_else(|error| unreachable!("dequantize: {error}"))
        })
    }

    /// Calls `sink` with the values of one output channel, chunk by chunk.
    pub(crate) fn read_channel(&self, channel: usize, sink: impl FnMut(&[f32])) {
        kernels::read_channel(&self.packed, channel, sink);
    }

    pub(crate) fn packed(&self) -> &Packed {
        &self.packed
    }
}

/// The difference between a code and the stored i8: u8 codes are shifted, with their zero points,
/// which changes no product.
pub(crate) fn offset(dtype: QDType) -> i32 {
    match dtype {
        QDType::QInt8 => 0,
        QDType::QUInt8 => 128,
    }
}

/// Values as float16, and the number of values clamped to its range.
pub(crate) fn to_halves(values: &[f32]) -> (Vec<f16>, usize) {
    let max = f16::MAX.to_f32();
    let saturated = values.iter().filter(|value| value.abs() > max).count();
    let halves = values.iter().map(|v| f16::from_f32(v.clamp(-max, max)));
    (halves.collect(), saturated)
}

/// The elements of a weight `[n, k]`, all of them finite.
pub(crate) fn finite_values(weight: &Tensor) -> Result<Vec<f32>> {
    let values = to_f32_vec(weight, "quantize weight")?;
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(at) => {
            let k = weight.dims().last().copied().unwrap_or(1);
            Err(Error::NonFiniteWeight {
                index: vec![at / k, at % k],
                value: values[at],
            })
        }
    }
}
