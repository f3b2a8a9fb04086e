//! Attention of all heads, cut into blocks of queries.

use std::cell::Cell;

use half::bf16;

use super::attention_int8;
use super::convert::widened;
use crate::isa::Isa;
use crate::loops::attention::{Attention, Heads, PAGE, Precision, Queries, QueryBlock, Values};
use crate::loops::buffer::{self, Aligned};
use crate::loops::float_tile::COLUMNS;
use crate::loops::product::Sink;
use crate::sizes;
use crate::threads::{TASKS_PER_THREAD, Threads};

impl<'a> Attention<'a> {
    /// Checks the operands and returns them.
    ///
    /// # Panics
    /// If the sizes of the operands do not agree, or one exceeds its slice.
    fn checked(self) -> Self {
        let Self { k, v, .. } = self;
        let queries = self.queries.checked(k.rows, k.columns);
        assert!(k.rows == v.rows, "k and v: expected one number of keys");
        let k = k.checked("k", self.queries.batch, self.queries.kv_heads);
        let v = v.checked("v", self.queries.batch, self.queries.kv_heads);
        Self::new(queries, k, v, self.precision)
    }

    /// [`Queries::grouped`], where sequences of keys and values follow each other as their heads
    /// do.
    fn grouped(self) -> Self {
        let queries = self.queries.grouped();
        let follow = |heads: Heads<'_>| heads.follow(self.queries.batch, self.queries.kv_heads);
        if queries.q.rows == self.queries.q.rows || !(follow(self.k) && follow(self.v)) {
            return self;
        }
        let keys =
            |heads: Heads<'a>| Heads { strides: [heads.strides[1], 0, heads.strides[2]], ..heads };
        Self::new(queries, keys(self.k), keys(self.v), self.precision)
    }
}

/// Multiply-adds below which the caller's thread computes alone.
const SERIAL_MACS: usize = if cfg!(miri) { 1_000 } else { 200_000 };

/// `softmax(q k^T scale + mask) v`, laid out as `[batch, queries, heads, value_dim]`.
///
/// Each query has the result of [`reference::attention`](crate::reference::attention),
/// [`reference::attention_bf16`](crate::reference::attention_bf16) or
/// [`reference::attention_int8`](crate::reference::attention_int8). A query that sees no key, by a
/// mask of minus infinity or by `causal`, gives zeros. A key that it does not see never affects it,
/// finite or not. Each element is within `2^-21 max |v| (2 + max (scale sum |q_d k_d| + |mask|))`
/// of the exact result, the maxima over the keys that are not excluded; with factors in bfloat16 it
/// is beyond that by at most `max |v| (e^(s / 63) - 1 + 2^-6)`, `s` being `max scale sum |q_d
/// k_d|`. In 8 bits the max is of whole rows of v, and it is beyond that by at most `max |v| (e^(2
/// t) - 1 + 2^-7 + min(1, keys / (500 z)))`: `t`, the error of a score, is the max of `scale (K sum
/// |q_d| + Q sum |k_d| + head_dim Q K / 254) / 254` with `Q = max |q_d|` and `K = max |k_d|`, since
/// a code is within half a step, `Q / 254`, of its value; 2^-7 is the half step of the values and
/// what exponentials and their sum are rounded by; a weight is within half a step, 1/510 of the
/// greatest, which is at most `1 / z` with the sum `z` of `e^(score - max)`, and not more than
/// itself. It does not depend on the number of threads.
///
/// # Panics
/// If the sizes of the operands do not agree, or one exceeds its slice; in 8 bits, if there are
/// more keys or inputs than [`MAX_TERMS`](crate::MAX_TERMS).
pub fn attention(isa: Isa, attention: Attention<'_>) -> Vec<f32> {
    if attention.precision == Precision::Int8 {
        return attention_int8::attention(isa, attention.checked());
    }
    let attention = attention.checked().grouped();
    let Attention { queries, k, v, .. } = attention;
    let Queries { q, batch, heads, .. } = queries;
    let len = sizes::length("out", &[batch, heads, q.rows, v.columns]);
    if len == 0 || k.rows == 0 {
        return vec![0.; len];
    }

    let work = queries.multiply_adds(k.rows, v.columns);
    let threads = Threads::of_caller();
    let count = threads.for_work(work, SERIAL_MACS);
    let registers = q.rows.div_ceil(COLUMNS);
    let wanted = TASKS_PER_THREAD * count;
    let blocks = registers.div_ceil(attention.precision.queries_of_task() / COLUMNS);
    let blocks = match count {
        1 => blocks,
        _ => blocks.max(registers.min(wanted.div_ceil(batch * heads))),
    };
    sizes::length("registers by blocks", &[registers, blocks]);
    // SAFETY: the blocks of all heads of all sequences are all rows and columns of the output, each
    // once: they fill it, and do not overlap.
    unsafe {
        buffer::filled(len, |out| {
            let out = Sink::channels(out, heads * v.columns);
            let task = |index: usize| {
                let (head, block) = (index / blocks, index % blocks);
                let start = block * registers / blocks * COLUMNS;
                let end = (block + 1) * registers / blocks * COLUMNS;
                let block = QueryBlock {
                    batch: head / heads,
                    head: head % heads,
                    queries: start..end.min(q.rows),
                };
                compute(isa, &attention, block, &out);
            };
            threads.spread(count, batch * heads * blocks, task);
        })
    }
}

