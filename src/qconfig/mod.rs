//! The quantization of a layer: how its weight is observed, how its activations are.

mod activation;
pub(crate) mod file;
mod groups;

use std::fmt;

use crate::error::{Error, Result};
use crate::kernels::Precision;
use crate::observer::{ObserverConfig, ObserverKind};
use crate::qparams::{QDType, QScheme};
use crate::words::{Words, names, unknown_name};

pub use crate::halves::HalfType;
pub use activation::{Arithmetic, DynamicConfig, Granularity};
pub(crate) use groups::BLOCK;
pub use groups::{GroupConfig, GroupScheme, IntType};

/// How one layer is quantized; PyTorch's `QConfig`.
///
/// ```
/// use candle_dynquant::QConfig;
///
/// assert_eq!(QConfig::int8().to_string(), "qint8 per channel, u8 per row");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum QConfig {
    /// 8-bit weights, multiplied with 8-bit activations.
    Int8 {
        /// The observer that chooses the weights' scales and zero points, once.
        weight: ObserverConfig,
        /// How activations are quantized, at every call.
        activation: DynamicConfig,
    },
    /// Half-precision weights: float16 weights are multiplied with f32 activations, bfloat16
    /// weights with activations that are rounded to bfloat16.
    Half(HalfType),
    /// Integer weights in groups of inputs, multiplied with 8-bit activations in groups.
    Groups(GroupConfig),
    /// A table of 8-bit codes that is looked up and never multiplied, for embeddings.
    Table(ObserverConfig),
}

/// The quantization arguments of ONNX Runtime's `quantize_dynamic`, with its defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OnnxRuntimeOptions {
    /// `weight_type`.
    pub weight_type: QDType,
    /// `per_channel`: a weight scale per output channel.
    pub per_channel: bool,
    /// `reduce_range`: use only half the codes of weights.
    pub reduce_range: bool,
    /// `extra_options["WeightSymmetric"]`; unset, qint8 is symmetric and quint8 affine.
    pub weight_symmetric: Option<bool>,
}

impl OnnxRuntimeOptions {
    /// qint8, symmetric, per tensor, all codes.
    pub(crate) const DEFAULT: Self = Self {
        weight_type: QDType::QInt8,
        per_channel: false,
        reduce_range: false,
        weight_symmetric: None,
    };
}

impl Default for OnnxRuntimeOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl QConfig {
    /// The presets.
    const NAMED: Words<fn() -> Self, 9> = [
        ("int8", Self::int8),
        ("int8_groups", Self::int8_groups),
        ("int4", Self::int4),
        ("pytorch", Self::pytorch),
        ("per_channel", Self::per_channel),
        ("float16", Self::float16),
        ("bfloat16", Self::bfloat16),
        ("table", Self::table),
        ("onnxruntime", || Self::onnxruntime(OnnxRuntimeOptions::DEFAULT)),
    ];

    /// PyTorch's names of presets, without `_qconfig`.
    const PYTORCH_NAMES: [(&'static str, &'static str); 4] = [
        ("default_dynamic", "pytorch"),
        ("per_channel_dynamic", "per_channel"),
        ("float16_dynamic", "float16"),
        ("float_qparams_weight_only", "table"),
    ];

    /// The names that [`preset`](Self::preset) knows.
    #[doc(hidden)]
    pub const PRESETS: [&'static str; 9] = names(&Self::NAMED);

    /// The preset of that name, or of PyTorch's name for it, such as `default_dynamic_qconfig`.
    #[doc(hidden)]
    pub fn preset(name: &str) -> Result<Self> {
        let short = name.strip_suffix("_qconfig").unwrap_or(name);
        let mut aliases = Self::PYTORCH_NAMES.into_iter();
        let short = aliases.find(|(pytorch, _)| *pytorch == short).map_or(short, |(_, name)| name);
        let preset = Self::NAMED.into_iter().find(|(known, _)| *known == short);
        preset
            .map(|(_, preset)| preset())
            .ok_or_else(|| unknown_name("qconfig", name, &Self::PRESETS))
    }

    /// The name of the preset that this is.
    pub(crate) fn preset_name(&self) -> Option<&'static str> {
        let mut presets = Self::NAMED.into_iter();
        presets.find(|(_, preset)| preset() == *self).map(|(name, _)| name)
    }

