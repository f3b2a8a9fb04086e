//! Scaled dot-product attention, fused: no matrix of scores, no transposed copy of anything.
//!
//! ```text
//! for some queries of a head                                 a task
//!   q^T of each block of up to 64, scaled                    [head_dim, queries]
//!   for each chunk of 128 keys                               factors of k and v (`factors`)
//!     for each block
//!       s = k q^T + mask                                     [keys, queries], in L1 or L2
//!       new maximum and sum of each query; s = e^(s - maximum)
//!       o = o e^(old maximum - new) + v^T s                  [value_dim, queries]
//!   out = (o / sum)^T of each block
//! ```
//!
//! Queries are the lanes of the registers, so that softmax takes maxima and sums register by
//! register, and k and v are read where they are, element by element. The running maximum is the
//! online softmax of Milakov and Gimelshein (2018), which FlashAttention is built on.
//!
//! A query's result depends on no other query, on no thread count and on no tile size; keys that
//! the mask excludes leave no trace. A product of a weight of 0 and a value that is not finite
//! would be one: where a task's results are not all finite, the task is computed again with
//! [care](attend), which takes such values out of the product.

use std::cell::Cell;

use super::attention_few as few;
use super::buffer::{Aligned, RowsMut};
use super::factors::{BFloat16s, Factors, Float32s, Rows};
use super::float_tile::{COLUMNS, Left, Right, transpose};
use super::float_vector::Register;
use super::norm::exps_below;
use super::number::{Number, fma};
use super::product::Sink;
use super::queries::{self, KEYS, QUERIES};
pub use super::queries::{Attention, Heads, PAGE, Precision, Queries, QueryBlock, Values};

thread_local! {
    static ROOM: Cell<Aligned> = Cell::default();
}

/// The state of a task's queries between chunks of keys, adjacent for each block.
struct TaskStates<'a> {
    /// The first query.
    start: usize,
    /// Rows of `q_t` and of `sums`, with those that are computed together.
    rows_of_q: usize,
    rows_of_sums: usize,
    q_t: &'a mut [f32],
    sums: &'a mut [f32],
    max: &'a mut [f32],
    sum: &'a mut [f32],
}

/// The state of a block, whose queries are filled up to whole registers, `width` in all.
struct BlockState<'a> {
    width: usize,
    /// Queries or factors of them, `[head_dim, width]` and room behind it.
    q_t: &'a mut [f32],
    /// Weighted sums of the values, `[value_dim, width]` and room behind it.
    sums: &'a mut [f32],
    /// The maximum of each query's scores, and the sum of its weights.
    max: &'a mut [f32],
    sum: &'a mut [f32],
}

impl TaskStates<'_> {
    #[inline(always)]
    fn block(&mut self, block: &QueryBlock) -> BlockState<'_> {
        let first = block.queries.start - self.start;
        let width = block.queries.len().next_multiple_of(COLUMNS);
        BlockState {
            width,
            q_t: &mut self.q_t[first * self.rows_of_q..][..width * self.rows_of_q],
            sums: &mut self.sums[first * self.rows_of_sums..][..width * self.rows_of_sums],
            max: &mut self.max[first..][..width],
            sum: &mut self.sum[first..][..width],
        }
    }
}

/// [`attend`] by the registers of an instruction set that multiplies f32 only.
///
/// # Safety
/// No other thread computes a task that overlaps.
#[inline(always)]
pub unsafe fn attend_by<
    const LANES: usize,
    const NV: usize,
    N: Number,
    R: Register<LANES>,
    const CAREFUL: bool,
>(
    attention: &Attention<'_>,
    task: QueryBlock,
    out: &Sink<'_>,
    register: R,
) -> bool {
    // SAFETY: the contract is the same.
    unsafe {
        match attention.precision {
            Precision::Float32 | Precision::Int8 => {
                if !CAREFUL && task.queries.len() <= few::QUERIES {
                    return few::attend::<LANES, N, _>(attention, &task, out, register);
                }
                let factors = Float32s(register);
                attend::<LANES, NV, N, _, CAREFUL>(attention, task, out, factors)
            }
            Precision::BFloat16 => {
                let factors = BFloat16s(register);
                attend::<LANES, NV, N, _, CAREFUL>(attention, task, out, factors)
            }
        }
    }
}

/// Computes a task and writes it to `out`, `[batch * queries, heads * value_dim]`; returns whether
/// the result stands, which it does if it is finite or was computed with care.
///
/// With care, values that are not finite count as 0 in the product of weights and values, and are
/// added to the sums of the queries that see their keys by themselves. Where a result is finite,
/// there was no such value, and both are the same.
///
/// # Safety
/// No other thread computes a task that overlaps.
#[inline(always)]
pub unsafe fn attend<
    'a,
    const LANES: usize,
    const NV: usize,
    N: Number,
    F: Factors<LANES>,
    const CAREFUL: bool,
