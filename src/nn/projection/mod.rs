//! `y = x W^T + b`, float or quantized: what every layer multiplies through.

mod float;
mod forward;
mod stored;

use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::deviation::Deviation;
use crate::error::{Error, Result};
use crate::kernels::{FusedActivation, InputFactor};
use crate::module::{LentWeight, WeightDType, WeightId, WeightInfo};
use crate::qconfig::QConfig;
use crate::tap::{self, Replay, Tap};
use crate::tensor::mismatch;
use crate::weight::{Origin, QWeight, WeightCodes};

/// `y = x W^T + b`, where `W` is float or quantized.
///
/// Every layer of [`nn`](crate::nn) multiplies through projections, so a layer of your own
/// that does can be quantized: see [`Layer`](crate::Layer).
///
/// # Shapes
/// - weight: `[out_features, in_features]`, bias: `[out_features]`
/// - input: `[.., in_features]` of rank 1 or more, f32, f16, bf16 or f64, contiguous or not
/// - output: `[.., out_features]` in the dtype of the input
///
/// Of contiguous f32, it is a sum in f32 that depends on no other row; of another layout or float
/// type, it is candle's product. Gradients flow through both. Quantized, it is an inference-only operation on the CPU, through which a backward pass is an
/// error: activations become u8, the sum is exact in i32, and the result is
/// `fma(sum, scale_of_activations * scale_of_weights, bias)` in f32, the same bits on every CPU;
/// [`reference`](candle_dynquant_kernels::reference) is the definition. Rows that hold a NaN or an
/// infinity become NaN and touch no other row.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{nn::Projection, QConfig};
///
/// let weight = Tensor::randn(0f32, 1., (3, 2), &Device::Cpu)?;
/// let float = Projection::new(weight, None);
/// let int8 = float.quantize(&QConfig::int8())?;
/// let xs = Tensor::randn(0f32, 1., (5, 2), &Device::Cpu)?;
/// let error = (float.forward(&xs)? - int8.forward(&xs)?)?.abs()?.max_all()?;
/// assert!(error.to_scalar::<f32>()? < 0.1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Projection {
    weight: Weight,
    bias: Option<Tensor>,
    activation: Option<FusedActivation>,
    /// Whether sums of f32 have the same bits also without an instruction for `fma`.
    is_exact: bool,
    /// Gates of recurrent units that the output features are, one after the other; 1 for none.
    gates: usize,
    /// Whether it was scaled, so that its weight differs from its checkpoint's.
    folded: bool,
    /// The place of the weight in the checkpoint that it was loaded from.
    origin: Option<Origin>,
    /// Why the weight that a checkpoint has quantized is not used; then no other stands for it.
    refused: Option<Arc<Error>>,
    tap: Option<Tap>,
}

#[derive(Clone, Debug)]
enum Weight {
    Float(Tensor),
    Quantized(Arc<QWeight>),
}

