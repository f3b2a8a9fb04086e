//! Products of f32 weights in the order of a checkpoint, `[out, in]`.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::linear::SERIAL_MACS;
use crate::arch::op::Activate;
use crate::isa::Isa;
use crate::loops::activation::Activation;
use crate::loops::buffer::{self, Aligned, RowsMut, as_uninit};
use crate::loops::float_row::{SUMS, part_of};
use crate::loops::float_tile::{Left, Right};
use crate::loops::product::Sink;
use crate::sizes;
use crate::threads::Threads;

/// The channels of a part: the columns of a tile.
const CHANNELS: usize = 64;

/// The most rows of a block, which read columns from L1.
const ROWS: usize = 192;

/// The most rows that multiply weights in place: more are faster with weights as columns.
const FEW: usize = 4;

thread_local! {
    static ROOM: Cell<Aligned> = Cell::default();
}

/// The operands of a product of floats.
#[derive(Clone, Copy)]
pub struct FloatProduct<'a> {
    /// Rows, `[m, k]`.
    pub lhs: &'a [f32],
    /// The number of rows.
    pub m: usize,
    /// The weight, `[n, k]`.
    pub rhs: &'a [f32],
    /// Added to each row, `[n]`.
    pub bias: &'a [f32],
    /// Applied to each result.
    pub activation: Option<Activation>,
    /// Whether each fma rounds once, so that all instruction sets have the same bits: slow on those
    /// without one.
    pub is_exact: bool,
}

/// The product, `[m, n]`, as [`reference::linear_f32`](crate::reference::linear_f32): a row has the
/// same bits among any other rows.
///
/// # Panics
/// If a slice does not have its length.
pub fn linear_f32(isa: Isa, product: FloatProduct<'_>) -> Vec<f32> {
    let len = sizes::length("out, [m, n]", &[product.m, product.bias.len()]);
    // SAFETY: every element is written.
    unsafe { buffer::filled(len, |out| write(isa, product, out)) }
}

/// [`linear_f32`] into a buffer.
///
/// # Panics
/// If a slice does not have its length, or `out` not `m * n` elements.
pub fn linear_f32_into(isa: Isa, product: FloatProduct<'_>, out: &mut [f32]) {
    write(isa, product, as_uninit(out));
}

/// Writes every element of `out`.
fn write(isa: Isa, product: FloatProduct<'_>, out: &mut [MaybeUninit<f32>]) {
    let FloatProduct { lhs, m, rhs, bias, .. } = product;
    let n = bias.len();
    sizes::check("out, [m, n]", out, &[m, n]);
    if out.is_empty() {
        return;
    }
    let k = rhs.len() / n;
    sizes::check("lhs, [m, k]", lhs, &[m, k]);
    sizes::check("rhs, [n, k]", rhs, &[n, k]);
    let work = m.saturating_mul(n).saturating_mul(k);
    let threads = Threads::of_caller().for_multiply_adds(work);
    let count = threads.for_work(work, SERIAL_MACS);
    let panels = n.div_ceil(CHANNELS);
    // Blocks of rows for threads without channels; each block needs the columns again.
    let blocks = match count {
        1 => 1,
        count => (2 * count).div_ceil(panels).min(m.div_ceil(ROWS)),
    };
    let part = part_of(k);
    let offsets: Vec<usize> = (0..part / SUMS).map(|d| d * CHANNELS).collect();
    let parts =
        Parts { isa, product, sizes: [k, part], out: Sink::channels(out, n), offsets: &offsets };
    threads.spread(count, panels * blocks, |index| {
        let (first, block) = (index / blocks * CHANNELS, index % blocks);
        let channels = first..n.min(first + CHANNELS);
        let rows = m * block / blocks..m * (block + 1) / blocks;
        // SAFETY: parts do not overlap, and each index comes once.
        unsafe {
            match (m <= FEW, product.is_exact) {
                (true, true) => parts.in_place::<true>(rows, channels),
                (true, false) => parts.in_place::<false>(rows, channels),
                (false, true) => parts.by_columns::<true>(rows, channels),
                (false, false) => parts.by_columns::<false>(rows, channels),
            }
        }
    });
}

/// The parts of a product: some channels of some rows each.
struct Parts<'a> {
    isa: Isa,
    product: FloatProduct<'a>,
    /// Inputs, in all and of a part of a sum.
    sizes: [usize; 2],
    out: Sink<'a>,
    /// The offsets of columns.
    offsets: &'a [usize],
}

