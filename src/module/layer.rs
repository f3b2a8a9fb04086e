//! Leaves of the tree: layers that hold weights.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{LentWeight, WeightId};
use crate::error::{Error, Result};
use crate::qconfig::QConfig;
use crate::qparams::QDType;
use crate::words::{lookup, serde_as_word};

/// The kind of a layer; rules by kind match on it.
///
/// It is parsed from its name, your own kinds from `Custom(name)`; serde uses the same text:
///
/// ```
/// use candle_dynquant::LayerKind;
///
/// assert_eq!("LSTM".parse::<LayerKind>()?, LayerKind::LSTM);
/// assert_eq!("Custom(Conv1d)".parse::<LayerKind>()?, LayerKind::custom("Conv1d"));
/// let typo = "Liner".parse::<LayerKind>().unwrap_err();
/// assert!(typo.to_string().ends_with("did you mean `Linear`?"));
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LayerKind {
    /// `y = x W^T + b`.
    Linear,
    /// Long short-term memory over a sequence.
    LSTM,
    /// Gated recurrent unit over a sequence.
    GRU,
    /// A plain recurrent network over a sequence; not among PyTorch's default kinds.
    RNN,
    /// One LSTM step.
    LSTMCell,
    /// One step of a plain recurrent network.
    RNNCell,
    /// One GRU step.
    GRUCell,
    /// A table of vectors.
    Embedding,
    /// A user's own layer, by the name it chose.
    Custom(Cow<'static, str>),
}

impl LayerKind {
    /// The six kinds that PyTorch's `quantize_dynamic` swaps by default.
    pub const DEFAULT: [Self; 6] = [
        Self::Linear,
        Self::LSTM,
        Self::GRU,
        Self::LSTMCell,
        Self::RNNCell,
        Self::GRUCell,
    ];

    /// The seven kinds that multiply: PyTorch's six and [`RNN`](Self::RNN).
    pub const MULTIPLYING: [Self; 7] = [
        Self::Linear,
        Self::LSTM,
        Self::GRU,
        Self::RNN,
        Self::LSTMCell,
        Self::RNNCell,
        Self::GRUCell,
    ];

    /// The kind of a user's own layer.
    pub const fn custom(name: &'static str) -> Self {
        Self::Custom(Cow::Borrowed(name))
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Linear => "Linear",
            Self::LSTM => "LSTM",
            Self::GRU => "GRU",
            Self::RNN => "RNN",
            Self::LSTMCell => "LSTMCell",
            Self::RNNCell => "RNNCell",
            Self::GRUCell => "GRUCell",
            Self::Embedding => "Embedding",
            Self::Custom(name) => return f.pad(&format!("Custom({name})")),
        })
    }
}

impl FromStr for LayerKind {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        let own = word
            .strip_prefix("Custom(")
            .and_then(|w| w.strip_suffix(')'));
        if let Some(name) = own.filter(|name| !name.is_empty()) {
            return Ok(Self::Custom(name.to_owned().into()));
        }
        let words = [
            ("Linear", Self::Linear),
            ("LSTM", Self::LSTM),
            ("GRU", Self::GRU),
            ("RNN", Self::RNN),
            ("LSTMCell", Self::LSTMCell),
            ("RNNCell", Self::RNNCell),
            ("GRUCell", Self::GRUCell),
            ("Embedding", Self::Embedding),
            // Read above; here for the list of what there is.
            ("Custom(name)", Self::custom("name")),
        ];
        lookup("kind", word, words)
    }
}

serde_as_word!(LayerKind);

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum WeightDType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// 16-bit bfloat.
    BF16,
    /// Signed 8-bit codes with scales, PyTorch's `qint8`.
    QInt8,
    /// Unsigned 8-bit codes with scales and zero points, PyTorch's `quint8`.
    QUInt8,
    /// Anything else.
    Other,
}

impl WeightDType {
    /// Of codes, or `None` of float16.
    pub(crate) fn of_codes(dtype: Option<QDType>) -> Self {
        match dtype {
            None => Self::F16,
            Some(QDType::QInt8) => Self::QInt8,
            Some(QDType::QUInt8) => Self::QUInt8,
        }
    }