impl Projection {
    /// A float projection; shapes are checked when it is used or quantized.
    ///
    /// A weight that is in the memory of a tensor from a [`Checkpoint`](crate::Checkpoint), all of
    /// it or rows, is quantized where the checkpoint has it so.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self::of_gates(weight, bias, 1)
    }

    /// This projection with a function applied to every element of the output; quantized, while it
    /// is in the cache.
    #[must_use]
    pub fn with_activation(self, activation: FusedActivation) -> Self {
        Self { activation: Some(activation), ..self }
    }

    /// This projection with the same bits on every CPU also while it is float.
    pub(in crate::nn) fn exactly(self) -> Self {
        Self { is_exact: true, ..self }
    }

    /// The function that is applied to every element of the output.
    #[doc(hidden)]
    pub fn activation(&self) -> Option<FusedActivation> {
        self.activation
    }

    /// This projection with its weight quantized; `self` stays as it is.
    ///
    /// # Errors
    /// When the weight is quantized already or not a matrix, a shape or dtype is wrong, a tensor is
    /// not on the CPU, an element is NaN or infinite, `DYNQUANT_ISA` is wrong, the observer does
    /// not support its arguments, or a channel could overflow its accumulator.
    pub fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        self.quantize_by(qconfig, None)
    }

    /// [`quantize`](Self::quantize) in groups, so that products with those inputs are most exact:
    /// for [`Layer::quantize_for`](crate::Layer::quantize_for). `None` if `qconfig` has no groups.
    pub(crate) fn quantize_for(
        &self,
        qconfig: &QConfig,
        inputs: &InputFactor,
    ) -> Result<Option<Self>> {
        if !matches!(qconfig, QConfig::Groups(_)) {
            return Ok(None);
        }
        let (_, k) = self.shape()?;
        if inputs.len() != k {
            return Err(Error::argument("factor of inputs", k, inputs.len()));
        }
        self.quantize_by(qconfig, Some(inputs)).map(Some)
    }

    fn quantize_by(&self, qconfig: &QConfig, inputs: Option<&InputFactor>) -> Result<Self> {
        let Weight::Float(weight) = &self.weight else {
            let got = "one that is quantized already";
            return Err(Error::qconfig("a float weight", got));
        };
        // A bias that is a view of the weight's memory would keep it alive.
        let memory = WeightId::of_tensor(weight).memory();
        let bias = self.bias.as_ref().map(|bias| {
            let within = WeightId::of_tensor(bias).memory() == memory;
            if within { bias.force_contiguous() } else { Ok(bias.clone()) }
        });
        let weight = QWeight::of_gates(self.gates, weight, self.bias.as_ref(), qconfig, inputs)?;
        Ok(Self {
            weight: Weight::Quantized(Arc::new(weight)),
            bias: bias.transpose()?,
            tap: None,
            ..self.clone()
        })
    }

    /// The weight, `[out_features, in_features]`; of a quantized projection the dequantized
    /// weight, computed at the first call and kept.
    pub fn weight(&self) -> &Tensor {
        match &self.weight {
            Weight::Float(weight) => weight,
            Weight::Quantized(weight) => weight.dequantized(),
        }
    }

    /// Dtype of the weight; f32 if it is quantized.
    pub(crate) fn dtype(&self) -> DType {
        match &self.weight {
            Weight::Float(weight) => weight.dtype(),
            Weight::Quantized(_) => DType::F32,
        }
    }

    /// The bias, `[out_features]`; never quantized.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The codes of the weight; `None` if it is float, float16 or bfloat16.
    pub fn codes(&self) -> Option<WeightCodes> {
        self.quantized()?.weight_codes()
    }

    /// The quantized weight, if it is quantized.
    #[doc(hidden)]
    pub fn qweight(&self) -> Option<&QWeight> {
        self.quantized().map(|weight| &**weight)
    }

    /// The description of this weight for a [`Layer`](crate::Layer), under the name it gives it.
    pub fn info(&self, name: &str) -> WeightInfo {
        WeightInfo {
            origin: self.origin.clone(),
            ..match &self.weight {
                Weight::Float(weight) => WeightInfo::of_float(name, weight),
                Weight::Quantized(weight) => weight_info(weight, name),
            }
        }
    }

    /// The quantized weight, for a layer that holds the same tensor: see
    /// [`Layer::lend`](crate::Layer::lend).
    #[doc(hidden)]
    pub fn lend(&self) -> Option<LentWeight> {
        self.quantized().map(|weight| LentWeight::new(Arc::clone(weight)))
    }

    /// The weight as a float tensor, `[out_features, in_features]`, which is not kept: for
    /// [`Layer::weights`](crate::Layer::weights).
    #[doc(hidden)]
    pub fn value(&self) -> Result<Tensor> {
        match &self.weight {
            Weight::Float(weight) => Ok(weight.clone()),
            Weight::Quantized(weight) => weight.dequantize(),
        }
    }

    /// This projection with rows (`dim` 0) of its weight and its bias, or columns (1) of its
    /// weight, multiplied by `factors`; `None` if it is quantized, or rows if a function is applied
    /// to the output.
    ///
    /// # Errors
    /// When the factors have another shape, or the weight is not a matrix.
    pub(crate) fn scale(&self, dim: usize, factors: &Tensor) -> Result<Option<Self>> {
        let Weight::Float(weight) = &self.weight else {
            return Ok(None);
        };
        if dim == 0 && self.activation.is_some() {
            return Ok(None);
        }
        let (n, k) = self.shape()?;
        let len = [n, k][dim];
        if factors.dims() != [len] {
            return Err(mismatch("scale", format!("[{len}]"), factors));
        }
        let typed = |tensor: &Tensor| factors.to_dtype(tensor.dtype());
        let bias = match (&self.bias, dim) {
            (Some(bias), 0) => Some(bias.broadcast_mul(&typed(bias)?)?),
            (bias, _) => bias.clone(),
        };
        let factors = typed(weight)?.reshape([(len, 1), (1, len)][dim])?;
        Ok(Some(Self {
            weight: Weight::Float(weight.broadcast_mul(&factors)?),
            bias,
            folded: true,
            tap: None,
            ..self.clone()
        }))
    }

    /// Makes each [`forward`](candle_core::Module::forward) report its input and output to `tap`,
    /// or to nothing: for [`Layer::attach`](crate::Layer::attach). Returns true.
    #[doc(hidden)]
    pub fn attach(&mut self, tap: Option<Tap>) -> bool {
        self.tap = tap;
        true
    }

    /// [`try_forward`](Self::try_forward) as a function, which reports to no tap: for
    /// [`Layer::replay`](crate::Layer::replay).
    #[doc(hidden)]
    pub fn replay(&self) -> Option<Replay> {
        let projection = self.clone();
        Some(Arc::new(move |inputs| match inputs {
            [xs] => projection.product_of(xs),
            _ => Err(tap::unlike("one input", inputs)),
        }))
    }

    /// How far the weight is from `float`'s.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_dynquant::{nn::Projection, QConfig};
    ///
    /// let float = Projection::new(Tensor::randn(0f32, 1., (64, 64), &Device::Cpu)?, None);
    /// let int8 = float.quantize(&QConfig::int8())?.weight_error(&float)?;
    /// let half = float.quantize(&QConfig::float16())?.weight_error(&float)?;
    /// assert!(int8.sqnr_db() > 35. && half.sqnr_db() > 65.);
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the shapes differ.
    pub fn weight_error(&self, float: &Self) -> Result<Deviation> {
        let mut error = Deviation::default();
        error.add(float.weight(), self.weight())?;
        Ok(error)
    }

    fn quantized(&self) -> Option<&Arc<QWeight>> {
        match &self.weight {
            Weight::Float(_) => None,
            Weight::Quantized(weight) => Some(weight),
        }
    }

    /// `out_features` and `in_features`.
    ///
    /// # Errors
    /// When the weight has another rank than 2, or the bias another shape than `[out_features]` or,
    /// for a weight of a checkpoint that is quantized, elements that are not finite.
    pub(crate) fn shape(&self) -> Result<(usize, usize)> {
        let shape = match &self.weight {
            Weight::Quantized(weight) => weight.shape(),
            Weight::Float(weight) => match weight.dims() {
                &[n, k] => [n, k],
                got => {
                    return Err(Error::shape("weight", "[out_features, in_features]", got));
                }
            },
        };
        match &self.bias {
            Some(bias) if bias.dims() != [shape[0]] => {
                Err(Error::shape("bias", format!("[{}]", shape[0]), bias.dims()))
            }
            _ => match &self.refused {
                Some(error) => Err(Error::new(error.kind(), error.to_string())),
                None => Ok(shape.into()),
            },
        }
    }
}

/// The description of a quantized weight for the layer that holds it, under the name it gives it.
pub(super) fn weight_info(weight: &Arc<QWeight>, name: &str) -> WeightInfo {
    let dtype = match weight.groups() {
        Some(groups) => WeightDType::of_groups(groups.dtype),
        None => WeightDType::of_quantized(weight.dtype(), weight.half_type()),
    };
    WeightInfo {
        underflowed: weight.underflowed(),
        ..WeightInfo::new(name, &weight.shape(), dtype, weight.bytes())
            .quantized(weight.saturated())
            .held_as(WeightId::of_shared(weight))
    }
}
