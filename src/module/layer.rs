//! Leaves of the tree: layers that hold weights.

use std::any::Any;

use candle_core::Tensor;

use super::kind::LayerKind;
use super::tied::LentWeight;
use super::weight_info::WeightInfo;
use crate::error::{Error, Fault, Result};
use crate::kernels::{InputFactor, Precision};
use crate::qconfig::QConfig;
use crate::tap::{Replay, Tap};
use crate::weight::StoredWeight;

/// A layer that can be quantized. For a struct around [`Projection`](crate::nn::Projection)s it is
/// derived, by `#[quantizable(layer = "Kind")]`: see [`Quantizable`](macro@crate::Quantizable). By
/// hand, most methods pass on a projection's: [`info`](crate::nn::Projection::info),
/// [`quantize`](crate::nn::Projection::quantize), [`stored`](crate::nn::Projection::stored) and so
/// on.
///
/// This is the answer to PyTorch's `mapping`: where PyTorch maps a type to its quantized
/// twin, here the type itself defines its quantized form. The layer keeps its type, so a model's
/// fields do not change under quantization.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{nn, quantize_dynamic, Layer, LayerKind, QConfig, QConfigSpec, Quantizable, WeightInfo};
///
/// /// By hand: a 1x1 convolution over `[batch, channels, length]`, a projection of the channels.
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
///     fn weight_infos(&self) -> Vec<WeightInfo> {
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
/// let spec = QConfigSpec::new().kind(LayerKind::custom("PointwiseConv"), QConfig::int8());
/// let report = quantize_dynamic(&mut conv, &spec)?;
/// assert_eq!(report.swapped().count(), 1);
/// let ys = conv.forward(&Tensor::ones((2, 4, 5), candle_core::DType::F32, &Device::Cpu)?)?;
/// assert_eq!(ys.dims(), [2, 8, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer",
    note = "`#[quantizable(layer)]` makes it a leaf of the tree: implement `Layer` for it",
    note = "for a struct around `nn::Projection`s, `#[quantizable(layer = \"Kind\")]` does it"
)]
pub trait Layer: AnyLayer {
    /// The kind of layer.
    fn kind(&self) -> LayerKind;

    /// The name that the layer was loaded under, if it remembers it; rules match it as well as the
    /// path.
    fn checkpoint_name(&self) -> Option<&str> {
        None
    }

    /// The weights as they are now.
    fn weight_infos(&self) -> Vec<WeightInfo>;

    /// The precision of the factors that a layer without weights multiplies, as
    /// [`nn::Attention`](crate::nn::Attention): in fewer bits than float32, it counts as quantized.
    /// `None` by default.
    fn precision(&self) -> Option<Precision> {
        None
    }

    /// This layer with quantized weights; `self` stays as it is.
    ///
    /// # Errors
    /// When a weight cannot be quantized with `qconfig`.
    fn quantize(&self, qconfig: &QConfig) -> Result<Self>
    where
        Self: Sized;

    /// This layer with its weight quantized so that its products with the inputs that it reports
    /// are most exact: for [`gptq`](crate::gptq()). `None` if the layer has no such form, as by
    /// default.
    #[doc(hidden)]
    fn quantize_for(&self, qconfig: &QConfig, inputs: &InputFactor) -> Result<Option<Self>>
    where
        Self: Sized,
    {
        let _ = (qconfig, inputs);
        Ok(None)
    }

    /// The quantized weight of that name, for other layers that held the same float matrix and
    /// are quantized in the same call.
    #[doc(hidden)]
    fn lend(&self, name: &str) -> Option<LentWeight> {
        let _ = name;
        None
    }

