//! Layer norm and RMS norm.

use std::sync::Arc;

use candle_core::{D, Result, Tensor};
use candle_nn::{LayerNormConfig, Module, VarBuilder};

use super::prefix::prefix_of;
use crate::error;
use crate::module::trees::trees;
use crate::module::{Affine, AnyNorm};
use crate::ops::NormOp;
use crate::sizes;
use crate::tap::{self, Tap};
use crate::tensor::mismatch;
use crate::trace;
use crate::weight::equalized;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension, call-compatible
/// with [`candle_nn::LayerNorm`] and several times as fast on the CPU.
///
/// On the CPU it takes any layout in f32, f16 and bf16, and computes in f32; f64 and tensors of
/// which candle tracks the gradient go through candle's operations, so that gradients flow, and
/// other devices through candle's own layer.
///
/// # Shapes
/// - weight, bias: `[hidden]`
/// - input: `[.., hidden]` of rank 1 or more
/// - output: the input's shape and dtype
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::nn;
///
/// let ones = Tensor::new(&[1f32, 1.], &Device::Cpu)?;
/// let layer = nn::LayerNorm::new(ones.clone(), ones.zeros_like()?, 0.);
/// let ys = layer.forward(&Tensor::new(&[[1f32, 3.], [6., 2.]], &Device::Cpu)?)?;
/// assert_eq!(ys.to_vec2::<f32>()?, [[-1., 1.], [1., -1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// candle's layer, which holds the parameters and computes where the kernels do not.
    inner: candle_nn::LayerNorm,
    name: Option<Arc<str>>,
    /// The factors of a residual, `[hidden]`, if it is not added as it is.
    residual: Option<Tensor>,
    /// Whether the parameters differ from its checkpoint's.
    folded: bool,
    tap: Option<Tap>,
}