    /// Whether these are codes.
    pub fn is_quantized(self) -> bool {
        matches!(self, Self::QInt8 | Self::QUInt8)
    }
}

impl From<candle_core::DType> for WeightDType {
    fn from(dtype: candle_core::DType) -> Self {
        match dtype {
            candle_core::DType::F64 => Self::F64,
            candle_core::DType::F32 => Self::F32,
            candle_core::DType::F16 => Self::F16,
            candle_core::DType::BF16 => Self::BF16,
            _ => Self::Other,
        }
    }
}

/// One weight of a layer, as the layer describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WeightInfo {
    /// Name within the layer, as in a checkpoint: `weight`, `weight_ih_l0`.
    pub name: String,
    /// Shape, outputs first.
    pub shape: Vec<usize>,
    /// How it is stored now.
    pub dtype: WeightDType,
    /// Bytes in memory, including scales and padding, without biases.
    pub bytes: usize,
    /// Whether it cannot be quantized again.
    pub quantized: bool,
    /// Elements that were clamped to the range of its dtype when it was quantized.
    pub saturated: usize,
    /// Its memory, if the layer gives it: memory that several layers hold is counted once, and a
    /// view counts the whole memory.
    #[serde(skip)]
    pub id: Option<WeightId>,
}

impl WeightInfo {
    /// Describes one weight; it counts as quantized if its dtype has codes.
    pub fn new(name: impl Into<String>, shape: &[usize], dtype: WeightDType, bytes: usize) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            dtype,
            bytes,
            quantized: dtype.is_quantized(),
            saturated: 0,
            id: None,
        }
    }

    /// The same, in the memory `id`.
    #[must_use]
    pub fn held_as(self, id: WeightId) -> Self {
        Self {
            id: Some(id),
            ..self
        }
    }

    /// The same as a quantized weight, `saturated` elements of which were out of range.
    #[must_use]
    pub fn quantized(self, saturated: usize) -> Self {
        Self {
            quantized: true,
            saturated,
            ..self
        }
    }
}

/// A layer that can be quantized; implement it for your own layers.
///
/// This is the answer to PyTorch's `mapping`: where PyTorch maps a type to its quantized
/// twin, here the type itself defines its quantized form. The layer keeps its type, so a model's
/// fields do not change under quantization.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{nn, quantize_dynamic, Layer, LayerKind, QConfig, QConfigSpec, Quantizable, WeightInfo};
///
/// /// A 1x1 convolution over `[batch, channels, length]`: a projection of the channels.
/// #[derive(Quantizable, Clone)]
/// #[quantizable(layer)]
/// struct PointwiseConv {
///     projection: nn::Projection,
/// }
///
/// impl Layer for PointwiseConv {
///     fn kind(&self) -> LayerKind {
///         LayerKind::custom("PointwiseConv")
///     }
///     fn weights(&self) -> Vec<WeightInfo> {
///         vec![self.projection.info("weight")]
///     }
///     fn quantize(&self, qconfig: &QConfig) -> candle_dynquant::Result<Self> {
///         Ok(Self { projection: self.projection.quantize(qconfig)? })
///     }
/// }
///
/// impl Module for PointwiseConv {
///     fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
///         self.projection.forward(&xs.transpose(1, 2)?)?.transpose(1, 2)
///     }
/// }
///
/// let weight = Tensor::randn(0f32, 1., (8, 4), &Device::Cpu)?;
/// let mut conv = PointwiseConv { projection: nn::Projection::new(weight, None) };
/// let spec = QConfigSpec::new().kind(LayerKind::custom("PointwiseConv"), QConfig::per_row_dynamic());
/// let report = quantize_dynamic(&mut conv, &spec)?;
/// assert_eq!(report.swapped().count(), 1);
/// let ys = conv.forward(&Tensor::ones((2, 4, 5), candle_core::DType::F32, &Device::Cpu)?)?;
/// assert_eq!(ys.dims(), [2, 8, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer",
    note = "`#[quantizable(layer)]` makes it a leaf of the tree: implement `Layer` for it"
)]
pub trait Layer: Sized + 'static {
    /// The kind of layer.
    fn kind(&self) -> LayerKind;

    /// The name it was loaded under, if it remembers one; rules match it as well as the path.
    fn checkpoint_name(&self) -> Option<&str> {
        None
    }

    /// Its weights as they are now.
    fn weights(&self) -> Vec<WeightInfo>;

    /// The same layer with quantized weights; `self` stays as it is.
    ///
    /// # Errors
    /// When a weight cannot be quantized with `qconfig`.
    fn quantize(&self, qconfig: &QConfig) -> Result<Self>;

    /// The quantized weight of that name, for other layers that held the same float matrix and
    /// are quantized in the same call; a layer of your own passes on
    /// [`Projection::lend`](crate::nn::Projection::lend).
    fn lend(&self, name: &str) -> Option<LentWeight> {
        let _ = name;
        None
    }

    /// The same layer with the quantized weight of another layer, made from the matrix that this
    /// layer holds too; `None` if it cannot use it, in which case it is quantized on its own.
    fn quantize_sharing(&self, qconfig: &QConfig, lent: &LentWeight) -> Option<Self> {
        let _ = (qconfig, lent);
        None
    }
}

