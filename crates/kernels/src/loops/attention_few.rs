//! Attention of a few queries, as of a decoder's next token: keys and values are the lanes.
//!
//! ```text
//! for each chunk of 128 keys
//!   k^T                                        [head_dim, keys], in L1
//!   for each query
//!     s = q k^T + mask                         [keys]
//!     new maximum and sum; s = e^(s - maximum)
//!     o = o e^(old maximum - new) + s v        [value_dim]
//! out = o / sum
//! ```
//!
//! Every sum has the order that it has in [`attention`](super::attention), where a few queries
//! would leave most lanes empty, and so the same bits.

use std::cell::Cell;

use super::buffer::{Aligned, RowsMut};
use super::float_tile::{COLUMNS, Left, Right, row_by, transpose};
use super::float_vector::Register;
use super::norm::exps_below;
use super::number::{Number, fma};
use super::product::Sink;
use super::queries::{Attention, KEYS, QueryBlock, add_mask};

/// The most queries: with more, transposing keys costs less than empty lanes.
pub const QUERIES: usize = 4;

thread_local! {
    static ROOM: Cell<Aligned> = Cell::default();
}

/// The softmax of a query so far.
#[derive(Clone, Copy)]
struct SoftmaxState {
    max: f32,
    sum: f32,
}

/// Computes a task in f32 and writes it to `out`, as
/// [`attention::attend`](super::attention::attend) without care.
///
/// # Safety
/// No other thread computes a task that overlaps.
#[inline(always)]
pub unsafe fn attend<const LANES: usize, N: Number, R: Register<LANES>>(
    attention: &Attention<'_>,
    task: &QueryBlock,
    out: &Sink<'_>,
    register: R,
) -> bool {
    let (k, v) = (attention.k, attention.v);
    let (head_dim, value_dim) = (attention.queries.q.columns, v.columns);
    let shared = task.head / (attention.queries.heads / attention.queries.kv_heads);
    let width = value_dim.next_multiple_of(COLUMNS);
    let count = task.queries.len();
    let in_place = v.strides[2] == width && value_dim == width;
    let mut room = Aligned::take(&ROOM);
    let [queries, keys_t, copied, scores, keep, outs] = room.split([
        count * head_dim,
        head_dim * KEYS,
        if in_place { 0 } else { KEYS * width },
        KEYS,
        width,
        count * width,
    ]);
    scaled(attention, task, queries);
    keys_t.fill(0.);
    copied.fill(0.);
    outs.fill(0.);
    let mut softmax = [SoftmaxState { max: f32::NEG_INFINITY, sum: 0. }; QUERIES];

    let all = attention.seen(task.queries.end - 1);
    for start in (0..all).step_by(KEYS) {
        let of_chunk = KEYS.min(all - start);
        let from = (k.rows_from(task.batch, shared, start), k.strides[2]);
        let rows = RowsMut::of_matrix(keys_t, KEYS);
        transpose(from, rows, of_chunk, head_dim, register);
        let mut values = v.rows_from(task.batch, shared, start);
        if !in_place {
            copy((values, v.strides[2]), [of_chunk, value_dim], (copied, width));
            values = copied;
        }
        for (index, query) in task.queries.clone().enumerate() {
            let keys = of_chunk.min(attention.seen(query).saturating_sub(start));
            if keys == 0 {
                continue;
            }
            let right = Right { b: keys_t, c: scores, width: KEYS, keep: None };
            let left = Left::of_rows(&queries[index * head_dim..][..head_dim], 1, head_dim);
            row_by::<LANES>(left, right, register);
            if let Some(mask) = attention.queries.mask {
                let mask = mask.rows_from(task.batch, task.head, query);
                add_mask(scores, &mask[start..][..keys]);
            }
            keep.fill(weights::<N>(scores, keys, &mut softmax[index]));
            let right = Right {
                b: values,
                c: &mut outs[index * width..][..width],
                width,
                keep: Some(keep),
            };
            row_by::<LANES>(Left::of_rows(&scores[..keys], 1, keys), right, register);
        }
    }

    // SAFETY: the contract is the same.
    let stands = unsafe { write(attention, task, &softmax, (outs, width), out) };
    room.keep(&ROOM);
    stands
}

