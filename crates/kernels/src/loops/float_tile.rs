//! A product of small f32 matrices: register tiles as in `tile`, for attention.
//!
//! ```text
//! for each MR rows of A
//!   for each NV registers of columns         MR * NV sums in registers
//!     for each element of depth              NV loads of B, MR broadcasts of A, MR * NV fma
//!     store, or add to the old result times a factor of each column
//! ```
//!
//! A is read element by element in place, transposed or not; only B is `[depth, width]` as
//! a whole. Each sum is one chain of fma in the order of depth, so that tile sizes do not show.

use std::ops::Range;

use super::buffer::RowsMut;
use super::float_vector::{Register, SQUARE};

/// Columns of B and C come in multiples of this.
pub const COLUMNS: usize = 16;

/// The left side: element `[r, d]` is `values[r * row + d * step]`.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    pub values: &'a [f32],
    pub row: usize,
    pub step: usize,
    pub rows: usize,
    pub depth: usize,
}

impl<'a> Left<'a> {
    /// Rows of `depth` elements, one behind the other.
    #[inline(always)]
    pub fn of_rows(values: &'a [f32], rows: usize, depth: usize) -> Self {
        Self { values, row: depth, step: 1, rows, depth }
    }
}

/// The right side and the result: `b` is `[depth, width]`, `c` `[rows, width]`.
pub struct Right<'a> {
    pub b: &'a [f32],
    pub c: &'a mut [f32],
    pub width: usize,
    /// Factors of the columns of `c` for what it holds already; `None` overwrites that.
    pub keep: Option<&'a [f32]>,
}

impl Right<'_> {
    /// The same sides, for other columns.
    fn again(&mut self) -> Right<'_> {
        Right { b: self.b, c: self.c, width: self.width, keep: self.keep }
    }
}

/// The place of each row of a right side, one behind the other.
///
/// # Panics
/// If the right side has fewer than the left side's depth.
#[inline(always)]
fn in_order(left: Left<'_>, right: &Right<'_>) -> impl Fn(usize) -> usize + Copy + use<> {
    let width = right.width;
    assert!(right.b.len() >= left.depth * width);
    move |d| d * width
}

/// `c = a b`, or `c = c keep + a b`, with at most `NV` registers of columns at a time.
#[inline(always)]
pub fn product<const LANES: usize, const NV: usize>(
    left: Left<'_>,
    right: Right<'_>,
    register: impl Register<LANES>,
) {
    let (start, all) = (in_order(left, &right), 0..right.width);
    // Enough rows for more sums than the latency of an fma.
    if NV * LANES <= COLUMNS {
        return columns::<LANES, NV, 6, 5, false>(left, (right, all), start, register);
    }
    match right.width / LANES {
        1 => columns::<LANES, 1, 8, 7, false>(left, (right, all), start, register),
        2 => columns::<LANES, 2, 8, 7, false>(left, (right, all), start, register),
        3 => columns::<LANES, 3, 8, 7, false>(left, (right, all), start, register),
        _ => columns::<LANES, 4, 6, 5, false>(left, (right, all), start, register),
    }
}

/// [`product`] of a left side of one row.
#[inline(always)]
pub fn row_by<const LANES: usize>(
    left: Left<'_>,
    right: Right<'_>,
    register: impl Register<LANES>,
) {
    let (start, all) = (in_order(left, &right), 0..right.width);
    // As many sums as hide the latency of an fma.
    match right.width / LANES {
        n if n.is_multiple_of(8) => {
            columns::<LANES, 8, 1, 1, false>(left, (right, all), start, register);
        }
        n if n.is_multiple_of(4) => {
            columns::<LANES, 4, 1, 1, false>(left, (right, all), start, register);
        }
        n if n.is_multiple_of(2) => {
            columns::<LANES, 2, 1, 1, false>(left, (right, all), start, register);
        }
        _ => columns::<LANES, 1, 1, 1, false>(left, (right, all), start, register),
    }
}

