//! The fully connected layer.

use std::sync::Arc;

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::{Init, Module, VarBuilder, init};

use super::embedding::Embedding;
use super::prefix::prefix_of;
use super::projection::Projection;
use crate::error::{Error, Result};
use crate::kernels::{FusedActivation, InputFactor};
use crate::module::trees::layers;
use crate::module::{Layer, LayerKind, LentWeight, WeightInfo};
use crate::qconfig::QConfig;
use crate::sizes;
use crate::tap::{Replay, Tap};
use crate::trace;
use crate::weight::StoredWeight;

/// `y = x W^T + b`, call-compatible with [`candle_nn::Linear`].
///
/// # Shapes
/// - weight: `[out_features, in_features]`, bias: `[out_features]`
/// - input: `[.., in_features]` of rank 1 or more, f32, f16, bf16 or f64, contiguous or not
/// - output: `[.., out_features]` in the dtype of the input
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_dynquant::{nn, quantize_dynamic, QConfigSpec};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let mut layer = nn::linear(128, 10, vb.pp("head"))?;
/// quantize_dynamic(&mut layer, &QConfigSpec::int8())?;
/// let ys = layer.forward(&Tensor::ones((4, 7, 128), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(ys.dims(), [4, 7, 10]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    projection: Projection,
    name: Option<Arc<str>>,
    /// Whether the weight may be in no checkpoint.
    is_computed: bool,
}

impl Linear {
    /// A layer of these tensors; shapes are checked when it is used or quantized.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { projection: Projection::new(weight, bias), name: None, is_computed: false }
    }

    /// The output projection of an embedding's table, `[out_features, in_features]`, which is kept
    /// once: also if it was read from a checkpoint as the quantized weight of both.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_dynquant::nn;
    ///
    /// let table = nn::Embedding::new(Tensor::zeros((10, 4), DType::F32, &Device::Cpu)?, 4);
    /// let head = nn::Linear::tied(&table, None);
    /// assert_eq!(head.weight().dims(), [10, 4]);
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    pub fn tied(embedding: &Embedding, bias: Option<Tensor>) -> Self {
        // A bias that does not fit is an error later, as with any weight.
        let table = || embedding.embeddings().clone();
        Self {
            projection: match embedding.tied() {
                Some(weight) => Projection::tied(weight, bias, table),
                None => Projection::new(table(), bias),
            },
            name: None,
            is_computed: false,
        }
    }

    /// A layer whose weight is computed while the model is loaded, such as several projections
    /// stacked: read from `vb` where that has a `weight`, else returned by `compute` with its bias.
    ///
    /// Quantized, it is saved as `weight` of `vb`, beside the tensors that it is computed from, and
    /// a checkpoint of such is loaded without computing.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_dynquant::nn;
    /// use candle_nn::{VarBuilder, VarMap};
    ///
    /// let vars = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    /// let (query, key) = (vb.pp("query").get((4, 8), "weight")?, vb.pp("key").get((4, 8), "weight")?);
    /// let both = nn::Linear::computed(8, 8, vb.pp("query_key"), || {
    ///     Ok((Tensor::cat(&[query, key], 0)?, None))
    /// })?;
    /// assert_eq!(both.weight().dims(), [8, 8]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a tensor cannot be read or has another shape, or as `compute`.
    pub fn computed(
        in_dim: usize,
        out_dim: usize,
        vb: VarBuilder<'_>,
        compute: impl FnOnce() -> CandleResult<(Tensor, Option<Tensor>)>,
    ) -> CandleResult<Self> {
        let layer = if vb.contains_tensor("weight") {
            Self::load(in_dim, out_dim, vb.contains_tensor("bias"), &vb)?
        } else {
            let (weight, bias) = compute()?;
            let name = prefix_of(&vb);
            if weight.dims() != [out_dim, in_dim] {
                let error = Error::shape("load", format!("[{out_dim}, {in_dim}]"), weight.dims());
                return Err(error.at(name.as_deref().unwrap_or("Linear")).into());
            }
            Self { name, ..Self::new(weight, bias) }
        };
        Ok(Self { is_computed: true, ..layer })
    }

    /// [`new`](Self::new) under candle-transformers' name.
    pub fn from_weights(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self::new(weight, bias)
    }

    fn load(in_dim: usize, out_dim: usize, bias: bool, vb: &VarBuilder<'_>) -> CandleResult<Self> {
        sizes::elements("weight", &[out_dim, in_dim])?;
        let weight = || {
            let normal = init::DEFAULT_KAIMING_NORMAL;
            Ok(vb.get_with_hints((out_dim, in_dim), "weight", normal)?)
        };
        let bound = 1. / (in_dim as f64).sqrt();
        let uniform = Init::Uniform { lo: -bound, up: bound };
        let bias = || {
            let load = || vb.get_with_hints(out_dim, "bias", uniform);
            Ok(bias.then(load).transpose()?)
        };
        let shape = [out_dim, in_dim];
        Ok(Self {
            projection: Projection::load(vb, "weight", shape, 1, weight, bias)?,
            name: prefix_of(vb),
            is_computed: false,
        })
    }

    /// The weight, `[out_features, in_features]`.
    ///
    /// For a quantized layer this is the dequantized weight, computed at the first call and
    /// kept: it takes as much memory as the float weight did.
    pub fn weight(&self) -> &Tensor {
        self.projection.weight()
    }

    /// The bias, `[out_features]`; never quantized.
    pub fn bias(&self) -> Option<&Tensor> {
        self.projection.bias()
    }

    /// This layer with a function applied to every element of its output: PyTorch's
    /// `LinearReLU`, and more. Quantized, it is applied while the output is in the cache.
    ///
    /// ```
    /// use candle_core::{Device, Module, Tensor};
    /// use candle_dynquant::{FusedActivation, nn};
    ///
    /// let weight = Tensor::new(&[[1f32], [-1.]], &Device::Cpu)?;
    /// let layer = nn::Linear::new(weight, None).with_activation(FusedActivation::Relu);
    /// let ys = layer.forward(&Tensor::new(&[2f32], &Device::Cpu)?)?;
    /// assert_eq!(ys.to_vec1::<f32>()?, [2., 0.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_activation(self, activation: FusedActivation) -> Self {
        Self { projection: self.projection.with_activation(activation), ..self }
    }

    /// [`forward`](Module::forward) of several layers of one input, such as query, key and
    /// value: quantized alike, they quantize it once, and all threads work at all of them.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_dynquant::nn;
    ///
    /// let weight = Tensor::randn(0f32, 1., (4, 8), &Device::Cpu)?;
    /// let layer = || nn::Linear::new(weight.clone(), None);
    /// let (query, key, value) = (layer(), layer(), layer());
    /// let xs = Tensor::randn(0f32, 1., (5, 8), &Device::Cpu)?;
    /// let [q, k, v] = nn::Linear::forward_each([&query, &key, &value], &xs)?;
    /// assert_eq!((q.dims(), k.dims(), v.dims()), (&[5, 4][..], &[5, 4][..], &[5, 4][..]));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Module::forward) of any of them.
    pub fn forward_each<const N: usize>(
        layers: [&Self; N],
        xs: &Tensor,
    ) -> CandleResult<[Tensor; N]> {
        let name = layers.first().and_then(|layer| layer.name.as_deref());
        trace::forward!("linear", name);
        let outs = Projection::forward_each(layers.map(|layer| &layer.projection), xs);
        outs.map_err(|e| e.at(name.unwrap_or("Linear")).into())
    }

    /// The projection that the layer multiplies with.
    pub fn projection(&self) -> &Projection {
        &self.projection
    }

    /// This layer with another projection.
    fn with(&self, projection: Projection) -> Self {
        Self { projection, name: self.name.clone(), is_computed: self.is_computed }
    }
}