/// Copies the queries of a task, times the scale.
#[inline(always)]
fn scaled(attention: &Attention<'_>, task: &QueryBlock, queries: &mut [f32]) {
    let rows = queries.chunks_exact_mut(attention.queries.q.columns.max(1));
    for (query, to) in task.queries.clone().zip(rows) {
        let from = attention.queries.q.rows_from(task.batch, task.head, query);
        for (to, x) in to.iter_mut().zip(from) {
            *to = x * attention.queries.scale;
        }
    }
}

/// Copies rows to rows of `width`.
#[inline(always)]
fn copy(
    (from, stride): (&[f32], usize),
    [rows, columns]: [usize; 2],
    (to, width): (&mut [f32], usize),
) {
    for (row, to) in to.chunks_exact_mut(width).take(rows).enumerate() {
        to[..columns].copy_from_slice(&from[row * stride..][..columns]);
    }
}

/// Divides the sums of the values by the sums of the weights and writes them to `out`; returns
/// whether all are finite.
///
/// # Safety
/// No other thread computes a task that overlaps.
#[inline(always)]
unsafe fn write(
    attention: &Attention<'_>,
    task: &QueryBlock,
    softmax: &[SoftmaxState],
    (outs, width): (&[f32], usize),
    out: &Sink<'_>,
) -> bool {
    let (count, value_dim) = (task.queries.len(), attention.v.columns);
    let mut stands = true;
    let first = task.batch * attention.queries.q.rows + task.queries.start;
    let columns = task.head * value_dim..(task.head + 1) * value_dim;
    // SAFETY: blocks of attention are disjoint, and one thread computes each.
    let mut rows = unsafe { out.rows(first..first + count, columns) };
    for index in 0..count {
        let sum = softmax[index].sum;
        // No key had a part in a sum that is zero.
        let factor = if sum == 0. { 0. } else { 1. / sum };
        // SAFETY: there are as many rows as queries.
        let to = unsafe { rows.row(index) };
        for (to, x) in to.iter_mut().zip(&outs[index * width..][..value_dim]) {
            // A sum of -0.0 becomes 0.0: an excluded value may have given the zero its sign.
            let x = fma(*x, factor, 0.);
            stands &= x.is_finite();
            to.write(x);
        }
    }
    stands
}

/// Takes the scores of one more chunk of keys into a query's softmax: they become
/// `e^(score - max)`. Returns the factor of the sums so far.
#[inline(always)]
fn weights<N: Number>(scores: &mut [f32], keys: usize, sums: &mut SoftmaxState) -> f32 {
    let (blocks, _) = scores.as_chunks_mut::<COLUMNS>();
    let blocks = &mut blocks[..keys.div_ceil(COLUMNS)];
    blocks.as_flattened_mut()[keys..].fill(f32::NEG_INFINITY);
    let mut lanes = [sums.max; COLUMNS];
    for block in &*blocks {
        for (max, score) in lanes.iter_mut().zip(block) {
            *max = if *score > *max { *score } else { *max };
        }
    }
    let new = lanes.into_iter().fold(sums.max, |max, x| if x > max { x } else { max });
    // Where all is excluded so far: e^(-inf - 0) is 0, e^(-inf + inf) were NaN.
    let origin = if new == f32::NEG_INFINITY { 0. } else { new };
    let mut total = 0.;
    for block in blocks {
        *block = exps_below::<N, _>(*block, [origin; COLUMNS]);
        for exp in &*block {
            total += exp;
        }
    }
    let [factor, ..] = exps_below::<N, _>([sums.max; COLUMNS], [origin; COLUMNS]);
    sums.sum = fma(sums.sum, factor, total);
    sums.max = new;
    factor
}