>(
    attention: &Attention<'a>,
    task: QueryBlock,
    out: &Sink<'_>,
    factors: F,
) -> bool {
    let register = factors.register();
    let (k, v) = (attention.k, attention.v);
    let (head_dim, value_dim) = (attention.queries.q.columns, v.columns);
    let shared = task.of_keys(attention);
    let rows = [head_dim.next_multiple_of(F::TOGETHER), value_dim.next_multiple_of(F::ROWS)];
    let width = task.queries.len().next_multiple_of(COLUMNS);
    let mut room = Aligned::take(&ROOM);
    let [q_t, sums, max, sum, keep, scores, mask, of_k, of_v, finite] = room.split([
        rows[0] * width,
        rows[1] * width,
        width,
        width,
        QUERIES,
        KEYS * QUERIES,
        KEYS * QUERIES,
        F::room(KEYS, head_dim),
        F::room(KEYS, value_dim),
        if CAREFUL { KEYS * value_dim } else { 0 },
    ]);
    sums.fill(0.);
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.);
    let mut states = TaskStates {
        start: task.queries.start,
        rows_of_q: rows[0],
        rows_of_sums: rows[1],
        q_t,
        sums,
        max,
        sum,
    };
    for block in task.blocks() {
        let BlockState { q_t, width, .. } = states.block(&block);
        let of_q = &mut q_t[..head_dim * width];
        scaled_queries(attention, &block, (of_q, width), register);
        factors.in_place(q_t, width, head_dim);
    }

    // No query sees the keys behind.
    let seen = |block: &QueryBlock| attention.seen(block.queries.end - 1);
    let all = seen(&task);
    for start in (0..all).step_by(KEYS) {
        let of_chunk = KEYS.min(all - start);
        let rows_of = |heads: &Heads<'a>| (shared.rows_from(heads, start), heads.strides[2]);
        let (size, plain) = ([of_chunk, value_dim], rows_of(&v));
        let values = if CAREFUL { finite_values(plain, size, F::rounded, finite) } else { plain };
        let chunk = Chunk {
            start,
            keys: factors.keys(rows_of(&k), [of_chunk, head_dim], of_k),
            values: factors.values(values, size, of_v),
            plain,
        };
        for block in task.blocks() {
            let keys = of_chunk.min(seen(&block).saturating_sub(start));
            if keys > 0 {
                let room = [&mut *scores, &mut *mask, &mut *keep];
                let (state, of_chunk) = (states.block(&block), (&chunk, keys));
                add::<LANES, NV, N, F, CAREFUL>(attention, &block, of_chunk, factors, state, room);
            }
        }
    }

    let mut stands = true;
    for block in task.blocks() {
        // SAFETY: blocks of attention are disjoint, and one thread computes each.
        stands &= unsafe { write(attention, &block, states.block(&block), (out, register)) };
    }
    room.keep(&ROOM);
    stands || CAREFUL
}

/// Some keys and their values, as the left sides of products.
struct Chunk<'a> {
    /// The first key.
    start: usize,
    keys: Left<'a>,
    values: Left<'a>,
    /// The values as they are.
    plain: Rows<'a>,
}

/// Takes the first `keys` of a chunk into the softmax of a block of queries, and their values into
/// its sums.
#[inline(always)]
fn add<const LANES: usize, const NV: usize, N: Number, F: Factors<LANES>, const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: &QueryBlock,
    (chunk, keys): (&Chunk<'_>, usize),
    factors: F,
    state: BlockState<'_>,
    [room, mask, keep]: [&mut [f32]; 3],
) {
    let BlockState { width, q_t, sums, max, sum } = state;
    let (start, register) = (chunk.start, factors.register());
    let keep = &mut keep[..width];
    let left = Left { rows: keys, ..chunk.keys };
    let right = Right { b: q_t, c: &mut *room, width, keep: None };
    product::<LANES, NV, F, CAREFUL>(factors, left, right);
    let scores = &mut room[..keys * width];
    if let Some(from) = attention.queries.mask {
        add_mask(from, block, start, (scores, width), mask, register);
    }
    if attention.queries.causal {
        exclude_later(attention, block, start, (scores, width));
    }
    if CAREFUL {
        mask[..keys * width].copy_from_slice(scores);
    }
    softmax::<N>(scores, width, max, sum, keep);
    if CAREFUL {
        weights_of_seen(&mut mask[..keys * width], scores);
    }
    factors.in_place(room, width, keys);
    let left = Left { depth: F::depth(keys), ..chunk.values };
    let right = Right { b: room, c: &mut *sums, width, keep: Some(keep) };
    product::<LANES, NV, F, CAREFUL>(factors, left, right);
    if CAREFUL {
        let (weights, size) = (&mask[..keys * width], [keys, attention.v.columns]);
        add_not_finite(chunk.plain, size, F::rounded, (weights, width), sums);
    }
}