/// Computes a block, again with care if it is not finite.
///
/// # Safety
/// No other thread computes any of its queries.
unsafe fn compute(isa: Isa, attention: &Attention<'_>, block: QueryBlock, out: &Sink<'_>) {
    // SAFETY: the contract is the same.
    unsafe {
        if !isa.attend::<false>(attention, block.clone(), out) {
            isa.attend::<true>(attention, block, out);
        }
    }
}

thread_local! {
    static WIDENED: Cell<Aligned> = Cell::default();
}

/// [`attention`] with factors in bfloat16 to keys and values that are bfloat16 already, which it
/// widens head by head.
///
/// # Panics
/// If the sizes of the operands do not agree, or one exceeds its slice.
pub fn attention_to_bf16(
    isa: Isa,
    queries: Queries<'_>,
    k: Heads<'_, bf16>,
    v: Heads<'_, bf16>,
) -> Vec<f32> {
    let queries = queries.checked(k.rows, k.columns);
    assert!(k.rows == v.rows, "k and v: expected one number of keys");
    let (batch, kv_heads) = (queries.batch, queries.kv_heads);
    let [k, v] = [("k", k), ("v", v)].map(|(name, heads)| heads.checked(name, batch, kv_heads));
    let len = [batch, queries.heads, queries.q.rows, v.columns];
    let len = sizes::length("out", &len);
    if len == 0 || k.rows == 0 {
        return vec![0.; len];
    }
    // One matrix, which is the task's for each head.
    let per_head = |heads: Heads<'_, bf16>| {
        Heads::new(&[], [0, 0, heads.columns], [heads.rows, heads.columns])
    };
    let attention =
        Attention::new(queries, per_head(k), per_head(v), Precision::BFloat16).grouped();
    let threads = Threads::of_caller();
    let count = threads.for_work(queries.multiply_adds(k.rows, v.columns), SERIAL_MACS);
    // SAFETY: the heads of all sequences are all columns of the output, each once: they fill it,
    // and do not overlap.
    unsafe {
        buffer::filled(len, |out| {
            let out = Sink::channels(out, attention.queries.heads * v.columns);
            let task = |index: usize| {
                let mut room = Aligned::take(&WIDENED);
                let [wide_k, wide_v] = room.split([k, v].map(|heads| heads.rows * heads.columns));
                for (heads, wide) in [(k, &mut *wide_k), (v, &mut *wide_v)] {
                    widen(isa, heads, [index / kv_heads, index % kv_heads], wide);
                }
                let mut local = attention;
                (local.k.values, local.v.values) = (Values::Whole(wide_k), Values::Whole(wide_v));
                let Queries { q, heads, kv_heads, .. } = local.queries;
                let group = heads / kv_heads;
                let first = index % kv_heads * group;
                let step = Precision::BFloat16.queries_of_task();
                for head in first..first + group {
                    for start in (0..q.rows).step_by(step) {
                        let block = QueryBlock {
                            batch: index / kv_heads,
                            head,
                            queries: start..q.rows.min(start + step),
                        };
                        compute(isa, &local, block, &out);
                    }
                }
                room.keep(&WIDENED);
            };
            threads.spread(count, batch * kv_heads, task);
        })
    }
}

