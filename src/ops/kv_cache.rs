//! Keys and values of a decoder's layer, kept in the precision in which they are multiplied.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::attention::{AttentionCall, AttentionSizes, heads_of, with_rows};
use super::mask::Mask;
use crate::error::{Error, Result};
use crate::kernels::{self, Attention, Heads, Isa, KeyValues, MAX_TERMS, PAGE, Precision, Values};
use crate::sizes;
use crate::tensor::{Elements, check_cpu_float, mismatch, without_gradient};
use crate::trace;

/// Keys and values of one layer of a decoder: they are appended once, in the precision in which
/// attention multiplies them, and never converted again.
///
/// [`attend`](Self::attend) gives the bits that
/// [`scaled_dot_product_attention_with`](crate::ops::scaled_dot_product_attention_with) gives for
/// all of the appended keys and values at this precision. In [`Precision::Int8`] a row is its codes
/// and a scale: a decoder reads about a quarter of the bytes of f32, in [`Precision::BFloat16`]
/// half of them.
///
/// The first keys and values set the sizes. Rows are kept in pages of 128 rows that clones share: a
/// clone costs nothing until one of both appends, which copies the last page. So texts with a common
/// beginning keep it once: `clone`, then [`truncate`](Self::truncate). Codes of 8 bits are copied as
/// a whole by then, and their capacity grows by doubling.
///
/// Gradients do not flow through a cache: a backward pass that reaches a result of tracked queries
/// is an error.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::nn::KvCache;
/// use candle_dynquant::ops::{Mask, Precision};
///
/// // Two heads of keys and values; four of queries.
/// let rows = |heads, rows| Tensor::randn(0f32, 1., (1, heads, rows, 64), &Device::Cpu);
/// let mut cache = KvCache::new(Precision::Int8);
/// cache.append(&rows(2, 9)?, &rows(2, 9)?)?; // the prompt
/// cache.append(&rows(2, 1)?, &rows(2, 1)?)?; // a token
/// let context = cache.attend(&rows(4, 1)?, Mask::Causal, 0.125)?;
/// assert_eq!((context.dims(), cache.len()), (&[1, 4, 1, 64][..], 10));
/// let mut other = cache.clone(); // shares the rows
/// other.truncate(9); // without the token
/// assert_eq!((cache.len(), other.len()), (10, 9));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone)]
pub struct KvCache {
    precision: Precision,
    /// The least capacity, from the first keys on.
    least: usize,
    kept: Option<Kept>,
}

/// Rows, and the sizes that they have.
#[derive(Clone)]
struct Kept {
    batch: usize,
    heads: usize,
    dims: [usize; 2],
    len: usize,
    capacity: usize,
    rows: KvRows,
}

/// Keys and values of each head, with spare capacity.
#[derive(Clone)]
enum KvRows {
    Floats([Pages<f32>; 2]),
    Halves([Pages<bf16>; 2]),
    Codes(Arc<KeyValues>),
}

/// Pages of `[batch, heads, PAGE, columns]`; a page that clones share is copied when it changes.
type Pages<T> = Vec<Arc<Vec<T>>>;

const APPEND: &str = "append to a KvCache";
const ATTEND: &str = "attend over a KvCache";

/// The most keys of a panel of codes: their capacities are multiples.
const PANEL: usize = 64;

impl KvCache {
    /// An empty cache, for keys and values of any sizes.
    pub fn new(precision: Precision) -> Self {
        Self::with_capacity(precision, 0)
    }

