//! The keys that a query of attention sees.

use candle_core::{DType, Device, Result, Tensor};

use crate::error::{self, Error};
use crate::tensor::{mismatch, readable, to_f32, unrepeated};

/// The keys that a query of [`scaled_dot_product_attention`](super::scaled_dot_product_attention)
/// sees.
///
/// An `Option<&Tensor>` is [`Add`](Self::Add) or [`All`](Self::All). Tensors have any shape that
/// broadcasts to `[batch, heads, queries, keys]`, as `[batch, 1, 1, keys]` and `[queries, keys]`
/// do.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_dynquant::ops::{self, Mask};
///
/// let xs = Tensor::randn(0f32, 1., (1, 2, 3, 4), &Device::Cpu)?;
/// let causal = ops::scaled_dot_product_attention(&xs, &xs, &xs, Mask::Causal, 0.5)?;
/// let later = Tensor::new(&[[0u8, 1, 1], [0, 0, 1], [0, 0, 0]], &Device::Cpu)?;
/// let same = ops::scaled_dot_product_attention(&xs, &xs, &xs, Mask::Exclude(&later), 0.5)?;
/// assert_eq!(causal.flatten_all()?.to_vec1::<f32>()?, same.flatten_all()?.to_vec1::<f32>()?);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Mask<'a> {
    /// Every key.
    #[default]
    All,
    /// No key behind its position; the last query has the position of the last key, so that with a
    /// cache of keys query `i` sees the first `keys - queries + i + 1`.
    Causal,
    /// Every key, with a float tensor added to the scores after scaling: minus infinity excludes.
    Add(&'a Tensor),
    /// The keys where a u8 tensor is 0: the mask of candle's `masked_fill(scores, mask, -inf)`.
    Exclude(&'a Tensor),
    /// The keys where a u8 tensor is not 0: PyTorch's boolean `attn_mask`.
    Include(&'a Tensor),
}

impl<'a> From<&'a Tensor> for Mask<'a> {
    fn from(mask: &'a Tensor) -> Self {
        Self::Add(mask)
    }
}

impl<'a> From<Option<&'a Tensor>> for Mask<'a> {
    fn from(mask: Option<&'a Tensor>) -> Self {
        mask.map_or(Self::All, Self::Add)
    }
}

impl Mask<'_> {
    /// The tensor to add to the scores of these queries and keys, if some key is excluded or has a
    /// term.
    pub(crate) fn to_add(self, q: &Tensor, k: &Tensor) -> error::Result<Option<Tensor>> {
        let ((batch, heads, queries, _), keys) = (q.dims4()?, k.dim(2)?);
        match self {
            Self::Causal => Ok(Some(causal(queries, keys, q.device())?)),
            other => other.added("mask", &[batch, heads, queries, keys]),
        }
    }

    /// The tensor to add to scores of this shape, with that shape, if there is one.
    pub(super) fn added(
        self,
        op: &'static str,
        scores: &[usize; 4],
    ) -> error::Result<Option<Tensor>> {
        let (mask, added) = match self {
            Self::All | Self::Causal => return Ok(None),
            Self::Add(mask) if mask.dtype() == DType::U8 => {
                let expected = "a float mask, or Mask::Exclude or Mask::Include of this one";
                return Err(Error::dtype(op, expected, DType::U8));
            }
            Self::Add(mask) => (mask, compact(mask)?),
            Self::Exclude(mask) => (mask, excluding(op, mask, true)?),
            Self::Include(mask) => (mask, excluding(op, mask, false)?),
        };
        let added = added.broadcast_as(scores);
        let expected = || format!("a mask that broadcasts to {scores:?}");
        Ok(Some(added.map_err(|_| mismatch(op, expected(), mask))?))
    }
}

/// The tensor without the copies that a broadcast shows of it, in f32 if it is half that.
fn compact(mask: &Tensor) -> error::Result<Tensor> {
    let compact = unrepeated(mask)?;
    Ok(match compact.dtype() {
        DType::F16 | DType::BF16 if compact.device().is_cpu() && !compact.track_op() => {
            to_f32(&compact, "mask")?
        }
        _ => compact,
    })
}

/// Minus infinity where the mask is set, or where it is not, and 0 elsewhere.
fn excluding(op: &'static str, mask: &Tensor, set: bool) -> error::Result<Tensor> {
    if mask.dtype() != DType::U8 {
        return Err(Error::dtype(op, "a u8 mask", mask.dtype()));
    }
    let mask = readable(&compact(mask)?)?.contiguous()?;
    let excluded = Tensor::full(f32::NEG_INFINITY, mask.dims(), mask.device())?;
    let seen = excluded.zeros_like()?;
    Ok(if set { mask.where_cond(&excluded, &seen)? } else { mask.where_cond(&seen, &excluded)? })
}

/// [`Mask::Causal`] as a tensor to add to scores, where the kernel does not compute.
pub(super) fn causal(queries: usize, keys: usize, device: &Device) -> Result<Tensor> {
    let added = |(query, key): (usize, usize)| {
        if key + queries > query + keys { f32::NEG_INFINITY } else { 0. }
    };
    let places = (0..queries).flat_map(|query| (0..keys).map(move |key| (query, key)));
    Tensor::from_iter(places.map(added), device)?.reshape((queries, keys))
}