impl LayerNorm {
    /// A layer of these tensors; shapes are checked when it is used.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        candle_nn::LayerNorm::new(weight, bias, eps).into()
    }

    /// A norm without a bias.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        candle_nn::LayerNorm::new_no_bias(weight, eps).into()
    }

    /// A norm without a bias that does not subtract the mean: an [`RmsNorm`].
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        candle_nn::LayerNorm::rms_norm(weight, eps).into()
    }

    /// The factors, `[hidden]`.
    pub fn weight(&self) -> &Tensor {
        self.inner.weight()
    }

    /// The terms, `[hidden]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.inner.bias()
    }

    /// The term added to the variance.
    #[doc(hidden)]
    pub fn eps(&self) -> f64 {
        self.inner.eps()
    }

    /// Whether the mean is subtracted; if not, it is an RMS norm.
    #[doc(hidden)]
    pub fn remove_mean(&self) -> bool {
        self.inner.remove_mean()
    }

    /// [`forward`](Module::forward) of `xs + residual`, without the sum in memory: a transformer's
    /// "add and norm".
    ///
    /// # Shapes
    /// `residual` has the shape of `xs`, or both broadcast to one.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_dynquant::nn;
    ///
    /// let ones = Tensor::new(&[1f32, 1.], &Device::Cpu)?;
    /// let layer = nn::LayerNorm::new(ones.clone(), ones.zeros_like()?, 0.);
    /// let (xs, residual) = (Tensor::new(&[[1f32, 2.]], &Device::Cpu)?, ones.unsqueeze(0)?);
    /// assert_eq!(layer.forward_add(&xs, &residual)?.to_vec2::<f32>()?, [[-1., 1.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Module::forward), and when the shapes do not broadcast.
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        trace::forward!("layer-norm", self.name.as_deref());
        if xs.dims() == residual.dims() {
            return self.normalize(xs, Some(residual));
        }
        self.normalize(&self.sum(xs, residual)?, None)
    }

    /// [`forward_add`](Self::forward_add), and the sum, to which the next layer adds again.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_dynquant::nn;
    ///
    /// let ones = Tensor::new(&[1f32, 1.], &Device::Cpu)?;
    /// let layer = nn::LayerNorm::new(ones.clone(), ones.zeros_like()?, 0.);
    /// let xs = Tensor::new(&[[1f32, -1.]], &Device::Cpu)?;
    /// let (ys, sum) = layer.forward_add_with_sum(&xs, &xs)?;
    /// assert_eq!(ys.to_vec2::<f32>()?, [[1., -1.]]);
    /// assert_eq!(sum.to_vec2::<f32>()?, [[2., -2.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward_add`](Self::forward_add).
    pub fn forward_add_with_sum(&self, xs: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        trace::forward!("layer-norm", self.name.as_deref());
        self.normalize_sum(xs, residual)
    }

    fn normalize_sum(&self, xs: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        if xs.dims() != residual.dims() || !self.fits(xs)? {
            let sum = self.sum(xs, residual)?;
            return Ok((self.normalize(&sum, None)?, sum));
        }
        let (ys, sum) = (self.norm().of_sum(xs, residual)).map_err(|e| self.placed(e))?;
        tap::report(self.tap.as_ref(), &[xs, residual], &ys);
        Ok((ys, sum))
    }

    fn sum(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match &self.residual {
            None => xs.broadcast_add(residual),
            Some(factors) => {
                let factors = factors.to_dtype(residual.dtype())?;
                xs.broadcast_add(&residual.broadcast_mul(&factors)?)
            }
        }
    }

    fn normalize(&self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let ys = self.normal(xs, residual)?;
        match residual {
            None => tap::report(self.tap.as_ref(), &[xs], &ys),
            Some(residual) => tap::report(self.tap.as_ref(), &[xs, residual], &ys),
        }
        Ok(ys)
    }

    fn normal(&self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        if !self.fits(xs)? {
            // candle's layer broadcasts other shapes, or names their fault.
            return match residual {
                None => self.inner.forward(xs),
                Some(residual) => self.inner.forward(&self.sum(xs, residual)?),
            };
        }
        let ys = self.norm().apply(xs, residual);
        Ok(ys.map_err(|e| self.placed(e))?)
    }

    /// Whether there is one factor, and one term, for each of the last dimension.
    fn fits(&self, xs: &Tensor) -> Result<bool> {
        let hidden = [xs.dim(D::Minus1)?];
        let fits = |parameter: &Tensor| parameter.dims() == hidden;
        Ok(fits(self.weight()) && self.bias().is_none_or(fits))
    }

    fn norm(&self) -> NormOp<'_> {
        let centered = self.remove_mean();
        NormOp {
            op: if centered { "layer_norm" } else { "rms_norm" },
            weight: self.weight(),
            bias: self.bias(),
            residual_weight: self.residual.as_ref(),
            eps: self.eps(),
            centered,
        }
    }

    fn placed(&self, error: error::Error) -> error::Error {
        let centered = self.remove_mean();
        let kind = if centered { "LayerNorm" } else { "RmsNorm" };
        error.at(self.name.as_deref().unwrap_or(kind))
    }
}

impl From<candle_nn::LayerNorm> for LayerNorm {
    fn from(inner: candle_nn::LayerNorm) -> Self {
        Self { inner, name: None, residual: None, folded: false, tap: None }
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        trace::forward!("layer-norm", self.name.as_deref());
        self.normalize(xs, None)
    }
}

