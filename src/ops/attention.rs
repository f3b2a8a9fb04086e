//! Scaled dot-product attention.

use candle_core::{D, DType, Result, Tensor};

use super::mask::{Mask, causal};
use super::ours::is_ours;
use crate::error;
use crate::kernels::{self, Attention, Heads, Isa, MAX_TERMS, Precision, Queries};
use crate::sizes;
use crate::tensor::{Elements, from_f32_vec, mismatch, readable, to_f32};
use crate::trace;

/// `softmax(q k^T scale + mask) v` of every head: PyTorch's `scaled_dot_product_attention`.
///
/// # Shapes
/// - `q`: `[batch, heads, queries, head_dim]`
/// - `k`: `[batch, kv_heads, keys, head_dim]`; `kv_heads` divides `heads`, and neighbouring
///   heads of `q` share each of them, without `repeat_kv`
/// - `v`: `[batch, kv_heads, keys, value_dim]`
/// - `mask`: a [`Mask`], or `Option<&Tensor>`, added to the scores after scaling;
///   anything that broadcasts to `[batch, heads, queries, keys]`, as `[batch, 1, 1, keys]` does for
///   padding
/// - result: `[batch, heads, queries, value_dim]`
///
/// The operands are read where they are if their last dimension is contiguous, so `q`, `k` and
/// `v` are best the transposed views of a projection's `[batch, seq, heads, head_dim]`. The
/// result is such a view, too: `transpose(1, 2)` gives a contiguous tensor, and copies nothing.
///
/// Scores are never stored as a whole. Each element of the result is within
/// `2^-21 max |v| (2 + max (scale sum |q_d k_d| + |mask|))` of the exact one, the maxima over the
/// keys that the mask does not exclude, and depends on its own query and the keys that this sees
/// only: no other key affects it, finite or not. A query that the mask excludes
/// from every key gives zeros, as in PyTorch; a NaN in its scores, or plus infinity, makes a query
/// NaN, and a value of `v` that is not finite stays so in the results of queries that see its key.
/// The bits equal [`reference`](candle_dynquant_kernels::reference)'s on every CPU.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops::{self, Mask};
///
/// let (batch, seq, heads, head_dim) = (2, 5, 6, 4);
/// let projected = Tensor::randn(0f32, 1., (batch, seq, heads * head_dim), &Device::Cpu)?;
/// let q = projected.reshape((batch, seq, heads, head_dim))?.transpose(1, 2)?;
/// let context = ops::scaled_dot_product_attention(&q, &q, &q, None, 0.5)?;
/// assert_eq!(context.dims(), [batch, heads, seq, head_dim]);
/// let merged = context.transpose(1, 2)?.reshape((batch, seq, heads * head_dim))?;
/// assert_eq!(merged.dims(), projected.dims());
///
/// // One more token of a decoder: two heads of keys, 9 of which came before.
/// let (q, shape) = (q.narrow(2, 0, 1)?, (batch, 2, 10, head_dim));
/// let cache = Tensor::randn(0f32, 1., shape, &Device::Cpu)?;
/// let context = ops::scaled_dot_product_attention(&q, &cache, &cache, Mask::Causal, 0.5)?;
/// assert_eq!(context.dims(), [batch, heads, 1, head_dim]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When the shapes do not agree, a dtype is not a float (a u8 mask that states its meaning may be),
/// or a `q` without elements is to have millions of results.
pub fn scaled_dot_product_attention<'a>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: impl Into<Mask<'a>>,
    scale: impl Into<f64>,
) -> Result<Tensor> {
    let (mask, scale) = (mask.into(), scale.into());
    Ok(attend([q, k, v], mask, scale, Precision::Float32)?)
}