/// [`Layer`] as an object; implemented for every layer, not to be implemented by hand.
pub trait AnyLayer: sealed::Sealed + Any {
    /// [`Layer::kind`].
    fn kind(&self) -> LayerKind;
    /// [`Layer::checkpoint_name`].
    fn checkpoint_name(&self) -> Option<&str>;
    /// [`Layer::weights`].
    fn weights(&self) -> Vec<WeightInfo>;
    /// [`Layer::quantize`], the result in a box.
    ///
    /// # Errors
    /// As [`Layer::quantize`].
    fn quantize_boxed(&self, qconfig: &QConfig) -> Result<Box<dyn AnyLayer>>;
    /// [`Layer::lend`].
    fn lend(&self, name: &str) -> Option<LentWeight>;
    /// [`Layer::quantize_sharing`], the result in a box.
    fn quantize_sharing_boxed(
        &self,
        qconfig: &QConfig,
        lent: &LentWeight,
    ) -> Option<Box<dyn AnyLayer>>;
    /// Whether `replacement` is of the same type, so that it can be installed.
    fn accepts(&self, replacement: &dyn AnyLayer) -> bool;
    /// Puts `replacement` in the place of `self`, which is returned.
    ///
    /// # Errors
    /// [`Error::InconsistentWalk`] if it is of another type; `self` is then unchanged.
    fn install(&mut self, replacement: Box<dyn AnyLayer>) -> Result<Box<dyn AnyLayer>>;
}

mod sealed {
    pub trait Sealed {}
    impl<L: super::Layer> Sealed for L {}
}

impl<L: Layer> AnyLayer for L {
    fn kind(&self) -> LayerKind {
        Layer::kind(self)
    }

    fn checkpoint_name(&self) -> Option<&str> {
        Layer::checkpoint_name(self)
    }

    fn weights(&self) -> Vec<WeightInfo> {
        Layer::weights(self)
    }

    fn quantize_boxed(&self, qconfig: &QConfig) -> Result<Box<dyn AnyLayer>> {
        Ok(Box::new(self.quantize(qconfig)?))
    }

    fn lend(&self, name: &str) -> Option<LentWeight> {
        Layer::lend(self, name)
    }

    fn quantize_sharing_boxed(
        &self,
        qconfig: &QConfig,
        lent: &LentWeight,
    ) -> Option<Box<dyn AnyLayer>> {
        Some(Box::new(self.quantize_sharing(qconfig, lent)?))
    }

    fn accepts(&self, replacement: &dyn AnyLayer) -> bool {
        (replacement as &dyn Any).is::<L>()
    }

    fn install(&mut self, replacement: Box<dyn AnyLayer>) -> Result<Box<dyn AnyLayer>> {
        match (replacement as Box<dyn Any>).downcast::<L>() {
            Ok(mut layer) => {
                std::mem::swap(self, &mut *layer);
                Ok(layer)
            }
            Err(_) => Err(Error::InconsistentWalk {
                message: format!("expected a {} here", std::any::type_name::<L>()),
            }),
        }
    }
}