/// The product of factors; with care by small tiles, which give the same bits in less code.
#[inline(always)]
fn product<const LANES: usize, const NV: usize, F: Factors<LANES>, const CAREFUL: bool>(
    factors: F,
    left: Left<'_>,
    right: Right<'_>,
) {
    if CAREFUL {
        factors.product::<1>(left, right);
    } else {
        factors.product::<NV>(left, right);
    }
}

/// Copies values, `[rows, columns]`, with 0 where the factor is not finite.
#[inline(never)]
fn finite_values<'a>(
    (from, stride): Rows<'_>,
    [rows, columns]: [usize; 2],
    factor: fn(f32) -> f32,
    to: &'a mut [f32],
) -> Rows<'a> {
    let to = &mut to[..rows * columns];
    for (row, to) in to.chunks_exact_mut(columns.max(1)).enumerate() {
        for (x, to) in from[row * stride..].iter().zip(to) {
            *to = if factor(*x).is_finite() { *x } else { 0. };
        }
    }
    (to, columns)
}

/// Replaces each score by its weight, or by -1 where it excludes its key.
#[inline(never)]
fn weights_of_seen(scores: &mut [f32], weights: &[f32]) {
    for (score, weight) in scores.iter_mut().zip(weights) {
        *score = if *score == f32::NEG_INFINITY { -1. } else { *weight };
    }
}

/// Adds to the sums, `[value_dim, width]`, the factors of values, `[keys, value_dim]`, that are not
/// finite, times the weights of the queries that see their keys, `[keys, width]`.
#[inline(never)]
fn add_not_finite(
    (values, stride): Rows<'_>,
    [keys, value_dim]: [usize; 2],
    factor: fn(f32) -> f32,
    (weights, width): (&[f32], usize),
    sums: &mut [f32],
) {
    for (key, weights) in weights.chunks_exact(width).take(keys).enumerate() {
        let values = values[key * stride..].iter().take(value_dim);
        for (value, sums) in values.zip(sums.chunks_exact_mut(width)) {
            let value = factor(*value);
            if value.is_finite() {
                continue;
            }
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = if *weight < 0. { *sum } else { *sum + weight * value };
            }
        }
    }
}

/// Writes the queries of a block to the columns of `q_t`, times the scale.
#[inline(always)]
fn scaled_queries<const LANES: usize>(
    attention: &Attention<'_>,
    block: &QueryBlock,
    (q_t, width): (&mut [f32], usize),
    register: impl Register<LANES>,
) {
    let q = block.rows_from(&attention.queries.q, block.queries.start);
    q_t.fill(0.);
    transpose(
        (q, attention.queries.q.strides[2]),
        RowsMut::of_matrix(q_t, width),
        block.queries.len(),
        attention.queries.q.columns,
        register,
    );
    for x in q_t.iter_mut() {
        *x *= attention.queries.scale;
    }
}

