//! The operands of a product: rows of the left side, packed weights, an output in one of several
//! layouts, and the parts that threads compute.

use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::activation::{Activation, BLOCK};
use super::buffer::RowsMut;
use crate::packed::{Packed, Panel};

/// Two bfloat16, in bytes: codes of int8 products take the same room.
pub type Pair = [[u8; 2]; 2];

/// The activations of a row that one step of a product reads: four u8 codes, one f32, two bfloat16
/// or a block of i8 codes.
pub trait Group: Copy + Default + Send + Sync {
    /// Whether sums are exact, so that products may be added in any order.
    const EXACT: bool = false;
    /// Groups whose sum begins with 0 and is added to the sum of the groups before, in f32; 0 where
    /// products are added one after another.
    const BLOCK: usize = 0;

    /// The group of inputs that an [extra](super::split) has before its codes.
    #[inline(always)]
    fn of_extra(self) -> usize {
        0
    }
}

impl Group for [u8; 4] {
    const EXACT: bool = true;

    #[inline(always)]
    fn of_extra(self) -> usize {
        u32::from_le_bytes(self) as usize
    }
}

impl Group for f32 {}

impl Group for Pair {
    const BLOCK: usize = 16;
}

impl Group for [Pair; 2] {
    const BLOCK: usize = 8;
}

/// The bytes of a pair, in the order of memory.
#[allow(dead_code, reason = "some instruction sets take a pair apart")]
#[inline(always)]
pub fn bytes([[a, b], [c, d]]: Pair) -> [u8; 4] {
    [a, b, c, d]
}

/// Parameters of a quantized row of the left side.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// NaN for a row that is not finite.
    pub scale: f32,
    /// The code that stands for 0.0.
    pub zero_point: i32,
    /// The sum of its codes, where the weights have zero points or codes are split.
    pub sum: i32,
    /// How many [extras](super::split) it has.
    pub extras: u32,
}

impl Row {
    /// A row of floats or of bfloat16, or of codes with zero point 0.
    pub const PLAIN: Self = Self { scale: 1., zero_point: 0, sum: 0, extras: 0 };
}

/// Elements of an output in the second-level caches of two cores: 2 MiB.
const L2: usize = 1 << 19;

/// Elements of an output beyond which it is written past the caches: 4 MiB. A smaller one stays
/// there for its reader.
#[cfg(target_arch = "x86_64")]
const STREAMED: usize = 1 << 20;

/// The output of a product; several threads write different parts of it.
#[derive(Clone, Copy)]
pub struct Sink<'a> {
    start: *mut MaybeUninit<f32>,
    rows: usize,
    /// The row of the output that is row 0 of a part.
    first: usize,
    columns: usize,
    /// Added to the column of a channel, modulo 2^64.
    moved: usize,
    /// Whether columns include each gate's padding, so that no register is filled in part.
    padded: bool,
    /// Whether it is stored panel after panel, in place of row after row.
    by_panels: bool,
    _out: PhantomData<&'a mut [MaybeUninit<f32>]>,
}

// SAFETY: a shared `Sink` is written through `rows` and `written` alone, by whose contracts no two
// parts that live at once overlap.
unsafe impl Sync for Sink<'_> {}

impl<'a> Sink<'a> {
    /// Row after row of `columns` channels: `[rows, columns]`.
    pub fn channels(out: &'a mut [MaybeUninit<f32>], columns: usize) -> Self {
        Self {
            rows: out.len().checked_div(columns).unwrap_or(0),
            start: out.as_mut_ptr(),
            first: 0,
            columns,
            moved: 0,
            padded: false,
            by_panels: false,
            _out: PhantomData,
        }
    }

    /// [`channels`](Self::channels) whose `columns` include each gate's padding.
    pub fn padded(out: &'a mut [MaybeUninit<f32>], columns: usize) -> Self {
        Self { padded: true, ..Self::channels(out, columns) }
    }

    /// Panel after panel of padded channels: `[rows, width]` each, of `columns` in all.
    pub fn panels(out: &'a mut [MaybeUninit<f32>], columns: usize) -> Self {
        Self { by_panels: true, ..Self::padded(out, columns) }
    }

    /// This output, with its rows counted from `first` on.
    #[allow(dead_code, reason = "most instruction sets multiply bytes")]
    #[inline(always)]
    pub fn starting_at(self, first: usize) -> Self {
        let first = self.whole(first..self.rows - self.first).start;
        Self { first, ..self }
    }

    /// This output, with the channels from `channel` on in the columns from `column` on.
    #[inline(always)]
    pub fn moved(self, channel: usize, column: usize) -> Self {
        let moved = column.wrapping_sub(channel);
        Self { moved, ..self }
    }

