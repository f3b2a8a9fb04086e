//! The choice of an observer and its arguments, and the trait of observers.

use std::fmt;
use std::sync::Arc;

use candle_core::Tensor;

use super::weight_qparams::WeightQParams;
use crate::error::Result;
use crate::qparams::{QDType, QScheme};

/// An observer and its arguments; PyTorch's `Observer.with_args(..)`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ObserverConfig {
    /// The kind of observer.
    pub kind: ObserverKind,
    /// The codes.
    pub dtype: QDType,
    /// Granularity and symmetry.
    pub qscheme: QScheme,
    /// The axis of the channels; a negative one counts from the last.
    #[doc(hidden)]
    pub ch_axis: isize,
    /// Use only half the codes.
    pub reduce_range: bool,
    /// Minimum and maximum code, if not all codes of the dtype are used.
    pub quant_range: Option<[i32; 2]>,
    /// Minimum scale, at least the least normal f32; PyTorch's is 2^-23.
    pub eps: f32,
}

/// The kinds of observers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ObserverKind {
    /// `MinMaxObserver`: minimum and maximum of all elements seen, per tensor.
    MinMax,
    /// `PerChannelMinMaxObserver`: minimum and maximum of each output channel.
    PerChannelMinMax,
    /// `MovingAverageMinMaxObserver`: averages of minimum and maximum, per tensor.
    MovingAverageMinMax {
        /// Share of the newest in the average; 0.01 by default.
        averaging_constant: f32,
    },
    /// `MovingAveragePerChannelMinMaxObserver`: averages of each output channel.
    MovingAveragePerChannelMinMax {
        /// Share of the newest in the average; 0.01 by default.
        averaging_constant: f32,
    },
    /// `HistogramObserver`: the range with the minimum expected square error, per tensor.
    Histogram {
        /// Bins of the histogram; 2,048 by default.
        bins: usize,
    },
    /// ONNX Runtime's own formulas, per tensor or per channel.
    OnnxRuntime,
    /// `PlaceholderObserver`: observes nothing and has no scale.
    Placeholder,
    /// A custom observer.
    Custom(CustomObserver),
}

/// A custom observer: a name, and a function that builds it.
#[derive(Clone)]
pub struct CustomObserver {
    name: Arc<str>,
    pub(super) build: Build,
}

type Build = Arc<dyn Fn(&ObserverConfig) -> Result<Box<dyn Observer>> + Send + Sync>;

/// Looks at tensors and chooses their scale and zero point.
///
/// Implement it for an observer of your own, and name it with [`ObserverKind::Custom`]:
///
/// ```
/// use candle_core::Tensor;
/// use candle_dynquant::observer::{
///     CustomObserver, Observer, ObserverConfig, ObserverKind, WeightQParams, ZeroPoints,
/// };
/// use candle_dynquant::{QDType, QScheme, Result};
///
/// /// A fixed scale, whatever the weight.
/// #[derive(Debug)]
/// struct Fixed(f32);
///
/// impl Observer for Fixed {
///     fn observe(&mut self, _: &Tensor) -> Result<()> {
///         Ok(())
///     }
///
///     fn calculate_qparams(&self) -> Result<WeightQParams> {
///         WeightQParams::new(QDType::QInt8, vec![self.0], ZeroPoints::Int(vec![0]))
///     }
/// }
///
/// let kind = ObserverKind::Custom(CustomObserver::new("Fixed", |_| Ok(Box::new(Fixed(0.5)))));
/// let config = ObserverConfig::new(kind, QDType::QInt8, QScheme::PerTensorSymmetric);
/// assert_eq!(config.build()?.calculate_qparams()?.scales(), [0.5]);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
pub trait Observer: fmt::Debug {
    /// Takes a float tensor into account; one without elements changes nothing. A weight that is
    /// quantized is shown contiguous and in f32.
    ///
    /// # Errors
    /// When the tensor is not a float tensor on the CPU, an element is NaN or infinite, or its
    /// shape does not match earlier tensors. The observer is then unchanged.
    fn observe(&mut self, tensor: &Tensor) -> Result<()>;