    /// PyTorch's `default_dynamic_qconfig`: one weight scale, one 7-bit activation scale a call.
    ///
    /// Bit-equal to torch 2.9.1 on x86.
    pub const fn pytorch() -> Self {
        Self::Int8 {
            weight: ObserverConfig::PER_TENSOR,
            activation: DynamicConfig::new(Granularity::PerTensor, true),
        }
    }

    /// PyTorch's `per_channel_dynamic_qconfig`: a weight scale per output channel.
    ///
    /// Bit-equal to torch 2.9.1 on x86.
    pub const fn per_channel() -> Self {
        Self::Int8 {
            weight: ObserverConfig::PER_CHANNEL,
            activation: DynamicConfig::new(Granularity::PerTensor, true),
        }
    }

    /// The recommended configuration: a weight scale per output channel, an 8-bit activation scale
    /// per row, and [no minimum](Self::eps) of either scale.
    pub const fn int8() -> Self {
        Self::Int8 {
            weight: ObserverConfig::PER_CHANNEL,
            activation: DynamicConfig::new(Granularity::PerRow, false),
        }
        .eps(Self::MIN_EPS)
    }

    /// The minimum scale that leaves small weights as they are: the least normal f32, 1.2e-38,
    /// since the inverse of a smaller scale may be infinite.
    pub(crate) const MIN_EPS: f32 = f32::MIN_POSITIVE;

    /// Itself with another minimum scale of int8 weights, PyTorch's `eps`.
    ///
    /// PyTorch's is 2^-23: weights below 1e-5 lose bits by it, and weights below 1e-7 become 0. In
    /// [`int8`](Self::int8) it is the least normal f32, `f32::MIN_POSITIVE`, which leaves small
    /// weights as they are: the inverse of a smaller scale may be infinite.
    ///
    /// ```
    /// use candle_dynquant::QConfig;
    ///
    /// let json = serde_json::to_value(QConfig::pytorch().eps(f32::MIN_POSITIVE))?;
    /// assert_eq!(json["weight"]["eps"], f32::MIN_POSITIVE);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[must_use]
    pub const fn eps(mut self, eps: f32) -> Self {
        if let Self::Int8 { weight, .. } | Self::Table(weight) = &mut self {
            weight.eps = eps;
        }
        self
    }

    /// Itself with half of the codes of int8 weights: ONNX Runtime's `reduce_range`.
    ///
    /// It costs accuracy. x86-64 CPUs without VNNI multiply such weights faster, others do not.
    ///
    /// ```
    /// use candle_dynquant::{QConfig, QConfigSpec};
    ///
    /// let qconfig = QConfig::int8().reduce_range();
    /// assert_eq!(qconfig.to_string(), "qint8 of 7 bits per channel, u8 per row");
    /// assert!(QConfigSpec::int8_reduce_range().to_string().contains(&qconfig.to_string()));
    /// ```
    #[must_use]
    pub const fn reduce_range(mut self) -> Self {
        if let Self::Int8 { weight, .. } | Self::Table(weight) = &mut self {
            weight.reduce_range = true;
        }
        self
    }

    /// 4-bit weights, symmetric, in groups of 32 inputs: 4.5 bits a weight. Of 8-bit activations,
    /// each 32 inputs of a row have a scale.
    pub const fn int4() -> Self {
        Self::Groups(GroupConfig::INT4)
    }

    /// 8-bit weights, symmetric, in groups of 32 inputs: 8.5 bits a weight, about five decibels
    /// better than [`int8`](Self::int8), in up to 1.45 times its time.
    pub const fn int8_groups() -> Self {
        Self::Groups(GroupConfig::INT8)
    }

    /// PyTorch's `float16_dynamic_qconfig`: half-precision weights, float activations.
    pub const fn float16() -> Self {
        Self::Half(HalfType::Float16)
    }

    /// bfloat16 weights and activations, with sums in f32: nearly float's accuracy, and half of
    /// int8's peak on AMX and AVX512-BF16.
    ///
    /// Activations and weights are each within 2^-8 of their value, so that a result is within
    /// `k * 2^-7 * max|x| * max|w|` of the float one, `k` being the number of inputs. Every
    /// instruction set gives the same bits, unless a sum is subnormal (below 1.2e-38).
    pub const fn bfloat16() -> Self {
        Self::Half(HalfType::BFloat16)
    }

