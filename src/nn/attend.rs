//! Attention as a layer.

use std::sync::Arc;

use candle_core::{DType, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;

use super::prefix::prefix_of;
use crate::error::{Error, Result};
use crate::kernels::Precision;
use crate::module::trees::layers;
use crate::module::{Layer, LayerKind, WeightInfo};
use crate::ops::Mask;
use crate::ops::attention::attend;
use crate::ops::kv_cache::KvCache;
use crate::qconfig::QConfig;
use crate::tap::{self, Replay, Tap};
use crate::weight::ATTENTION;

/// [`ops::scaled_dot_product_attention`](crate::ops::scaled_dot_product_attention) as a layer: a
/// spec chooses the precision of its factors, as it does for layers with weights, of which it has
/// none.
///
/// It is off by default: [`QConfigSpec::attention`](crate::QConfigSpec::attention) turns it on, or
/// a rule for [`LayerKind::Attention`] or for its name. [`Precision`] says what each costs.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops::Precision;
/// use candle_dynquant::{nn, quantize_dynamic, QConfigSpec};
///
/// let mut attention = nn::Attention::new(0.125); // 1 / sqrt(head_dim)
/// quantize_dynamic(&mut attention, &QConfigSpec::int8().attention())?;
/// assert_eq!(attention.precision(), Precision::Int8);
/// let xs = Tensor::randn(0f32, 1., (1, 12, 128, 64), &Device::Cpu)?;
/// assert_eq!(attention.forward(&xs, &xs, &xs, None)?.dims(), [1, 12, 128, 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Attention {
    scale: f64,
    precision: Precision,
    name: Option<Arc<str>>,
    tap: Option<Tap>,
}

impl Attention {
    /// A layer that multiplies scores by `scale`, in float32.
    pub fn new(scale: impl Into<f64>) -> Self {
        Self { scale: scale.into(), precision: Precision::Float32, name: None, tap: None }
    }

    /// A layer that remembers the name it was loaded under, by which a checkpoint keeps its
    /// precision: the checkpoint's, if `vb` belongs to one that a quantized model was
    /// [saved](crate::checkpoint::save) to. Nothing is read of other tensors.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_dynquant::nn;
    /// use candle_nn::{VarBuilder, VarMap};
    ///
    /// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    /// let attention = nn::Attention::load(0.125, vb.pp("layer.0.attention"));
    /// assert_eq!(attention.scale(), 0.125);
    /// ```
    pub fn load(scale: impl Into<f64>, vb: VarBuilder<'_>) -> Self {
        // A backend that claims to have every tensor, as candle's of zeros does, has no such word.
        let answer = vb.contains_tensor(ATTENTION).then(|| {
            let word = vb.get_unchecked_dtype(ATTENTION, DType::U8).ok()?;
            let word = String::from_utf8(word.to_vec1().ok()?).ok()?;
            word.parse().ok()
        });
        Self {
            precision: answer.flatten().unwrap_or_default(),
            name: prefix_of(&vb),
            ..Self::new(scale)
        }
    }

    /// The factor of the scores.
    #[doc(hidden)]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The precision of the factors.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Attention of `q` to `k` and `v`: see
    /// [`scaled_dot_product_attention`](crate::ops::scaled_dot_product_attention) for shapes.
    ///
    /// # Errors
    /// As [`scaled_dot_product_attention_with`](crate::ops::scaled_dot_product_attention_with).
    pub fn forward<'a>(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: impl Into<Mask<'a>>,
    ) -> CandleResult<Tensor> {
        let mask = mask.into();
        let ys = attend([q, k, v], mask, self.scale, self.precision);
        let ys = ys.and_then(|ys| self.report(&[q, k, v], mask, ys));
        Ok(ys.map_err(|e| self.placed(e))?)
    }

    /// An empty cache for the keys and values of this layer, in its precision.
    pub fn cache(&self) -> KvCache {
        KvCache::new(self.precision)
    }

    /// [`forward`](Self::forward) to the keys and values of a [`cache`](Self::cache).
    ///
    /// # Errors
    /// As [`KvCache::attend`], and when the cache has another precision.
    pub fn forward_cached<'a>(
        &self,
        q: &Tensor,
        cache: &KvCache,
        mask: impl Into<Mask<'a>>,
    ) -> CandleResult<Tensor> {
        let attend = |mask| {
            if cache.precision() != self.precision {
                let expected = format!("one in {}, as `Attention::cache` makes", self.precision);
                let got = cache.precision();
                let what = "KvCache of another precision";
                return Err(Error::argument(what, expected, got));
            }
            let ys = cache.try_attend(q, mask, self.scale)?;
            if self.tap.is_none() {
                return Ok(ys);
            }
            // Rounded keys and values are not reported: no layer gives the same result from them.
            match cache.floats()? {
                Some([k, v]) => self.report(&[q, &k, &v], mask, ys),
                None => self.report(&[q], Mask::All, ys),
            }
        };
        Ok(attend(mask.into()).map_err(|e| self.placed(e))?)
    }

    /// Reports a call: the operands, then what is added to the scores, if anything is.
    fn report(&self, inputs: &[&Tensor], mask: Mask<'_>, ys: Tensor) -> Result<Tensor> {
        if self.tap.is_some() {
            let added = match inputs {
                [q, k, ..] => mask.to_add(q, k)?,
                _ => None,
            };
            let inputs: Vec<_> = inputs.iter().copied().chain(&added).collect();
            tap::report(self.tap.as_ref(), &inputs, &ys);
        }
        Ok(ys)
    }

    fn placed(&self, error: Error) -> Error {
        error.at(self.name.as_deref().unwrap_or("Attention"))
    }
}

impl Layer for Attention {
    fn kind(&self) -> LayerKind {
        LayerKind::Attention
    }

    fn checkpoint_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        Vec::new()
    }

    fn precision(&self) -> Option<Precision> {
        Some(self.precision)
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        if self.precision.is_reduced() {
            let got = format!("one in {} already", self.precision);
            return Err(Error::qconfig("attention in float32", got));
        }
        Ok(Self { precision: qconfig.precision()?, ..self.clone() })
    }

    fn attach(&mut self, tap: Option<Tap>) -> bool {
        self.tap = tap;
        true
    }

    fn replay(&self) -> Option<Replay> {
        let (scale, precision) = (self.scale, self.precision);
        Some(Arc::new(move |inputs| {
            let (operands, mask) = match *inputs {
                [q, k, v] => ([q, k, v], Mask::All),
                [q, k, v, added] => ([q, k, v], Mask::Add(added)),
                _ => return Err(tap::unlike("q, k and v, and perhaps a mask", inputs)),
            };
            attend(operands, mask, scale, precision)
        }))
    }
}

layers! { Attention }
