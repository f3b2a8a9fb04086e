//! Scaled dot-product attention.

use candle_core::{D, DType, Result, Tensor};

use super::is_ours;
use crate::kernels::{self, Attention, Heads, Isa};
use crate::sizes;
use crate::tensor::{Elements, from_f32_vec, mismatch, readable, to_f32};

/// `softmax(q k^T scale + mask) v` of every head: PyTorch's `scaled_dot_product_attention`.
///
/// # Shapes
/// - `q`: `[batch, heads, queries, head_dim]`
/// - `k`: `[batch, heads, keys, head_dim]`
/// - `v`: `[batch, heads, keys, value_dim]`
/// - `mask`: added to the scores after scaling; anything that broadcasts to
///   `[batch, heads, queries, keys]`, as `[batch, 1, 1, keys]` does for padding
/// - result: `[batch, heads, queries, value_dim]`
///
/// The operands are read where they are if their last dimension is contiguous, so `q`, `k` and
/// `v` are best the transposed views of a projection's `[batch, seq, heads, head_dim]`. The
/// result is such a view, too: `transpose(1, 2)` gives a contiguous tensor, and copies nothing.
///
/// Scores are never stored as a whole. Each element of the result is within
/// `2^-21 max |v| (2 + max (scale sum |q_d k_d| + |mask|))` of the exact one, the maxima over the
/// keys that the mask does not exclude, and depends on its own query only. A query that the mask excludes from every key, by minus
/// infinity, gives zeros, as in PyTorch; a NaN, or an infinite score, makes its query NaN.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let (batch, seq, heads, head_dim) = (2, 5, 3, 4);
/// let projected = Tensor::randn(0f32, 1., (batch, seq, heads * head_dim), &Device::Cpu)?;
/// let xs = projected.reshape((batch, seq, heads, head_dim))?.transpose(1, 2)?;
/// let context = ops::scaled_dot_product_attention(&xs, &xs, &xs, None, 0.5)?;
/// assert_eq!(context.dims(), [batch, heads, seq, head_dim]);
/// let merged = context.transpose(1, 2)?.reshape((batch, seq, heads * head_dim))?;
/// assert_eq!(merged.dims(), projected.dims());
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When the shapes do not agree, or a dtype is no float.
pub fn scaled_dot_product_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    scale: f32,
) -> Result<Tensor> {
    let op = "scaled_dot_product_attention";
    let &[batch, heads, queries, head_dim] = q.dims() else {
        return Err(mismatch(op, "q of [batch, heads, queries, head_dim]", q).into());
    };
    let keys = k.dims().get(2).copied().unwrap_or_default();
    if k.dims() != [batch, heads, keys, head_dim] {
        let expected = format!("k of [{batch}, {heads}, keys, {head_dim}]");
        return Err(mismatch(op, expected, k).into());
    }
    let value_dim = v.dims().last().copied().unwrap_or_default();
    if v.dims() != [batch, heads, keys, value_dim] {
        let expected = format!("v of [{batch}, {heads}, {keys}, value_dim]");
        return Err(mismatch(op, expected, v).into());
    }
    let scores = [batch, heads, queries, keys];
    let broadcast = |mask: &Tensor| {
        let expected = || format!("a mask that broadcasts to {scores:?}");
        mask.broadcast_as(&scores)
            .map_err(|_| mismatch(op, expected(), mask))
    };
    let mask = mask.map(broadcast).transpose()?;

    let operands: Vec<_> = [q, k, v].into_iter().chain(&mask).collect();
    let ours = is_ours(op, &operands)?;
    sizes::elements(op, &[batch, queries, heads, value_dim])?;
    if [batch, heads, queries, keys, value_dim].contains(&0) {
        let zeros = Tensor::zeros((batch, queries, heads, value_dim), q.dtype(), q.device())?;
        return zeros.transpose(1, 2);
    }
    if !ours {
        return composite(q, k, v, mask.as_ref(), scale);
    }
    let isa = Isa::active()?;
    let [q_rows, k, v] = [q, k, v].map(|tensor| with_rows(tensor, op));
    let (q_rows, k, v) = (q_rows?, k?, v?);
    let (q_rows, k, v) = (Elements::of(&q_rows), Elements::of(&k), Elements::of(&v));
    let mask = mask.map(|mask| with_rows(&mask, op)).transpose()?;
    let mask = mask.as_ref().map(Elements::of);
    let ys = kernels::attention(
        isa,
        Attention {
            q: heads_of(&q_rows)?,
            k: heads_of(&k)?,
            v: heads_of(&v)?,
            mask: mask.as_ref().map(heads_of).transpose()?,
            scale,
            batch,
            heads,
        },
    );
    let shape = [batch, queries, heads, value_dim];
    from_f32_vec(ys, &shape, q.dtype())?.transpose(1, 2)
}

/// The tensor in f32, with the elements of a row side by side.
fn with_rows(tensor: &Tensor, op: &'static str) -> Result<Tensor> {
    let tensor = to_f32(tensor, op)?;
    match (tensor.dims(), tensor.stride()) {
        ([.., 0 | 1], _) | (_, [.., 1]) => Ok(tensor),
        _ => tensor.contiguous(),
    }
}

fn heads_of<'a>(elements: &'a Elements<'_>) -> Result<Heads<'a>> {
    let (_, _, rows, columns) = elements.layout().shape().dims4()?;
    let strides = elements.layout().stride();
    Ok(Heads {
        values: elements.strided()?,
        strides: [strides[0], strides[1], strides[2]],
        rows,
        columns,
    })
}

/// The same by candle's own operations; half precision in f32.
fn composite(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    scale: f32,
) -> Result<Tensor> {
    let dtype = match q.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let contiguous = |tensor: &Tensor| readable(tensor)?.to_dtype(dtype)?.contiguous();
    let (q_heads, k, v) = (contiguous(q)?, contiguous(k)?, contiguous(v)?);
    let mut scores = (q_heads.matmul(&k.t()?)? * f64::from(scale))?;
    if let Some(mask) = mask {
        scores = (scores + mask.to_dtype(dtype)?)?;
    }
    // A query without keys: every weight is 0 then, and not NaN.
    let max = scores.max_keepdim(D::Minus1)?;
    let excluded = max.eq(f64::NEG_INFINITY)?;
    let origin = excluded.where_cond(&max.zeros_like()?, &max)?;
    let weights = scores.broadcast_sub(&origin)?.exp()?;
    let sum = weights.sum_keepdim(D::Minus1)?;
    let sum = excluded.where_cond(&sum.ones_like()?, &sum)?;
    let ys = weights.matmul(&v)?.broadcast_div(&sum)?;
    let ys = ys.to_dtype(q.dtype())?;
    // The same layout as that of the fused result.
    ys.transpose(1, 2)?.contiguous()?.transpose(1, 2)
}