/// Divides the sums by the sums of the weights and writes them to `out`; returns whether all are
/// finite.
///
/// # Safety
/// No other thread computes a block that overlaps.
#[inline(always)]
unsafe fn write<const LANES: usize>(
    attention: &Attention<'_>,
    block: &QueryBlock,
    state: BlockState<'_>,
    (out, register): (&Sink<'_>, impl Register<LANES>),
) -> bool {
    let BlockState { width, sums, sum, .. } = state;
    let (height, value_dim) = (block.queries.len(), attention.v.columns);
    let sums = &mut sums[..value_dim * width];
    for sum in sum.iter_mut() {
        // No key had a part in a sum that is zero.
        *sum = if *sum == 0. { 0. } else { 1. / *sum };
    }
    for column in (0..width).step_by(COLUMNS) {
        let factors = block_at(sum, column);
        for row in sums.chunks_exact_mut(width) {
            for (x, factor) in row[column..column + COLUMNS].iter_mut().zip(factors) {
                // A sum of -0.0 becomes 0.0: an excluded value may have given the zero its sign.
                *x = fma(*x, factor, 0.);
            }
        }
    }
    // Compared by their bits: values that are not finite have the greatest. Columns behind the last
    // query may hold anything.
    let infinity = f32::INFINITY.to_bits();
    let greatest = |xs: &[f32]| xs.iter().fold(0, |max, x| x.abs().to_bits().max(max));
    let mut rows = sums.chunks_exact(width);
    let finite = greatest(sums) < infinity || rows.all(|row| greatest(&row[..height]) < infinity);
    let first = block.batch * attention.queries.q.rows + block.queries.start;
    let columns = block.head * value_dim..(block.head + 1) * value_dim;
    // SAFETY: blocks of attention are disjoint, and one thread computes each.
    let rows = unsafe { out.rows(first..first + height, columns) };
    transpose((sums, width), rows, value_dim, height, register);
    finite
}

/// Adds the mask of the keys from `start` on to their scores, `[keys, width]`; `room` is for as
/// many. Minus infinity excludes, whatever the score is.
#[inline(always)]
fn add_mask<const LANES: usize>(
    mask: Heads<'_>,
    block: &QueryBlock,
    start: usize,
    (scores, width): (&mut [f32], usize),
    room: &mut [f32],
    register: impl Register<LANES>,
) {
    let values = &block.rows_from(&mask, block.queries.start)[start..];
    let stride = mask.strides[2];
    if stride == 0 {
        // One mask for all queries. Most keys are not padding: a softmax does not tell 0.0 from
        // -0.0.
        let some = |(_, add): &(_, &f32)| **add != 0.;
        for (scores, add) in scores.chunks_exact_mut(width).zip(values).filter(some) {
            if *add == f32::NEG_INFINITY {
                scores.fill(f32::NEG_INFINITY);
                continue;
            }
            for score in scores {
                *score += add;
            }
        }
        return;
    }
    let keys = scores.len() / width;
    let height = block.queries.len();
    transpose((values, stride), RowsMut::of_matrix(room, width), height, keys, register);
    queries::add_mask(scores, room);
}

/// Excludes each query's later keys from the scores of the keys from `start` on, `[keys, width]`.
#[inline(always)]
fn exclude_later(
    attention: &Attention<'_>,
    block: &QueryBlock,
    start: usize,
    (scores, width): (&mut [f32], usize),
) {
    let all = attention.seen(block.queries.start).saturating_sub(start);
    let rows = scores.chunks_exact_mut(width).enumerate().skip(all);
    for (key, scores) in rows {
        for (query, score) in block.queries.clone().zip(scores) {
            if attention.seen(query) <= start + key {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}

/// Takes one more chunk of scores, `[keys, width]`, into each column's softmax: they become
/// `e^(score - max)`, and `keep` is what the sums so far are to be multiplied by.
#[inline(always)]
fn softmax<N: Number>(
    scores: &mut [f32],
    width: usize,
    max: &mut [f32],
    sum: &mut [f32],
    keep: &mut [f32],
) {
    for column in (0..width).step_by(COLUMNS) {
        let old = block_at(max, column);
        let mut new = old;
        for row in scores.chunks_exact(width) {
            new = later(new, block_at(row, column));
        }
        // Where all is excluded so far: e^(-inf - 0) is 0, e^(-inf + inf) were NaN.
        let origin = new.map(|max| if max == f32::NEG_INFINITY { 0. } else { max });
        let mut total = [0f32; COLUMNS];
        for row in scores.chunks_exact_mut(width) {
            let exps = exps_below::<N, _>(block_at(row, column), origin);
            for (total, exp) in total.iter_mut().zip(exps) {
                *total += exp;
            }
            row[column..column + COLUMNS].copy_from_slice(&exps);
        }
        let factors = exps_below::<N, _>(old, origin);
        for (sum, (total, factor)) in sum[column..].iter_mut().zip(total.iter().zip(factors)) {
            *sum = fma(*sum, factor, *total);
        }
        max[column..column + COLUMNS].copy_from_slice(&new);
        keep[column..column + COLUMNS].copy_from_slice(&factors);
    }
}

type Columns = [f32; COLUMNS];

#[inline(always)]
fn block_at(row: &[f32], column: usize) -> Columns {
    // Rows have whole blocks. A block that is copied from a slice goes by way of the stack.
    let block = row[column..].first_chunk().copied();
    block.unwrap_or([0.; COLUMNS])
}

/// The max of each column; a NaN is left to [`exps_below`].
#[inline(always)]
fn later(mut max: Columns, scores: Columns) -> Columns {
    for (max, score) in max.iter_mut().zip(scores) {
        *max = if score > *max { score } else { *max };
    }
    max
}