/// Writes the matrix of a head of a sequence as f32.
fn widen(isa: Isa, from: Heads<'_, bf16>, [sequence, head]: [usize; 2], to: &mut [f32]) {
    let rows = if from.strides[2] == from.columns { PAGE } else { 1 };
    for (index, out) in to.chunks_mut((rows * from.columns).max(1)).enumerate() {
        let values = &from.rows_from(sequence, head, index * rows)[..out.len()];
        isa.run(widened(values, out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values in [-3, 3) that depend on nothing but their number and the seed.
    fn values(seed: usize, len: usize) -> Vec<f32> {
        let value = |i: usize| {
            let i = (seed * 1_000_003 + i + 1) as u64;
            let mixed = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            (mixed as f32 / (1u64 << 23) as f32 - 1.) * 3.
        };
        (0..len).map(value).collect()
    }

    /// Rows of `heads * columns` that the heads share, as a projection leaves them.
    fn heads(values: &[f32], batch_rows: usize, heads: usize, columns: usize) -> Heads<'_> {
        let row = heads * columns;
        Heads::new(values, [batch_rows * row, columns, row], [batch_rows, columns])
    }

    /// Each element in f64, and the bound that is stated for it.
    fn exact(a: &Attention<'_>) -> Vec<(f64, f64)> {
        let queries = &a.queries;
        let at =
            |heads: &Heads<'_>, b, h, row, column| f64::from(heads.rows_from(b, h, row)[column]);
        let mut out = Vec::new();
        let kv = |h| h * queries.kv_heads / queries.heads;
        for b in 0..queries.batch {
            for (i, h) in (0..queries.q.rows).flat_map(|i| (0..queries.heads).map(move |h| (i, h)))
            {
                let score = |j| {
                    if queries.causal && j + queries.q.rows > i + a.k.rows {
                        return f64::NEG_INFINITY;
                    }
                    let dot = |d| at(&queries.q, b, h, i, d) * at(&a.k, b, kv(h), j, d);
                    let dot = (0..queries.q.columns).map(dot).sum::<f64>();
                    let mask = queries.mask.map_or(0., |mask| at(&mask, b, h, i, j));
                    dot * f64::from(queries.scale) + mask
                };
                let scores: Vec<f64> = (0..a.k.rows).map(score).collect();
                let of_products = |j| {
                    let term = |d| (at(&queries.q, b, h, i, d) * at(&a.k, b, kv(h), j, d)).abs();
                    f64::from(queries.scale) * (0..queries.q.columns).map(term).sum::<f64>()
                };
                let of_mask = |j| queries.mask.map_or(0., |mask| at(&mask, b, h, i, j)).abs();
                let seen = || (0..a.k.rows).filter(|j| of_mask(*j).is_finite());
                let size = seen().map(|j| of_products(j) + of_mask(j)).fold(0., f64::max);
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum = weights.iter().sum::<f64>();
                let of_factors = match a.precision {
                    Precision::Float32 => 0.,
                    Precision::BFloat16 => {
                        let size = seen().map(of_products).fold(0., f64::max);
                        (size / 63.).exp_m1() + 1. / 64.
                    }
                    Precision::Int8 => {
                        let sums = |matrix: &Heads<'_>, h, row| {
                            let xs = (0..matrix.columns).map(|d| at(matrix, b, h, row, d).abs());
                            xs.fold([0.; 2], |[sum, max], x| [sum + x, x.max(max)])
                        };
                        let [sum_q, max_q] = sums(&queries.q, h, i);
                        let of_key = |j| {
                            let [sum_k, max_k] = sums(&a.k, kv(h), j);
                            let both = queries.q.columns as f64 * max_q * max_k / 254.;
                            (max_q * sum_k + max_k * sum_q + both) * f64::from(queries.scale) / 254.
                        };
                        let t = seen().map(of_key).fold(0., f64::max);
                        let of_codes = a.k.rows as f64 / (500. * sum);
                        (2. * t).exp_m1() + 1. / 128. + of_codes.min(1.)
                    }
                };
                for c in 0..a.v.columns {
                    let term = |(j, w): (usize, &f64)| w * at(&a.v, b, kv(h), j, c);
                    let total = weights.iter().enumerate().map(term).sum::<f64>();
                    let exact = if max == f64::NEG_INFINITY { 0. } else { total / sum };
                    // A row of values in 8 bits has one scale.
                    let columns = match a.precision {
                        Precision::Int8 => 0..a.v.columns,
                        _ => c..c + 1,
                    };
                    let row = |j| columns.clone().map(move |c| at(&a.v, b, kv(h), j, c).abs());
                    let values = (0..a.k.rows).flat_map(row);
                    let of_sums = (2. + size) / 2f64.powi(21);
                    let max = values.fold(0., f64::max);
                    out.push((exact, max * (of_sums + of_factors)));
                }
            }
        }
        out
    }

    #[test]
    #[cfg_attr(miri, ignore = "accuracy; the code is that of tests::attention")]
    fn every_isa_is_within_the_bound_of_f64_and_all_agree() {
        let shapes = [
            (1, 1, 1, 1, 1, 1),
            (1, 2, 3, 5, 8, 8),
            (2, 3, 17, 16, 7, 9),
            (1, 1, 63, 127, 32, 32),
            (1, 1, 64, 128, 64, 64),
            (1, 2, 65, 129, 20, 33),
            (2, 1, 130, 300, 12, 6),
            (1, 1, 270, 5, 31, 5),
            (1, 2, 5, 1, 64, 64),
            (2, 6, 3, 140, 8, 5),
            (1, 4, 150, 20, 8, 5),
            (1, 6, 1, 150, 8, 5),
            (2, 12, 1, 9, 8, 5),
            (1, 1, 4, 3, 0, 2),
            (1, 1, 4, 3, 2, 0),
            (1, 1, 0, 3, 2, 2),
            (1, 1, 2, 0, 3, 2),
        ];
        for shape in shapes {
            let (batch, heads_count, queries, keys, head_dim, value_dim) = shape;
            let len = |rows, columns| batch * heads_count * rows * columns;
            let q = values(1, len(queries, head_dim));
            // Heads of k and v that three heads of q share.
            let kv_heads = match heads_count % 3 {
                0 => heads_count / 3,
                _ => heads_count,
            };
            let kv_len = |columns| batch * kv_heads * keys * columns;
            let k = values(2, kv_len(head_dim));
            let v = values(3, kv_len(value_dim));
            let mut of_keys = values(4, batch * keys);
            let mut of_queries = values(5, queries * keys);
            for x in of_keys.iter_mut().chain(&mut of_queries).step_by(3) {
                *x = f32::NEG_INFINITY;
            }
            of_queries.iter_mut().take(keys).for_each(|x| *x = f32::NEG_INFINITY);
            let mask = |values, strides| Heads::new(values, strides, [queries, keys]);
            let masks = [
                None,
                Some(mask(&of_keys[..], [keys, 0, 0])),
                Some(mask(&of_queries[..], [0, 0, keys])),
            ];
            let masks = masks.into_iter().map(|mask| (mask, false));
            let masks = masks.chain([(None, true)]);
            let with = |precision| masks.clone().map(move |mask| (mask, precision));
            let precisions = [Precision::Float32, Precision::BFloat16, Precision::Int8];
            for ((mask, causal), precision) in precisions.into_iter().flat_map(with) {
                let attention = Attention {
                    queries: Queries {
                        q: heads(&q, queries, heads_count, head_dim),
                        mask,
                        causal,
                        scale: 0.3,
                        batch,
                        heads: heads_count,
                        kv_heads,
                    },
                    k: heads(&k, keys, kv_heads, head_dim),
                    v: heads(&v, keys, kv_heads, value_dim),
                    precision,
                };
                let expected = exact(&attention);
                let mut first: Option<Vec<u32>> = None;
                for isa in Isa::available() {
                    let got = super::attention(isa, attention);
                    assert_eq!(got.len(), expected.len());
                    for (got, (expected, bound)) in got.iter().zip(&expected) {
                        let error = (f64::from(*got) - expected).abs();
                        assert!(error <= *bound, "{isa}: {got}, expected {expected}");
                    }
                    let bits = got.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(first.get_or_insert_with(|| Clone::clone(&bits)), &bits);
                }
            }
        }
    }

    impl<'a> Attention<'a> {
        /// Attention of one head without mask or scale.
        pub fn one_head(qkv: [&'a [f32]; 3], dim: usize) -> Self {
            let [q, k, v] = qkv.map(|values| heads(values, values.len() / dim, 1, dim));
            let queries = Queries {
                q,
                mask: None,
                causal: false,
                scale: 1.,
                batch: 1,
                heads: 1,
                kv_heads: 1,
            };
            Self::new(queries, k, v, Precision::Float32)
        }
    }

    #[test]
    fn subnormal_factors_are_zeros() {
        // The last one would be rounded to a normal number.
        for x in [1, 0x7f_0000, 0x7f_ffff].map(f32::from_bits) {
            let (keys, dim) = (3, 33);
            let (q, k) = (values(1, dim), values(2, keys * dim));
            let v = vec![x; keys * dim];
            let attention = Attention {
                precision: Precision::BFloat16,
                ..Attention::one_head([&q, &k, &v], dim)
            };
            for isa in Isa::available() {
                assert_eq!(super::attention(isa, attention), [0.; 33], "{isa} {x:e}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes hours")]
    fn what_is_not_finite_stays_with_its_queries() {
        let (queries, keys, dim) = (20, 150, 8);
        let (mut q, k, v) =
            (values(1, queries * dim), values(2, keys * dim), values(3, keys * dim));
        for isa in Isa::available() {
            let run = |q: &[f32]| {
                let attention = Attention::one_head([q, &k, &v], dim);
                super::attention(isa, attention)
            };
            let clean = run(&q);
            for (row, poison) in [(0, f32::NAN), (7, f32::INFINITY), (19, f32::NEG_INFINITY)] {
                let saved = std::mem::replace(&mut q[row * dim + 3], poison);
                let got = run(&q);
                q[row * dim + 3] = saved;
                for (i, (got, clean)) in got.iter().zip(&clean).enumerate() {
                    if i / dim == row {
                        assert!(got.is_nan(), "{isa} {i}: {got}");
                    } else {
                        assert_eq!(got.to_bits(), clean.to_bits(), "{isa} {i}");
                    }
                }
            }
        }
    }
}