    /// The scale and zero point of what was observed, or of each channel.
    ///
    /// As in PyTorch, they are 1 and 0 before the first element is seen.
    ///
    /// # Errors
    /// When the scale is missing, or is one that f32 cannot hold.
    fn calculate_qparams(&self) -> Result<WeightQParams>;

    /// The minimum and maximum of the elements seen, or of each channel's; empty if none was seen,
    /// or if the observer keeps none.
    fn ranges(&self) -> Vec<[f32; 2]> {
        Vec::new()
    }
}

impl CustomObserver {
    /// An observer that `build` makes afresh for every weight.
    pub fn new(
        name: impl Into<Arc<str>>,
        build: impl Fn(&ObserverConfig) -> Result<Box<dyn Observer>> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), build: Arc::new(build) }
    }

    /// The name of the observer.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for CustomObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomObserver").field(&self.name).finish()
    }
}

/// Observers are equal if they have the same function under the same name.
impl PartialEq for CustomObserver {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.build, &other.build)
    }
}

impl ObserverKind {
    /// PyTorch's name for it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::MinMax => "MinMaxObserver",
            Self::PerChannelMinMax => "PerChannelMinMaxObserver",
            Self::MovingAverageMinMax { .. } => "MovingAverageMinMaxObserver",
            Self::MovingAveragePerChannelMinMax { .. } => "MovingAveragePerChannelMinMaxObserver",
            Self::Histogram { .. } => "HistogramObserver",
            Self::OnnxRuntime => "OnnxRuntimeObserver",
            Self::Placeholder => "PlaceholderObserver",
            Self::Custom(_) => "Custom",
        }
    }

    /// Whether it is per channel; `None` if it can be either.
    pub(crate) fn per_channel(&self) -> Option<bool> {
        match self {
            Self::MinMax | Self::MovingAverageMinMax { .. } | Self::Histogram { .. } => Some(false),
            Self::PerChannelMinMax | Self::MovingAveragePerChannelMinMax { .. } => Some(true),
            Self::OnnxRuntime | Self::Placeholder | Self::Custom(_) => None,
        }
    }
}

impl ObserverConfig {
    /// PyTorch's `default_weight_observer`: qint8, symmetric, one scale.
    pub(crate) const PER_TENSOR: Self =
        Self::new(ObserverKind::MinMax, QDType::QInt8, QScheme::PerTensorSymmetric);

    /// PyTorch's `default_per_channel_weight_observer`: qint8, symmetric, a scale a channel.
    pub(crate) const PER_CHANNEL: Self =
        Self::new(ObserverKind::PerChannelMinMax, QDType::QInt8, QScheme::PerChannelSymmetric);

    /// An observer with PyTorch's defaults for the rest: channels along axis 0, all codes, an
    /// `eps` of 2^-23.
    pub const fn new(kind: ObserverKind, dtype: QDType, qscheme: QScheme) -> Self {
        Self {
            kind,
            dtype,
            qscheme,
            ch_axis: 0,
            reduce_range: false,
            quant_range: None,
            eps: f32::EPSILON,
        }
    }

    /// Whether an observer that is shown a weight block by block gives it the parameters that it
    /// gives it as a whole, one scale for all.
    pub(crate) fn sees_blocks(&self) -> bool {
        let ranges = matches!(self.kind, ObserverKind::MinMax | ObserverKind::OnnxRuntime);
        ranges && !self.qscheme.is_per_channel()
    }

    /// The share of the newest in a moving average.
    pub(super) fn averaging_constant(&self) -> Option<f32> {
        match self.kind {
            ObserverKind::MovingAverageMinMax { averaging_constant }
            | ObserverKind::MovingAveragePerChannelMinMax { averaging_constant } => {
                Some(averaging_constant)
            }
            _ => None,
        }
    }
}