impl Parts<'_> {
    /// Computes a part with the weights where they are.
    ///
    /// # Safety
    /// No other thread computes a part that overlaps.
    unsafe fn in_place<const EXACT: bool>(&self, rows: Range<usize>, channels: Range<usize>) {
        let FloatProduct { lhs, rhs, .. } = self.product;
        let [k, _] = self.sizes;
        let weights = &rhs[channels.start * k..channels.end * k];
        let mut results = [0.; CHANNELS];
        for row in rows {
            let sums = &mut results[..channels.len()];
            self.isa.multiply_row::<EXACT>(&lhs[row * k..][..k], weights, sums);
            // SAFETY: the contract is the same.
            unsafe { self.write(row, channels.clone(), &mut results) };
        }
    }

    /// Computes a part with the weights as columns.
    ///
    /// # Safety
    /// No other thread computes a part that overlaps.
    unsafe fn by_columns<const EXACT: bool>(&self, rows: Range<usize>, channels: Range<usize>) {
        let FloatProduct { lhs, rhs, .. } = self.product;
        let [k, part] = self.sizes;
        let steps = k.div_ceil(part);
        let blocks = rows.len().div_ceil(ROWS);
        // The columns of all inputs, where a second block of rows reads them again.
        let kept = if blocks > 1 { steps } else { 1 };
        let of_step = part * CHANNELS;
        let mut room = Aligned::take(&ROOM);
        let [columns, results, ones] = room.split([kept * of_step, ROWS * CHANNELS, CHANNELS]);
        ones.fill(1.);
        if channels.len() < CHANNELS {
            columns.fill(0.);
        }
        for block in 0..blocks {
            let [first, end] = [block, block + 1].map(|it| rows.start + rows.len() * it / blocks);
            let results = &mut results[..(end - first) * CHANNELS];
            if steps == 0 {
                results.fill(-0.);
            }
            for step in 0..steps {
                let start = step * part;
                let size = part.min(k - start);
                // The columns of a sum are one behind the other.
                let of_sum = size.div_ceil(SUMS) * CHANNELS;
                let columns = &mut columns[step % kept * of_step..][..SUMS * of_sum];
                if block == 0 || kept == 1 {
                    let from = &rhs[channels.start * k + start..];
                    let to = RowsMut::of_sums(columns, CHANNELS);
                    self.isa.transpose((from, k), to, [channels.len(), size]);
                }
                for sum in 0..SUMS.min(size) {
                    let depth = (size - sum).div_ceil(SUMS);
                    let left = Left {
                        values: &lhs[first * k + start + sum..],
                        row: k,
                        step: SUMS,
                        rows: end - first,
                        depth,
                    };
                    let right = Right {
                        b: &columns[sum * of_sum..],
                        c: results,
                        width: CHANNELS,
                        keep: (step > 0 || sum > 0).then_some(ones),
                    };
                    self.isa.multiply_shifted::<EXACT>(left, right, &self.offsets[..depth]);
                }
            }
            // SAFETY: the contract is the same.
            unsafe { self.write(first, channels.clone(), results) };
        }
        room.keep(&ROOM);
    }

    /// Writes the results of some channels of rows from `row` on, of sums `[rows, CHANNELS]`.
    ///
    /// # Safety
    /// No other thread computes a part that overlaps.
    unsafe fn write(&self, row: usize, channels: Range<usize>, sums: &mut [f32]) {
        let FloatProduct { bias, activation, .. } = self.product;
        for sums in sums.chunks_exact_mut(CHANNELS) {
            for (sum, bias) in sums.iter_mut().zip(&bias[channels.clone()]) {
                *sum += bias;
            }
        }
        if let Some(activation) = activation {
            self.isa.run(Activate { activation, xs: sums });
        }
        let rows = row..row + sums.len() / CHANNELS;
        // SAFETY: by the contract these rows are this thread's, and as many.
        unsafe {
            let mut rows = self.out.rows(rows, channels.clone());
            for (row, sums) in sums.chunks_exact_mut(CHANNELS).enumerate() {
                rows.row(row).copy_from_slice(as_uninit(&mut sums[..channels.len()]));
            }
        }
    }
}