    /// An empty cache with room for `rows` codes of each head in 8 bits, taken with the first row.
    /// In other precisions pages are taken as rows come.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_dynquant::nn::KvCache;
    /// use candle_dynquant::ops::Precision;
    ///
    /// let mut cache = KvCache::with_capacity(Precision::Int8, 192);
    /// let rows = Tensor::randn(0f32, 1., (1, 2, 9, 64), &Device::Cpu)?;
    /// cache.append(&rows, &rows)?;
    /// assert_eq!((cache.len(), cache.capacity()), (9, 192));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn with_capacity(precision: Precision, rows: usize) -> Self {
        Self { precision, least: rows, kept: None }
    }

    /// The precision of the keys and values.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Keys and values of each head.
    pub fn len(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.len)
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys and values of each head that there is room for until it grows.
    #[doc(hidden)]
    pub fn capacity(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.capacity)
    }

    /// Bytes of memory: keys and values, their scales, and spare capacity; pages that clones share
    /// count in each.
    pub fn bytes(&self) -> usize {
        match self.kept.as_ref().map(|kept| &kept.rows) {
            None => 0,
            Some(KvRows::Floats(all)) => bytes_of(all),
            Some(KvRows::Halves(all)) => bytes_of(all),
            Some(KvRows::Codes(codes)) => codes.bytes(),
        }
    }

    /// Forgets all keys and values, and their sizes, and gives back the memory.
    pub fn reset(&mut self) {
        self.kept = None;
    }

    /// Keeps the first `len` keys and values; all if there are fewer. Pages behind them are given
    /// back; the memory of codes of 8 bits stays.
    pub fn truncate(&mut self, len: usize) {
        if let Some(kept) = &mut self.kept
            && len < kept.len
        {
            kept.len = len;
            let pages = len.div_ceil(PAGE);
            match &mut kept.rows {
                KvRows::Codes(codes) => return Arc::make_mut(codes).truncate(len),
                KvRows::Floats(all) => all.iter_mut().for_each(|rows| rows.truncate(pages)),
                KvRows::Halves(all) => all.iter_mut().for_each(|rows| rows.truncate(pages)),
            }
            kept.capacity = pages * PAGE;
        }
    }

    /// Appends keys, `[batch, kv_heads, rows, head_dim]`, and as many values,
    /// `[batch, kv_heads, rows, value_dim]`, in f32, f16 or bf16.
    ///
    /// # Errors
    /// When sizes differ from the cache's, a tensor is not on the CPU or of another dtype, or
    /// [`Precision::Int8`] gets more than 65,536 keys or inputs of a key. The cache is then as it
    /// was.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> candle_core::Result<()> {
        Ok(self.try_append(k, v)?)
    }

    fn try_append(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        trace::forward!("cache");
        let (new, rows) = self.sizes_with(k, v)?;
        for tensor in [k, v] {
            check_kernel_float(tensor, APPEND)?;
        }
        let len = self.len() + rows;
        let most = match self.precision {
            Precision::Int8 => MAX_TERMS,
            _ => usize::MAX,
        };
        if len.max(new.dims[0]) > most {
            let expected = format!(
                "k of at most {MAX_TERMS} inputs and keys, with the {} before, for codes of 8 bits",
                self.len()
            );
            return Err(mismatch(APPEND, expected, k));
        }
        let capacity = match (self.capacity(), self.precision) {
            (before, _) if before >= len => before,
            (before, Precision::Int8) => {
                let wanted = len.max(2 * before).max(self.least.min(most));
                let rounded = wanted.checked_next_multiple_of(PANEL);
                rounded.unwrap_or(most).min(most)
            }
            _ => len.checked_next_multiple_of(PAGE).unwrap_or(most),
        };
        for dim in new.dims {
            // Of sizes of 0, too, some memory is needed.
            let all = [new.batch, new.heads, capacity, dim];
            sizes::allocated(APPEND, &all.map(|size| size.max(1)))?;
        }
        let isa = kernels::active()?;
        let (k, v) = (with_rows(k)?, with_rows(v)?);
        let (k, v) = (Elements::new(&k), Elements::new(&v));
        let (k, v) = (heads_of(&k)?, heads_of(&v)?);

        let kept = match &mut self.kept {
            Some(kept) => kept,
            kept @ None => {
                kept.insert(Kept { rows: KvRows::none(isa, self.precision, &new), ..new })
            }
        };
        let place = [kept.batch, kept.heads, kept.len];
        match &mut kept.rows {
            KvRows::Floats(all) => put([k, v], all, place, <[f32]>::copy_from_slice),
            KvRows::Halves(all) => put([k, v], all, place, <[bf16]>::convert_from_f32_slice),
            KvRows::Codes(codes) => {
                if capacity > kept.capacity {
                    *codes = Arc::new(codes.with_capacity(capacity));
                }
                Arc::make_mut(codes).append(k, v);
            }
        }
        (kept.len, kept.capacity) = (len, capacity);
        Ok(())
    }
}