/// `x / sqrt(mean of x^2 + eps) * weight` over the last dimension, call-compatible with
/// [`candle_nn::RmsNorm`]; as [`LayerNorm`] in all else.
///
/// candle-transformers' `with_tracing::RmsNorm::new(size, eps, vb)` is [`rms_norm`] here.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::nn;
///
/// let layer = nn::RmsNorm::new(Tensor::new(&[1f32, 1.], &Device::Cpu)?, 0.);
/// let ys = layer.forward(&Tensor::new(&[[2f32, -2.]], &Device::Cpu)?)?;
/// assert_eq!(ys.to_vec2::<f32>()?, [[1., -1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// A layer of this tensor, `[hidden]`; its shape is checked when it is used.
    #[doc(alias = "rms_norm")]
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// Unwraps the [`LayerNorm`] that does not subtract the mean.
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The factors, `[hidden]`.
    #[doc(hidden)]
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The term added to the mean of squares.
    #[doc(hidden)]
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// [`forward`](Module::forward) of `xs + residual`, and the sum, to which a decoder adds again:
    /// one pass where both are f32, with the bits of two.
    ///
    /// # Shapes
    /// `residual` and the sum have the shape of `xs`, or both terms broadcast to one.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_dynquant::nn;
    ///
    /// let layer = nn::RmsNorm::new(Tensor::new(&[1f32, 1.], &Device::Cpu)?, 0.);
    /// let xs = Tensor::new(&[[1f32, -1.]], &Device::Cpu)?;
    /// let (ys, sum) = layer.forward_add(&xs, &xs)?;
    /// assert_eq!(ys.to_vec2::<f32>()?, [[1., -1.]]);
    /// assert_eq!(sum.to_vec2::<f32>()?, [[2., -2.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Module::forward), and when the shapes do not broadcast.
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        trace::forward!("rms-norm", self.0.name.as_deref());
        self.0.normalize_sum(xs, residual)
    }

    /// [`forward`](Module::forward), under the name of candle's variant with gradients; here both
    /// have them.
    ///
    /// # Errors
    /// As [`forward`](Module::forward).
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward(xs)
    }
}

impl From<candle_nn::RmsNorm> for RmsNorm {
    fn from(norm: candle_nn::RmsNorm) -> Self {
        Self(norm.into_inner().into())
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        trace::forward!("rms-norm", self.0.name.as_deref());
        self.0.normalize(xs, None)
    }
}

impl AnyNorm for LayerNorm {
    fn checkpoint_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn affine(&self) -> Affine {
        Affine {
            weight: self.weight().clone(),
            bias: self.bias().cloned(),
            residual: self.residual.clone(),
        }
    }

    fn set_affine(&mut self, affine: Affine) {
        let eps = self.eps();
        self.inner = match (self.remove_mean(), affine.bias) {
            (true, Some(bias)) => candle_nn::LayerNorm::new(affine.weight, bias, eps),
            (true, None) => candle_nn::LayerNorm::new_no_bias(affine.weight, eps),
            (false, _) => candle_nn::LayerNorm::rms_norm(affine.weight, eps),
        };
        self.residual = affine.residual;
        self.folded = true;
    }

    fn is_folded(&self) -> bool {
        self.folded
    }

    fn attach(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }
}

trees! { self, walk:
    [] LayerNorm => walk.norm(self), walk.norm(self);
    [] RmsNorm => walk.norm(&self.0), walk.norm(&mut self.0);
}

/// Loads `weight` (or `gamma`), and `bias` (or `beta`) if the config is affine, from `vb`; a config
/// is also its `eps` alone. From a checkpoint of an [equalized](crate::equalize()) model also the
/// factors of its residual.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_dynquant::nn;
///
/// let vb = nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
/// let norm = nn::layer_norm(64, 1e-12, vb.pp("LayerNorm"))?;
/// assert_eq!(norm.weight().dims(), [64]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder<'_>,
) -> Result<LayerNorm> {
    sizes::elements("weight", &[size])?;
    let name = prefix_of(&vb);
    let (vb, residual) = match equalized(&vb) {
        None => (vb, None),
        Some((own, factors)) if factors.dims() == [size] => (own, Some(factors)),
        Some((_, factors)) => {
            let mismatch = mismatch("layer_norm", format!("[{size}]"), &factors);
            return Err(mismatch.at(name.as_deref().unwrap_or("LayerNorm")).into());
        }
    };
    let inner = candle_nn::layer_norm(size, config, vb)?;
    Ok(LayerNorm { name, residual, ..inner.into() })
}

/// Loads `weight` (or `gamma`) of a layer norm without a bias from `vb`.
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<LayerNorm> {
    let config = LayerNormConfig { affine: false, ..eps.into() };
    layer_norm(size, config, vb)
}

/// Loads `weight` (or `gamma`) of an RMS norm from `vb`.
///
/// # Errors
/// When the tensor is missing or has another shape.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<RmsNorm> {
    let config = LayerNormConfig { remove_mean: false, affine: false, ..eps.into() };
    Ok(RmsNorm(layer_norm(size, config, vb)?))
}