/// [`scaled_dot_product_attention`] with factors of that precision: queries, keys, weights and
/// values.
///
/// [`Precision::BFloat16`] is for many queries on CPUs with AVX512-BF16 (AMD since Zen 4), where
/// 512 queries take 0.6 to 0.7 times the time of f32, and on CPUs with AMX, whose tiles then
/// multiply (not timed). It adds at most `max |v| (e^(s / 63) - 1 + 2^-6)` to the error of f32,
/// where `s` is the maximum of `scale sum |q_d k_d|` over the keys that the mask does not exclude.
/// Other CPUs round the same factors and give the same bits, unless a sum is subnormal (below
/// 1.2e-38), in up to 1.4 times the time of f32.
///
/// [`Precision::Int8`] makes codes of 8 bits in the call, each row of `q`, `k` and `v` with a
/// separate scale, and multiplies weights in 8 bits, too, by the formula of
/// [`reference::attention_int8`](candle_dynquant_kernels::reference::attention_int8): a query
/// depends on no other and on no key that it does not see. With AVX512-VNNI, 128 queries and keys
/// take 0.5 to 0.7 times the time of f32, 512 of them 0.4 times; few take longer, since keys and
/// values become codes in each call. It adds at most
/// `max |v| (e^(2 t) - 1 + 2^-7 + min(1, keys / (500 z)))` to the error of f32, the maximum over
/// the rows of `v` that the query sees. There `t` is the maximum over the keys that it sees of
/// `scale (K sum |q_d| + Q sum |k_d| + head_dim Q K / 254) / 254` with `Q = max |q_d|` and
/// `K = max |k_d|`, and `z` the sum of `e^(score - maximum)`: the weight of many keys is lost where
/// each has less than 1/510 of the greatest. A row of `q`, `k` or `v` that holds a NaN or an
/// infinity makes NaN of all results of the query, or of each query that sees the key.
///
/// f64, other devices and gradients keep their precision. [`nn::Attention`](crate::nn::Attention)
/// is this function as a layer, whose precision a spec chooses, and
/// [`nn::KvCache`](crate::nn::KvCache) keeps keys and values in it.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops::{self, Precision};
///
/// let xs = Tensor::randn(0f32, 1., (1, 12, 128, 64), &Device::Cpu)?;
/// let exact = ops::scaled_dot_product_attention(&xs, &xs, &xs, None, 0.125)?;
/// let near = ops::scaled_dot_product_attention_with(&xs, &xs, &xs, None, 0.125, Precision::BFloat16)?;
/// assert!((&exact - near)?.abs()?.max_all()?.to_scalar::<f32>()? < 0.1);
/// let codes = ops::scaled_dot_product_attention_with(&xs, &xs, &xs, None, 0.125, Precision::Int8)?;
/// assert!((exact - codes)?.abs()?.max_all()?.to_scalar::<f32>()? < 0.2);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`scaled_dot_product_attention`]; and with [`Precision::Int8`] when there are more than
/// 65,536 keys or inputs of a key, whose sums could leave an i32.
pub fn scaled_dot_product_attention_with<'a>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: impl Into<Mask<'a>>,
    scale: impl Into<f64>,
    precision: Precision,
) -> Result<Tensor> {
    Ok(attend([q, k, v], mask.into(), scale.into(), precision)?)
}

const OP: &str = "scaled_dot_product_attention";

/// [`scaled_dot_product_attention_with`] with this crate's error.
pub(crate) fn attend(
    [q, k, v]: [&Tensor; 3],
    mask: Mask<'_>,
    scale: f64,
    precision: Precision,
) -> error::Result<Tensor> {
    trace::forward!("attention");
    let sizes = AttentionSizes::new(q, k, v)?;
    let added = mask.added(OP, &sizes.scores())?;
    let operands: Vec<_> = [q, k, v].into_iter().chain(&added).collect();
    let ours = is_ours(OP, &operands)?;
    let call =
        AttentionCall { op: OP, sizes, q, added, causal: matches!(mask, Mask::Causal), scale };
    if !ours && !call.is_empty()? {
        sizes::allocated(OP, &call.sizes.scores())?;
        return Ok(composite(call, k, v)?);
    }
    call.by_kernels(|isa, queries| {
        if precision == Precision::Int8 && sizes.keys.max(sizes.head_dim) > MAX_TERMS {
            let expected =
                format!("k of at most {MAX_TERMS} keys and inputs, for factors in 8 bits");
            return Err(mismatch(OP, expected, k));
        }
        let (k, v) = (with_rows(k)?, with_rows(v)?);
        let (k, v) = (Elements::new(&k), Elements::new(&v));
        let attention = Attention::new(queries, heads_of(&k)?, heads_of(&v)?, precision.into());
        Ok(kernels::attention(isa, attention))
    })
}