impl KvCache {
    /// The cache as it will be, without rows, and how many rows there are to be appended.
    fn sizes_with(&self, k: &Tensor, v: &Tensor) -> Result<(Kept, usize)> {
        let &[batch, heads, rows, head_dim] = k.dims() else {
            let expected = "k of [batch, kv_heads, rows, head_dim]";
            return Err(mismatch(APPEND, expected, k));
        };
        let value_dim = v.dims().last().copied().unwrap_or_default();
        if let Some(kept) = &self.kept {
            let (own, [of_k, _]) = ([kept.batch, kept.heads], kept.dims);
            if ([batch, heads], head_dim) != (own, of_k) {
                let [batch, heads] = own;
                let expected = format!("k of [{batch}, {heads}, rows, {of_k}], as the keys before");
                return Err(mismatch(APPEND, expected, k));
            }
        }
        let of_v = self.kept.as_ref().map(|kept| kept.dims[1]);
        if v.dims() != [batch, heads, rows, of_v.unwrap_or(value_dim)] {
            let columns = of_v.map_or("value_dim".into(), |columns| columns.to_string());
            let expected = format!("v of [{batch}, {heads}, {rows}, {columns}]");
            return Err(mismatch(APPEND, expected, v));
        }
        let new = Kept {
            batch,
            heads,
            dims: [head_dim, value_dim],
            len: 0,
            capacity: 0,
            rows: KvRows::Floats([Vec::new(), Vec::new()]),
        };
        Ok((new, rows))
    }

    /// Attention of queries to all keys and values: `softmax(q k^T scale + mask) v`.
    ///
    /// # Shapes
    /// - `q`: `[batch, heads, queries, head_dim]`, in f32, f16 or bf16; the cache's heads divide
    ///   `heads`, as in
    ///   [`scaled_dot_product_attention`](crate::ops::scaled_dot_product_attention)
    /// - `mask`: a [`Mask`], or `Option<&Tensor>`; with [`Mask::Causal`] the last query's own key
    ///   is the last one
    /// - result: `[batch, heads, queries, value_dim]` in the dtype of `q`
    ///
    /// # Errors
    /// When nothing was appended, sizes differ from the cache's, or a tensor is not on the CPU or
    /// of another dtype.
    pub fn attend<'a>(
        &self,
        q: &Tensor,
        mask: impl Into<Mask<'a>>,
        scale: impl Into<f64>,
    ) -> candle_core::Result<Tensor> {
        Ok(self.try_attend(q, mask.into(), scale.into())?)
    }

    pub(crate) fn try_attend(&self, q: &Tensor, mask: Mask<'_>, scale: f64) -> Result<Tensor> {
        trace::forward!("attention");
        let Some(kept) = &self.kept else {
            let expected = "one to which keys and values were appended";
            let got = "an empty one";
            return Err(Error::argument("KvCache to attend over", expected, got));
        };
        let sizes = kept.sizes(q)?;
        let added = mask.added(ATTEND, &sizes.scores())?;
        for tensor in std::iter::once(q).chain(&added) {
            check_kernel_float(tensor, ATTEND)?;
        }
        let call = AttentionCall {
            op: ATTEND,
            sizes,
            q,
            added,
            causal: matches!(mask, Mask::Causal),
            scale,
        };
        let ys = call.by_kernels(|isa, queries| {
            Ok(match &kept.rows {
                KvRows::Codes(codes) => kernels::attend(queries, codes),
                KvRows::Halves(all) => {
                    let pages = slices(all);
                    let [k, v] = kept.heads_of(&pages);
                    kernels::attention_to_bf16(isa, queries, k, v)
                }
                KvRows::Floats(all) => {
                    let pages = slices(all);
                    let [k, v] = kept.heads_of(&pages);
                    let precision = Precision::Float32.into();
                    kernels::attention(isa, Attention::new(queries, k, v, precision))
                }
            })
        })?;
        without_gradient(ys, &[q])
    }

    /// The keys and the values as they are, where they are floats that were not rounded.
    pub(crate) fn floats(&self) -> Result<Option<[Tensor; 2]>> {
        let Some(kept) = &self.kept else {
            return Ok(None);
        };
        let KvRows::Floats([k, v]) = &kept.rows else {
            return Ok(None);
        };
        let tensor = |pages: &Pages<f32>, dim| -> Result<Tensor> {
            let shape = [kept.batch, kept.heads, PAGE, dim];
            let page = |page: &Arc<Vec<f32>>| Tensor::from_slice(page, &shape[..], &Device::Cpu);
            let pages = pages.iter().map(page);
            let all = Tensor::cat(&pages.collect::<candle_core::Result<Vec<_>>>()?, 2)?;
            Ok(all.narrow(2, 0, kept.len)?)
        };
        let [of_k, of_v] = kept.dims;
        Ok(Some([tensor(k, of_k)?, tensor(v, of_v)?]))
    }
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("precision", &self.precision)
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