    /// This layer with the quantized weight of another layer, made from the matrix that this
    /// layer holds too; `None` if it cannot use it, in which case it is quantized on its own.
    #[doc(hidden)]
    fn quantize_sharing(&self, qconfig: &QConfig, lent: &LentWeight) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = (qconfig, lent);
        None
    }

    /// The weights to be saved, each under its name within the layer: quantized weights, and the
    /// float weights of an equalized model. All others are copied from the float checkpoint.
    ///
    /// # Errors
    /// When the layer cannot give them; by default, when it has any weights.
    fn stored(&self) -> Result<Vec<StoredWeight>> {
        let mut weights = self.weight_infos().into_iter();
        match weights.find(|weight| weight.quantized) {
            None => Ok(Vec::new()),
            Some(weight) => Err(Error::unsavable(
                "one that implements `Layer::stored`",
                format!("a {} with a quantized `{}`", self.kind(), weight.name),
            )),
        }
    }

    /// The weights as float tensors of the shapes of [`weight_infos`](Self::weight_infos), in that
    /// order, dequantized where they are quantized: to be measured by [`inspect`](crate::inspect).
    /// None by default.
    ///
    /// # Errors
    /// When a weight cannot be read.
    fn weights(&self) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }

    /// This layer with the rows (`dim` 0) of its weight and its bias, or the columns (1) of its
    /// weight, multiplied by `factors`: for [`equalize`](crate::equalize()). `None` if its outputs
    /// or inputs are not proportional to them, as by default.
    #[doc(hidden)]
    fn scale(&self, dim: usize, factors: &Tensor) -> Result<Option<Self>>
    where
        Self: Sized,
    {
        let _ = (dim, factors);
        Ok(None)
    }

    /// Makes each forward call report its inputs and output to `tap`, or to nothing; returns
    /// whether the layer can. Without it, a layer is not measured by [`inspect`](crate::inspect).
    #[doc(hidden)]
    fn attach(&mut self, tap: Option<Tap>) -> bool {
        let _ = tap;
        false
    }

    /// The layer as a function of the inputs that it reports; `None` if it reports none.
    #[doc(hidden)]
    fn replay(&self) -> Option<Replay> {
        None
    }
}

/// A [`Layer`] whose type a walk does not know; every layer is one.
#[allow(clippy::missing_errors_doc, reason = "the errors are those of `Layer`")]
pub trait AnyLayer: Any {
    /// [`Layer::quantize`], the result in a box.
    fn quantize_boxed(&self, qconfig: &QConfig) -> Result<Box<dyn Layer>>;
    /// [`Layer::quantize_for`], the result in a box.
    fn quantize_for_boxed(
        &self,
        qconfig: &QConfig,
        inputs: &InputFactor,
    ) -> Result<Option<Box<dyn Layer>>>;
    /// [`Layer::quantize_sharing`], the result in a box.
    fn quantize_sharing_boxed(
        &self,
        qconfig: &QConfig,
        lent: &LentWeight,
    ) -> Option<Box<dyn Layer>>;
    /// [`Layer::scale`], the result in a box.
    fn scale_boxed(&self, dim: usize, factors: &Tensor) -> Result<Option<Box<dyn Layer>>>;
    /// Whether `replacement` is of the same type, so that it can be installed.
    fn accepts(&self, replacement: &dyn Layer) -> bool;
    /// Puts `replacement` in the place of `self`, which is returned.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModel`](crate::ErrorKind::InvalidModel) if it is of another type;
    /// `self` is then unchanged.
    fn install(&mut self, replacement: Box<dyn Layer>) -> Result<Box<dyn Layer>>;
}

impl<L: Layer> AnyLayer for L {
    fn quantize_boxed(&self, qconfig: &QConfig) -> Result<Box<dyn Layer>> {
        Ok(Box::new(self.quantize(qconfig)?))
    }

    fn quantize_for_boxed(
        &self,
        qconfig: &QConfig,
        inputs: &InputFactor,
    ) -> Result<Option<Box<dyn Layer>>> {
        Ok(boxed(self.quantize_for(qconfig, inputs)?))
    }

    fn quantize_sharing_boxed(
        &self,
        qconfig: &QConfig,
        lent: &LentWeight,
    ) -> Option<Box<dyn Layer>> {
        boxed(self.quantize_sharing(qconfig, lent))
    }

    fn scale_boxed(&self, dim: usize, factors: &Tensor) -> Result<Option<Box<dyn Layer>>> {
        Ok(boxed(self.scale(dim, factors)?))
    }

    fn accepts(&self, replacement: &dyn Layer) -> bool {
        (replacement as &dyn Any).is::<L>()
    }

    fn install(&mut self, replacement: Box<dyn Layer>) -> Result<Box<dyn Layer>> {
        match (replacement as Box<dyn Any>).downcast::<L>() {
            Ok(mut layer) => {
                std::mem::swap(self, &mut *layer);
                Ok(layer)
            }
            Err(_) => Err(Error::from(Fault::InconsistentWalk {
                message: format!("expected a {} here", std::any::type_name::<L>()),
            })),
        }
    }
}

fn boxed<L: Layer>(layer: Option<L>) -> Option<Box<dyn Layer>> {
    layer.map(|layer| Box::new(layer) as Box<dyn Layer>)
}