    /// PyTorch's `float_qparams_weight_only_qconfig`: for embeddings, a row of u8 codes each
    /// with a scale and a float zero point.
    pub const fn table() -> Self {
        Self::Table(ObserverConfig::new(
            ObserverKind::PerChannelMinMax,
            QDType::QUInt8,
            QScheme::PerChannelAffineFloatQParams,
        ))
    }

    /// ONNX Runtime's `quantize_dynamic`, in its own arithmetic.
    ///
    /// ```
    /// use candle_dynquant::{OnnxRuntimeOptions, QConfig, QDType};
    ///
    /// let qconfig = QConfig::onnxruntime(OnnxRuntimeOptions {
    ///     weight_type: QDType::QUInt8,
    ///     per_channel: true,
    ///     ..Default::default()
    /// });
    /// assert_eq!(qconfig.to_string(), "quint8 affine per channel, u8 per tensor");
    /// ```
    pub const fn onnxruntime(options: OnnxRuntimeOptions) -> Self {
        let symmetric = match options.weight_symmetric {
            Some(symmetric) => symmetric,
            None => matches!(options.weight_type, QDType::QInt8),
        };
        let qscheme = QScheme::integer(options.per_channel, symmetric);
        let mut weight =
            ObserverConfig::new(ObserverKind::OnnxRuntime, options.weight_type, qscheme);
        weight.reduce_range = options.reduce_range;
        Self::Int8 {
            weight,
            activation: DynamicConfig {
                granularity: Granularity::PerTensor,
                reduce_range: false,
                arithmetic: Arithmetic::OnnxRuntime,
            },
        }
    }

    /// The precision of attention that it asks for.
    pub(crate) fn precision(&self) -> Result<Precision> {
        if *self == Self::bfloat16() {
            return Ok(Precision::BFloat16);
        }
        if let Self::Int8 { activation, .. } = self
            && *activation == DynamicConfig::default()
        {
            return Ok(Precision::Int8);
        }
        let expected = "int8 with activations of 8 bits per row, or bfloat16, for attention, \
                        which has no weights";
        Err(Error::qconfig(expected, self))
    }

    /// The observer of codes; `None` of halves and of groups.
    pub(crate) const fn observer(&self) -> Option<&ObserverConfig> {
        if let Self::Int8 { weight, .. } | Self::Table(weight) = self {
            return Some(weight);
        }
        None
    }
}

/// The configuration that asks for attention of a precision; none for float32.
///
/// ```
/// use candle_dynquant::{LayerKind, QConfig, QConfigSpec, ops::Precision};
///
/// let spec = QConfigSpec::int8().kind(LayerKind::Attention, Precision::BFloat16);
/// assert_eq!(spec, QConfigSpec::int8().kind(LayerKind::Attention, QConfig::bfloat16()));
/// ```
impl From<Precision> for Option<QConfig> {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::Float32 => None,
            Precision::BFloat16 => Some(QConfig::bfloat16()),
            Precision::Int8 => Some(QConfig::int8()),
        }
    }
}

/// `qint8 per channel, u8 per row`.
impl fmt::Display for QConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int8 { weight, activation } => {
                write_codes(weight, f)?;
                write!(f, ", {activation}")
            }
            Self::Table(weight) => {
                write_codes(weight, f)?;
                f.write_str(", float activations")
            }
            Self::Half(half) => write!(f, "{half}, {} activations", half.facts().activations),
            Self::Groups(groups) => write!(f, "{groups}, s8 in groups of {BLOCK}"),
        }
    }
}

fn write_codes(config: &ObserverConfig, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}", config.dtype)?;
    if config.reduce_range {
        f.write_str(" of 7 bits")?;
    }
    f.write_str(match config.qscheme {
        QScheme::PerTensorSymmetric => " per tensor",
        QScheme::PerTensorAffine => " affine per tensor",
        QScheme::PerChannelSymmetric => " per channel",
        QScheme::PerChannelAffine => " affine per channel",
        QScheme::PerChannelAffineFloatQParams => " per row with float zero points",
    })
}