impl Kept {
    fn sizes(&self, q: &Tensor) -> Result<AttentionSizes> {
        let (batch, kv_heads, [head_dim, value_dim]) = (self.batch, self.heads, self.dims);
        let [_, heads, queries, _] = *q.dims() else {
            let expected = "q of [batch, heads, queries, head_dim]";
            return Err(mismatch(ATTEND, expected, q));
        };
        let divides = heads.checked_rem(kv_heads).unwrap_or(heads) == 0;
        if !divides || q.dims() != [batch, heads, queries, head_dim] {
            let expected = format!(
                "q of [{batch}, {kv_heads}, queries, {head_dim}], or of a multiple of {kv_heads} \
                 heads, as the cache has"
            );
            return Err(mismatch(ATTEND, expected, q));
        }
        Ok(AttentionSizes { batch, heads, kv_heads, queries, keys: self.len, head_dim, value_dim })
    }

    fn heads_of<'a, T>(&self, [k, v]: &'a [Vec<&'a [T]>; 2]) -> [Heads<'a, T>; 2] {
        [(k, self.dims[0]), (v, self.dims[1])].map(|(pages, columns)| {
            let of_head = PAGE * columns;
            Heads {
                values: Values::Pages(pages),
                strides: [self.heads * of_head, of_head, columns],
                rows: self.len,
                columns,
            }
        })
    }
}

fn slices<T>(all: &[Pages<T>; 2]) -> [Vec<&[T]>; 2] {
    all.each_ref().map(|pages| pages.iter().map(|page| &page[..]).collect())
}

fn bytes_of<T>(all: &[Pages<T>; 2]) -> usize {
    let pages = all.iter().flatten();
    pages.map(|page| size_of_val(&page[..])).sum()
}

impl KvRows {
    fn none(isa: Isa, precision: Precision, sizes: &Kept) -> Self {
        match precision {
            Precision::Float32 => Self::Floats([Vec::new(), Vec::new()]),
            Precision::BFloat16 => Self::Halves([Vec::new(), Vec::new()]),
            Precision::Int8 => {
                let empty = KeyValues::new(isa, [sizes.batch, sizes.heads], sizes.dims, 0);
                Self::Codes(Arc::new(empty))
            }
        }
    }
}

fn check_kernel_float(tensor: &Tensor, op: &'static str) -> Result<()> {
    check_cpu_float(tensor, op)?;
    match tensor.dtype() {
        got @ DType::F64 => Err(Error::dtype(op, "f32, f16 or bf16", got)),
        _ => Ok(()),
    }
}

/// Writes the rows of all heads behind the `len` that there are of each.
fn put<T: Copy + Default>(
    from: [Heads<'_>; 2],
    to: &mut [Pages<T>; 2],
    [batch, heads, len]: [usize; 3],
    write: impl Fn(&mut [T], &[f32]),
) {
    let places = (0..batch).flat_map(|s| (0..heads).map(move |head| (s, head)));
    for (from, pages) in from.into_iter().zip(to) {
        let (columns, end) = (from.columns, len + from.rows);
        if columns == 0 || from.rows == 0 {
            continue;
        }
        let size = batch * heads * PAGE * columns;
        pages.resize_with(end.div_ceil(PAGE), || Arc::new(vec![T::default(); size]));
        for (index, page) in pages.iter_mut().enumerate().skip(len / PAGE) {
            let rows = len.max(index * PAGE)..end.min((index + 1) * PAGE);
            let page = Arc::make_mut(page);
            for (sequence, head) in places.clone() {
                let first = (sequence * heads + head) * PAGE + rows.start % PAGE;
                let to = page[first * columns..].chunks_exact_mut(columns);
                for (row, to) in rows.clone().zip(to) {
                    write(to, &from.rows_from(sequence, head, row - len)[..columns]);
                }
            }
        }
    }
}