    /// The rows of the whole output.
    #[inline(always)]
    fn whole(self, rows: Range<usize>) -> Range<usize> {
        assert!(rows.start <= rows.end && rows.end <= self.rows - self.first);
        self.first + rows.start..self.first + rows.end
    }

    /// The columns of the whole output.
    pub fn width(self) -> usize {
        self.columns
    }

    /// The columns of a panel.
    #[inline(always)]
    pub fn columns(self, panel: Panel<'_>) -> Range<usize> {
        let (start, width) = if self.padded {
            (panel.padded_start, panel.sums.len())
        } else {
            (panel.start, panel.channels)
        };
        let start = start.wrapping_add(self.moved);
        start..start.wrapping_add(width)
    }

    /// The columns of a panel in several rows, adjacent or not.
    ///
    /// # Safety
    /// No other part that overlaps this one is alive.
    #[inline(always)]
    pub unsafe fn rows(self, rows: Range<usize>, columns: Range<usize>) -> RowsMut<'a> {
        let count = rows.len();
        let rows = self.whole(rows);
        assert!(columns.start <= columns.end && columns.end <= self.columns);
        let (first, stride) = if self.by_panels {
            (columns.start * self.rows, columns.len())
        } else {
            (columns.start, self.columns)
        };
        // SAFETY: by the assertions these elements are within those that `start` was made from, as
        // in `written`; by the contract nothing aliases them.
        unsafe {
            let start = self.start.add(first + rows.start * stride);
            RowsMut::new(start, [count, columns.len()], stride)
        }
    }

    /// Whether the output is more than two cores' second-level caches hold.
    #[inline(always)]
    pub fn exceeds_l2(self) -> bool {
        self.rows * self.columns > L2
    }

    /// Whether the output is better written past the caches, which cannot hold it.
    #[cfg(target_arch = "x86_64")]
    pub fn exceeds_caches(self) -> bool {
        self.rows * self.columns > STREAMED
    }

    /// Columns that have been written, of one row or, panel by panel, of rows of one panel.
    ///
    /// # Safety
    /// The columns have been written, and no other part that overlaps this one is alive.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn written(self, rows: Range<usize>, columns: Range<usize>) -> &'a mut [f32] {
        let rows = self.whole(rows);
        assert!(columns.start <= columns.end && columns.end <= self.columns);
        assert!(self.by_panels || rows.len() == 1);
        let start = if self.by_panels {
            columns.start * self.rows + rows.start * columns.len()
        } else {
            rows.start * self.columns + columns.start
        };
        // SAFETY: by the assertions the part lies within the `rows * columns` elements that `start`
        // was made from and that are borrowed for `'a`: it ends at `rows.end * columns` of a row,
        // and at `columns.end * rows` of a panel, or before. By the contract nothing aliases it,
        // and a written `MaybeUninit<f32>` is an f32.
        unsafe {
            let start = self.start.add(start).cast();
            std::slice::from_raw_parts_mut(start, rows.len() * columns.len())
        }
    }
}

/// A part of a product: `rows` of the left side by `panels` of the right side.
#[derive(Clone)]
pub struct Part {
    pub rows: Range<usize>,
    pub panels: Range<usize>,
    /// How often a part that is computed again and again was computed before. One row then
    /// traverses a few panels back and forth, from the weights still in L1 to those in L2.
    pub step: Option<usize>,
}

/// Rows of a convolution: windows of positions, each of which is a row of codes. A position is
/// multiplied with the weights of its tap, a gate of the packed weights.
#[derive(Clone, Copy)]
pub struct Windows<'a> {
    /// The first position of each window.
    pub starts: &'a [usize],
    /// The position of each tap, counted from the first of its window, in ascending order.
    pub taps: &'a [usize],
    /// The position that is row 0 of the activations.
    pub first: usize,
    /// Whether the sums of all taps are one sum: positions and taps then share their scales.
    pub exact: bool,
}

impl Windows<'_> {
    /// The positions that some windows read.
    #[allow(dead_code, reason = "most instruction sets read codes as they are")]
    pub fn positions(&self, windows: Range<usize>) -> Range<usize> {
        let starts = &self.starts[windows];
        let (first, last) = (starts.iter().min(), starts.iter().max());
        let reach = self.taps.last().map_or(0, |tap| tap + 1);
        let [first, last] = [first, last].map(|start| start.map_or(0, |start| start - self.first));
        first..last + reach
    }
}