/// A call, wherever the keys and values are.
pub(super) struct AttentionCall<'a> {
    pub op: &'static str,
    pub sizes: AttentionSizes,
    pub q: &'a Tensor,
    /// The mask as a tensor to add.
    pub added: Option<Tensor>,
    pub causal: bool,
    pub scale: f64,
}

impl AttentionCall<'_> {
    /// Whether the result is zeros, or nothing.
    fn is_empty(&self) -> error::Result<bool> {
        let shape = self.sizes.result();
        sizes::computed(self.op, &shape, self.q.elem_count())?;
        Ok(shape.contains(&0) || self.sizes.keys == 0)
    }

    /// The result, if `run` computes its elements, in the shape of [`Sizes::result`].
    pub(super) fn by_kernels(
        &self,
        run: impl FnOnce(Isa, Queries<'_>) -> error::Result<Vec<f32>>,
    ) -> error::Result<Tensor> {
        let (sizes, q) = (self.sizes, self.q);
        let shape = sizes.result();
        if self.is_empty()? {
            return Ok(Tensor::zeros(&shape[..], q.dtype(), q.device())?.transpose(1, 2)?);
        }
        let rows = with_rows(q)?;
        let rows = Elements::new(&rows);
        let added = self.added.as_ref().map(with_rows).transpose()?;
        let added = added.as_ref().map(Elements::new);
        let queries = Queries {
            q: heads_of(&rows)?,
            mask: added.as_ref().map(heads_of).transpose()?,
            causal: self.causal,
            scale: self.scale as f32,
            batch: sizes.batch,
            heads: sizes.heads,
            kv_heads: sizes.kv_heads,
        };
        let ys = run(kernels::active()?, queries)?;
        Ok(from_f32_vec(ys, &shape, q.dtype())?.transpose(1, 2)?)
    }
}

/// The sizes of operands that agree.
#[derive(Clone, Copy)]
pub(super) struct AttentionSizes {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub head_dim: usize,
    pub value_dim: usize,
}