impl From<candle_nn::Linear> for Linear {
    fn from(linear: candle_nn::Linear) -> Self {
        Self::new(linear.weight().clone(), linear.bias().cloned())
    }
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        trace::forward!("linear", self.name.as_deref());
        let ys = self.projection.try_forward(xs);
        ys.map_err(|e| e.at(self.name.as_deref().unwrap_or("Linear")).into())
    }
}

impl Layer for Linear {
    fn kind(&self) -> LayerKind {
        LayerKind::Linear
    }

    fn checkpoint_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        vec![self.projection.info("weight")]
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        Ok(self.with(self.projection.quantize(qconfig)?))
    }

    fn quantize_for(&self, qconfig: &QConfig, inputs: &InputFactor) -> Result<Option<Self>> {
        let quantized = self.projection.quantize_for(qconfig, inputs)?;
        Ok(quantized.map(|projection| self.with(projection)))
    }

    fn lend(&self, _name: &str) -> Option<LentWeight> {
        self.projection.lend()
    }

    fn stored(&self) -> Result<Vec<StoredWeight>> {
        let weight = self.projection.stored("weight");
        Ok(vec![weight.computed(self.is_computed)])
    }

    fn weights(&self) -> Result<Vec<Tensor>> {
        Ok(vec![self.projection.value()?])
    }

    fn scale(&self, dim: usize, factors: &Tensor) -> Result<Option<Self>> {
        let scaled = self.projection.scale(dim, factors)?;
        Ok(scaled.map(|projection| self.with(projection)))
    }

    fn attach(&mut self, tap: Option<Tap>) -> bool {
        self.projection.attach(tap)
    }

    fn replay(&self) -> Option<Replay> {
        self.projection.replay()
    }
}

layers! { Linear }

/// Loads `weight` and `bias` from `vb`.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> CandleResult<Linear> {
    Linear::load(in_dim, out_dim, true, &vb)
}

/// Loads `weight` from `vb`, without a bias.
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> CandleResult<Linear> {
    Linear::load(in_dim, out_dim, false, &vb)
}

/// Loads `weight`, and `bias` if requested, from `vb`.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn linear_b(
    in_dim: usize,
    out_dim: usize,
    bias: bool,
    vb: VarBuilder<'_>,
) -> CandleResult<Linear> {
    Linear::load(in_dim, out_dim, bias, &vb)
}