/// A product of activations, `[m, k]`, and weights, `[n, k]`; each task computes a part of it.
///
/// Its groups are floats, for float16 weights or on their way to other groups, codes for int8
/// weights, or pairs for bfloat16 weights.
#[derive(Clone, Copy)]
pub struct Product<'a, G> {
    /// Rows of activations.
    pub m: usize,
    /// The activations, row by row.
    pub lhs: &'a [G],
    /// The parameters of each row; empty beside floats.
    pub rows: &'a [Row],
    /// The weights.
    pub rhs: &'a Packed,
    /// The number of groups of inputs that are multiplied: all groups of the weights, or the first.
    pub groups: usize,
    /// Applied to every element of the result.
    pub activation: Option<Activation>,
    /// The rows of the result; `None` if they are the rows of the activations.
    pub windows: Option<Windows<'a>>,
}

impl<'a> Product<'a, f32> {
    /// The product of `rows` rows of `xs`.
    pub fn new(
        xs: &'a [f32],
        rows: usize,
        rhs: &'a Packed,
        activation: Option<Activation>,
    ) -> Self {
        Self { activation, ..Self::of_groups(rows, xs, &[], rhs) }
    }
}

impl<'a> Product<'a, Pair> {
    /// This product in groups of two pairs, where a row has an even number of them.
    #[allow(dead_code, reason = "most instruction sets add a pair's products to two sums")]
    #[inline(always)]
    pub fn by_twos(self) -> Product<'a, [Pair; 2]> {
        Product { groups: self.groups / 2, ..self.with(self.m, self.lhs.as_chunks().0, self.rows) }
    }
}

impl<'a, G> Product<'a, G> {
    /// The product of `m` rows of groups.
    #[inline(always)]
    pub fn of_groups(m: usize, lhs: &'a [G], rows: &'a [Row], rhs: &'a Packed) -> Self {
        Self { m, lhs, rows, rhs, groups: rhs.groups(), activation: None, windows: None }
    }

    /// The product of other activations, `m` rows.
    #[inline(always)]
    pub fn with<H>(self, m: usize, lhs: &'a [H], rows: &'a [Row]) -> Product<'a, H> {
        let Self { groups, activation, windows, .. } = self;
        Product { groups, activation, windows, ..Product::of_groups(m, lhs, rows, self.rhs) }
    }

    /// The groups of a row.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [G] {
        &self.lhs[row * self.groups..][..self.groups]
    }

    /// The parameters of a row.
    #[inline(always)]
    pub fn parameters(&self, row: usize) -> &'a Row {
        self.rows.get(row).unwrap_or(&Row::PLAIN)
    }

    /// Calls `apply` with the activation function, if there is one, and rows of a panel's
    /// channels: once a panel, while the sums are in L1.
    ///
    /// # Safety
    /// They have been written, and no other thread reads or writes them.
    #[inline(always)]
    pub unsafe fn activate(
        &self,
        out: &Sink<'_>,
        panel: Panel<'_>,
        rows: &Range<usize>,
        apply: impl Fn(Activation, &mut [f32]),
    ) {
        let Some(activation) = self.activation else {
            return;
        };
        let columns = out.columns(panel);
        // SAFETY: the row is written, and in the part that this thread alone computes.
        let written = |row| unsafe { out.written(row..row + 1, columns.clone()) };
        if columns.len() >= BLOCK {
            rows.clone().for_each(|row| apply(activation, written(row)));
            return;
        }
        // A separate block would be filled up for each row.
        let mut together = [0f32; 16 * BLOCK];
        for first in rows.clone().step_by(16) {
            let rows = first..rows.end.min(first + 16);
            let used = &mut together[..rows.len() * columns.len()];
            for (row, xs) in rows.clone().zip(used.chunks_exact_mut(columns.len())) {
                copy(written(row), xs);
            }
            apply(activation, used);
            for (row, xs) in rows.zip(used.chunks_exact(columns.len())) {
                copy(xs, written(row));
            }
        }
    }
}

/// Rows with two bases, the second from the fourth row on: rows that lie within two strides
/// of a base need one address in the loop. From a single base the compiler takes five more
/// instructions, and a register too many.
#[inline(always)]
pub fn two_bases<'a, G, const MR: usize>(
    rows: [&'a [G]; MR],
    all: &'a [G],
    first: usize,
    [groups, stride]: [usize; 2],
) -> [&'a [G]; MR] {
    const NEAR: usize = 3;
    if MR <= NEAR {
        return rows;
    }
    let far = black_box(&all[(first + NEAR) * stride..][..(MR - NEAR - 1) * stride + groups]);
    std::array::from_fn(|r| if r < NEAR { rows[r] } else { &far[(r - NEAR) * stride..][..groups] })
}

/// Copies elements; half a block, the usual width of a narrow panel, without a call.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    const HALF: usize = BLOCK / 2;
    match (from.as_array::<HALF>(), to.as_mut_array::<HALF>()) {
        (Some(from), Some(to)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}