/// [`product`] whose right side's rows begin at offsets, each for an element of depth; all registers
/// of columns are read.
#[inline(always)]
pub fn product_of_shifted<const LANES: usize, const NV: usize>(
    left: Left<'_>,
    (mut right, offsets): (Right<'_>, &[usize]),
    register: impl Register<LANES>,
) {
    let width = right.width;
    let is_inside = |offset: &usize| offset.checked_add(width).is_some_and(|n| n <= right.b.len());
    assert!(offsets.len() == left.depth && offsets.iter().all(is_inside));
    // SAFETY: there is an offset for each element of depth.
    let start = |d: usize| unsafe { *offsets.get_unchecked(d) };
    if left.rows < 3 {
        let wide = width / (8 * LANES) * (8 * LANES);
        columns::<LANES, 8, 1, 1, false>(left, (right.again(), 0..wide), start, register);
        return columns::<LANES, 1, 1, 1, false>(left, (right, wide..width), start, register);
    }
    if NV * LANES <= COLUMNS {
        return columns::<LANES, NV, 6, 5, false>(left, (right, 0..width), start, register);
    }
    let wide = width / (4 * LANES) * (4 * LANES);
    columns::<LANES, 4, 6, 5, false>(left, (right.again(), 0..wide), start, register);
    let rest = wide..width;
    match rest.len() / LANES {
        3 => columns::<LANES, 3, 8, 7, false>(left, (right, rest), start, register),
        2 => columns::<LANES, 2, 8, 7, false>(left, (right, rest), start, register),
        1 => columns::<LANES, 1, 8, 7, false>(left, (right, rest), start, register),
        _ => {}
    }
}

/// [`product`] of bfloat16 factors, ordered as by [`factors`](super::factors); the depth is even.
#[inline(always)]
pub fn product_of_bf16<const LANES: usize, const NV: usize>(
    left: Left<'_>,
    right: Right<'_>,
    register: impl Register<LANES>,
) {
    let (start, all) = (in_order(left, &right), 0..right.width);
    // Two sums for each element.
    if NV * LANES <= COLUMNS {
        return columns::<LANES, NV, 2, 2, true>(left, (right, all), start, register);
    }
    match right.width / LANES {
        1 => columns::<LANES, 1, 8, 7, true>(left, (right, all), start, register),
        2 => columns::<LANES, 2, 6, 5, true>(left, (right, all), start, register),
        3 => columns::<LANES, 3, 4, 3, true>(left, (right, all), start, register),
        _ => columns::<LANES, 4, 2, 2, true>(left, (right, all), start, register),
    }
}

/// All tiles of some columns, of `MR` rows, or of `LOW`, by `NV` registers; of factors in bfloat16 if
/// `BF16`. All rows of `b` that `start` leads to have those columns.
#[inline(always)]
fn columns<
    const LANES: usize,
    const NV: usize,
    const MR: usize,
    const LOW: usize,
    const BF16: bool,
>(
    left: Left<'_>,
    (mut right, columns): (Right<'_>, Range<usize>),
    start: impl Fn(usize) -> usize + Copy,
    register: impl Register<LANES>,
) {
    let Left { rows, depth, .. } = left;
    let width = right.width;
    if rows == 0 {
        return;
    }
    let last = (rows - 1) * left.row + depth.saturating_sub(1) * left.step;
    assert!(depth == 0 || last < left.values.len());
    assert!(columns.end <= width && right.c.len() >= rows * width);
    assert!(
        columns.len().is_multiple_of(NV * LANES) && right.keep.is_none_or(|k| k.len() >= width)
    );
    assert!(!BF16 || depth.is_multiple_of(2));
    // All about equally high, so that few rows are computed twice.
    let tiles = rows.div_ceil(MR);
    let mut row = 0;
    for rest in (1..=tiles).rev() {
        let height = (rows - row).div_ceil(rest);
        for column in columns.clone().step_by(NV * LANES) {
            let (right, place) = ((&mut right, start), (row..row + height, column));
            // SAFETY: by the assertions every element of a row below `rows`, and of the NV
            // registers from `column` on, is within its slice.
            unsafe {
                match (height <= LOW, BF16) {
                    (true, false) => tile::<LANES, NV, LOW>(left, right, place, register),
                    (false, false) => tile::<LANES, NV, MR>(left, right, place, register),
                    (true, true) => tile_of_bf16::<LANES, NV, LOW, _>(left, right, place, register),
                    (false, true) => tile_of_bf16::<LANES, NV, MR, _>(left, right, place, register),
                }
            }
        }
        row += height;
    }
}

/// Up to `MR` rows by `NV` registers; rows past the end repeat the last row and are not stored.
///
/// # Safety
/// The elements of `left`'s rows, and NV registers from `column` on in each row of `right`,
/// are within their slices, of `right`'s where `start_of` says; the rows are some of `left`'s.
// Indices name the same place in several arrays.
#[allow(clippy::needless_range_loop)]
// As `tile` of `loops/tile.rs`.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn tile<const LANES: usize, const NV: usize, const MR: usize>(
    left: Left<'_>,
    (right, start_of): (&mut Right<'_>, impl Fn(usize) -> usize + Copy),
    (rows, column): (Range<usize>, usize),
    register: impl Register<LANES>,
) {
    let (row, height) = (rows.start, rows.len());
    let zero = register.splat(0.);
    let mut acc = [[zero; NV]; MR];
    // SAFETY: all elements that are read and written are within their slices; an array of floats
    // has the alignment of its elements.
    unsafe {
        let mut starts = [left.values.as_ptr(); MR];
        for (r, start) in starts.iter_mut().enumerate() {
            *start = start.wrapping_add((row + r.min(height - 1)) * left.row);
        }
        let b = right.b.as_ptr().wrapping_add(column);
        for d in 0..left.depth {
            let b = b.add(start_of(d)).cast::<[f32; LANES]>();
            let b: [_; NV] = std::array::from_fn(|v| register.load(&*b.add(v)));
            for r in 0..MR {
                let a = register.splat(*starts[r].add(d * left.step));
                for v in 0..NV {
                    acc[r][v] = register.fma(a, b[v], acc[r][v]);
                }
            }
        }
        for r in 0..height {
            let c = right.c.as_mut_ptr().add((row + r) * right.width + column);
            for v in 0..NV {
                let c = &mut *c.cast::<[f32; LANES]>().add(v);
                if let Some(keep) = right.keep {
                    let keep = keep.as_ptr().add(column).cast::<[f32; LANES]>().add(v);
                    let keep = register.load(&*keep);
                    acc[r][v] = register.fma(register.load(c), keep, acc[r][v]);
                }
                register.store(acc[r][v], c);
            }
        }
    }
}

/// [`tile`] of factors in bfloat16: a block of 32 inputs after the other, whose sums of even and of
/// odd inputs begin with 0 and are added to the total.
///
/// # Safety
/// As of [`tile`]; the depth is even.
// As above.
#[allow(clippy::needless_range_loop)]
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn tile_of_bf16<const LANES: usize, const NV: usize, const MR: usize, R: Register<LANES>>(
    left: Left<'_>,
    (right, start_of): (&mut Right<'_>, impl Fn(usize) -> usize + Copy),
    (rows, column): (Range<usize>, usize),
    register: R,
) {
    let block = const { if R::PAIRED { 16 } else { 32 } };
    let (row, height) = (rows.start, rows.len());
    let zero = register.splat(0.);
    // SAFETY: all elements that are read and written are within their slices; an array of floats
    // has the alignment of its elements.
    unsafe {
        let mut starts = [left.values.as_ptr(); MR];
        for (r, start) in starts.iter_mut().enumerate() {
            *start = start.wrapping_add((row + r.min(height - 1)) * left.row);
        }
        let b = right.b.as_ptr().wrapping_add(column);
        let c = right.c.as_mut_ptr().wrapping_add(row * right.width + column);
        let mut total = [[zero; NV]; MR];
        if let Some(keep) = right.keep {
            let keep = keep.as_ptr().add(column).cast::<[f32; LANES]>();
            for r in (0..MR).take_while(|r| *r < height) {
                let c = c.add(r * right.width).cast::<[f32; LANES]>();
                for v in 0..NV {
                    let before = register.load(&*c.add(v));
                    total[r][v] = register.fma(before, register.load(&*keep.add(v)), zero);
                }
            }
        }
        for first in (0..left.depth).step_by(block) {
            let mut acc = [[[zero; NV]; MR]; 2];
            for d in (first..left.depth.min(first + block)).step_by(2) {
                for (side, acc) in acc.iter_mut().enumerate() {
                    let d = d + side;
                    let b = b.add(start_of(d)).cast::<[f32; LANES]>();
                    let b: [_; NV] = std::array::from_fn(|v| register.load(&*b.add(v)));
                    for r in 0..MR {
                        let a = register.splat(*starts[r].add(d * left.step));
                        for v in 0..NV {
                            acc[r][v] = register.dot(a, b[v], acc[r][v]);
                        }
                    }
                }
            }
            let [even, odd] = acc;
            for r in 0..MR {
                for v in 0..NV {
                    total[r][v] = register.add(total[r][v], register.add(even[r][v], odd[r][v]));
                }
            }
        }
        for r in (0..MR).take_while(|r| *r < height) {
            let c = c.add(r * right.width).cast::<[f32; LANES]>();
            for v in 0..NV {
                register.store(total[r][v], &mut *c.add(v));
            }
        }
    }
}

/// `to[c, r] = from[r, c]` for `rows` by `columns` elements; `from` has a row stride.
#[inline(always)]
pub fn transpose<const LANES: usize>(
    (from, stride): (&[f32], usize),
    mut to: RowsMut<'_>,
    rows: usize,
    columns: usize,
    register: impl Register<LANES>,
) {
    let last = (rows.max(1) - 1).checked_mul(stride);
    let end = last.and_then(|last| last.checked_add(columns));
    assert!(rows == 0 || columns == 0 || end.is_some_and(|end| end <= from.len()));
    assert!(to.has([columns, rows]));
    let (full_rows, full_columns) = (rows / SQUARE * SQUARE, columns / SQUARE * SQUARE);
    // Rows that lie far apart are often in the same few sets of L1: one is read or written whole,
    // before the next.
    let far = to.stride() > stride;
    let (outer, inner) = if far { (full_columns, full_rows) } else { (full_rows, full_columns) };
    for outer in (0..outer).step_by(SQUARE) {
        for inner in (0..inner).step_by(SQUARE) {
            let (row, column) = if far { (inner, outer) } else { (outer, inner) };
            // SAFETY: by the assertions the elements of these rows and columns are within both
            // sides; an array of floats has the alignment of its elements. A check for each row of
            // a square takes as long as the square.
            unsafe {
                let from = from.as_ptr().add(row * stride + column);
                let square = std::array::from_fn(|r| *from.add(r * stride).cast());
                for (c, values) in register.transpose(square).into_iter().enumerate() {
                    *to.row(column + c).as_mut_ptr().add(row).cast() = values;
                }
            }
        }
    }
    for column in 0..columns {
        let done = if column < full_columns { full_rows } else { 0 };
        for row in done..rows {
            // SAFETY: by the assertions there is that row.
            let to = unsafe { to.row(column) };
            to[row].write(from[row * stride + column]);
        }
    }
}