impl AttentionSizes {
    /// The shape of the scores.
    pub fn scores(self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// The shape of the result as it is in memory, `[batch, queries, heads, value_dim]`.
    fn result(self) -> [usize; 4] {
        [self.batch, self.queries, self.heads, self.value_dim]
    }

    fn new(q: &Tensor, k: &Tensor, v: &Tensor) -> error::Result<Self> {
        let &[batch, heads, queries, head_dim] = q.dims() else {
            return Err(mismatch(OP, "q of [batch, heads, queries, head_dim]", q));
        };
        let kv_heads = match k.dims() {
            // Any divisor, and of no heads any number.
            &[_, kv_heads, ..] if heads.checked_rem(kv_heads).unwrap_or(heads) == 0 => kv_heads,
            _ => heads,
        };
        let keys = k.dims().get(2).copied().unwrap_or_default();
        if k.dims() != [batch, kv_heads, keys, head_dim] {
            let divisor = match heads {
                0 | 1 => String::new(),
                _ => format!(", or of a divisor of {heads} in its place"),
            };
            let expected = format!("k of [{batch}, {heads}, keys, {head_dim}]{divisor}");
            return Err(mismatch(OP, expected, k));
        }
        let value_dim = v.dims().last().copied().unwrap_or_default();
        if v.dims() != [batch, kv_heads, keys, value_dim] {
            let expected = format!("v of [{batch}, {kv_heads}, {keys}, value_dim]");
            return Err(mismatch(OP, expected, v));
        }
        Ok(Self { batch, heads, kv_heads, queries, keys, head_dim, value_dim })
    }
}

/// The tensor in f32, with the elements of a row side by side.
pub(super) fn with_rows(tensor: &Tensor) -> error::Result<Tensor> {
    let tensor = to_f32(tensor, OP)?;
    match (tensor.dims(), tensor.stride()) {
        ([.., 0 | 1], _) | (_, [.., 1]) => Ok(tensor),
        _ => Ok(tensor.contiguous()?),
    }
}

pub(super) fn heads_of<'a>(elements: &'a Elements<'_>) -> error::Result<Heads<'a>> {
    let (_, _, rows, columns) = elements.layout().shape().dims4()?;
    let strides = elements.layout().stride();
    let strides = [strides[0], strides[1], strides[2]];
    Ok(Heads::new(elements.strided()?, strides, [rows, columns]))
}

/// Attention by candle's own operations; half precision in f32.
fn composite(call: AttentionCall<'_>, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (sizes, q) = (call.sizes, call.q);
    let (batch, heads, queries) = (sizes.batch, sizes.heads, sizes.queries);
    let dtype = match q.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let contiguous = |tensor: &Tensor| readable(tensor)?.to_dtype(dtype)?.contiguous();
    // Heads that share k and v, one below the other.
    let rows = heads / sizes.kv_heads * queries;
    let shared = (batch, sizes.kv_heads, rows, ());
    let q_heads = contiguous(q)?.reshape(shared)?;
    let (k, v) = (contiguous(k)?, contiguous(v)?);
    let scores = (q_heads.matmul(&k.t()?)? * call.scale)?;
    let mut scores = scores.reshape((batch, heads, queries, sizes.keys))?;
    let added = if call.causal {
        let added = causal(queries, sizes.keys, q.device())?;
        Some(added.broadcast_as(scores.shape())?)
    } else {
        call.added
    };
    if let Some(added) = &added {
        let added = added.to_dtype(dtype)?;
        // Excluded, whatever the score is.
        let excluded = added.eq(f64::NEG_INFINITY)?;
        scores = excluded.where_cond(&added, &(scores + &added)?)?;
    }
    // A query without keys: every weight is 0 then, and not NaN.
    let max = scores.max_keepdim(D::Minus1)?;
    let excluded = max.eq(f64::NEG_INFINITY)?;
    let origin = excluded.where_cond(&max.zeros_like()?, &max)?;
    let weights = scores.broadcast_sub(&origin)?.exp()?;
    let sum = weights.sum_keepdim(D::Minus1)?;
    let sum = excluded.where_cond(&sum.ones_like()?, &sum)?;
    let weights = weights.reshape(shared)?;
    let ys = match added {
        None => weights.matmul(&v)?,
        Some(_) => weighted(&weights, &v, &scores.reshape(shared)?)?,
    };
    let ys = ys.reshape((batch, heads, queries, sizes.value_dim))?.broadcast_div(&sum)?;
    let ys = ys.to_dtype(q.dtype())?;
    // The layout of the fused result.
    ys.transpose(1, 2)?.contiguous()?.transpose(1, 2)
}

/// The product of weights and values. Values that are not finite are added by themselves to the
/// queries whose scores do not exclude their keys: a product of 0 and one of them is NaN.
fn weighted(weights: &Tensor, v: &Tensor, scores: &Tensor) -> Result<Tensor> {
    let zeros = v.zeros_like()?.detach();
    let is_finite = (v.detach() * 0.)?.eq(&zeros)?;
    if is_finite.min_all()?.to_scalar::<u8>()? > 0 {
        return weights.matmul(v);
    }
    let mut ys = weights.matmul(&is_finite.where_cond(v, &zeros)?)?;
    let seen = scores.ne(f64::NEG_INFINITY)?.to_dtype(v.dtype())?;
    for (value, is_value) in [
        (f64::INFINITY, v.eq(f64::INFINITY)?),
        (f64::NEG_INFINITY, v.eq(f64::NEG_INFINITY)?),
        (f64::NAN, v.ne(v)?),
    ] {
        let count = seen.matmul(&is_value.to_dtype(v.dtype())?)?;
        let value = Tensor::full(value, count.dims(), v.device())?.to_dtype(v.dtype())?;
        ys = (ys + count.gt(0.)?.where_cond(&value, &count.zeros_like()?)?)?;
    }
    Ok(ys)
}
