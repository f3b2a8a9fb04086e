//! A product of small f32 matrices: register tiles like those of `tile`, for attention.
//!
//! ```text
//! for each MR rows of A
//!   for each NV registers of columns         MR * NV sums in registers
//!     for each element of depth              NV loads of B, MR broadcasts of A, MR * NV fma
//!     store, or add to what is there times a factor of each column
//! ```
//!
//! A is read element by element in place, transposed or not; only B is `[depth, width]` as
//! a whole. Each sum is one chain of fma in the order of depth, so that tile sizes do not show.

use std::ops::Range;

/// Columns of B and C come in multiples of this.
pub const COLUMNS: usize = 16;

/// Rows and columns of a block that is transposed in registers.
pub const SQUARE: usize = 8;

/// One instruction set's register of `LANES` f32, as the operations the product needs.
pub trait Register<const LANES: usize>: Copy {
    /// Whether factors are pairs of bfloat16.
    const PAIRED: bool = false;
    type V: Copy;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn splat(self, value: f32) -> Self::V;
    /// `a * b + acc`.
    fn fma(self, a: Self::V, b: Self::V, acc: Self::V) -> Self::V;
    /// `acc` and the product of two factors, or of both where they are pairs.
    #[inline(always)]
    fn dot(self, a: Self::V, b: Self::V, acc: Self::V) -> Self::V {
        self.fma(a, b, acc)
    }
    /// The pairs of the lanes of two registers; not called unless it is `PAIRED`.
    #[inline(always)]
    fn pair(self, first: Self::V, _second: Self::V) -> Self::V {
        first
    }
    /// The pairs of neighbours in two registers, those of `low` first; not called unless it is `PAIRED`.
    #[inline(always)]
    fn pair_neighbours(self, low: Self::V, _high: Self::V) -> Self::V {
        low
    }
    fn store(self, values: Self::V, to: &mut [f32; LANES]);
    fn transpose(self, square: [[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE];
}

/// A [`Register`] of closures, which have the features of the function they are written in.
#[derive(Clone, Copy)]
pub struct Closures<Load, Splat, Fma, Store, Transpose> {
    pub load: Load,
    pub splat: Splat,
    pub fma: Fma,
    pub store: Store,
    pub transpose: Transpose,
}

impl<const LANES: usize, V, Load, Splat, Fma, Store, Transpose> Register<LANES>
    for Closures<Load, Splat, Fma, Store, Transpose>
where
    V: Copy,
    Load: Fn(&[f32; LANES]) -> V + Copy,
    Splat: Fn(f32) -> V + Copy,
    Fma: Fn(V, V, V) -> V + Copy,
    Store: Fn(V, &mut [f32; LANES]) + Copy,
    Transpose: Fn([[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE] + Copy,
{
    type V = V;

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        (self.load)(from)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> V {
        (self.splat)(value)
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, acc: V) -> V {
        (self.fma)(a, b, acc)
    }

    #[inline(always)]
    fn store(self, values: V, to: &mut [f32; LANES]) {
        (self.store)(values, to);
    }

    #[inline(always)]
    fn transpose(self, square: [[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE] {
        (self.transpose)(square)
    }
}

/// A [`Register`] whose factors are pairs, made and multiplied by instructions of their own.
#[allow(dead_code, reason = "most instruction sets multiply f32 only")]
#[derive(Clone, Copy)]
pub struct OfPairs<R, Dot, Pair, Neighbours> {
    pub register: R,
    pub dot: Dot,
    pub pair: Pair,
    pub pair_neighbours: Neighbours,
}

impl<const LANES: usize, R, Dot, Pair, Neighbours> Register<LANES>
    for OfPairs<R, Dot, Pair, Neighbours>
where
    R: Register<LANES>,
    Dot: Fn(R::V, R::V, R::V) -> R::V + Copy,
    Pair: Fn(R::V, R::V) -> R::V + Copy,
    Neighbours: Fn(R::V, R::V) -> R::V + Copy,
{
    const PAIRED: bool = true;
    type V = R::V;

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> R::V {
        self.register.load(from)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> R::V {
        self.register.splat(value)
    }

    #[inline(always)]
    fn fma(self, a: R::V, b: R::V, acc: R::V) -> R::V {
        self.register.fma(a, b, acc)
    }

    #[inline(always)]
    fn dot(self, a: R::V, b: R::V, acc: R::V) -> R::V {
        (self.dot)(a, b, acc)
    }

    #[inline(always)]
    fn pair(self, first: R::V, second: R::V) -> R::V {
        (self.pair)(first, second)
    }

    #[inline(always)]
    fn pair_neighbours(self, low: R::V, high: R::V) -> R::V {
        (self.pair_neighbours)(low, high)
    }

    #[inline(always)]
    fn store(self, values: R::V, to: &mut [f32; LANES]) {
        self.register.store(values, to);
    }

    #[inline(always)]
    fn transpose(self, square: [[f32; SQUARE]; SQUARE]) -> [[f32; SQUARE]; SQUARE] {
        self.register.transpose(square)
    }
}

/// The left side: element `[r, d]` is `values[r * row + d * step]`.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    pub values: &'a [f32],
    pub row: usize,
    pub step: usize,
    pub rows: usize,
    pub depth: usize,
}

/// The right side and the result: `b` is `[depth, width]`, `c` `[rows, width]`.
pub struct Right<'a> {
    pub b: &'a [f32],
    pub c: &'a mut [f32],
    pub width: usize,
    /// A factor of each column of `c` for what it holds already; without, that is overwritten.
    pub keep: Option<&'a [f32]>,
}

/// `c = a b`, or `c = c keep + a b`, with at most `NV` registers of columns at a time.
#[inline(always)]
pub fn product<const LANES: usize, const NV: usize>(
    left: Left<'_>,
    right: Right<'_>,
    register: impl Register<LANES>,
) {
    // Enough rows for more sums than the latency of an fma.
    if NV * LANES <= COLUMNS {
        return columns::<LANES, NV, 6, 5>(left, right, register);
    }
    match right.width / LANES {
        1 => columns::<LANES, 1, 8, 7>(left, right, register),
        2 => columns::<LANES, 2, 8, 7>(left, right, register),
        3 => columns::<LANES, 3, 8, 7>(left, right, register),
        _ => columns::<LANES, 4, 6, 5>(left, right, register),
    }
}

/// All tiles of `MR` rows, or of `LOW`, one less, by `NV` registers.
#[inline(always)]
fn columns<const LANES: usize, const NV: usize, const MR: usize, const LOW: usize>(
    left: Left<'_>,
    mut right: Right<'_>,
    register: impl Register<LANES>,
) {
    let Left { rows, depth, .. } = left;
    let width = right.width;
    if rows == 0 {
        return;
    }
    let last = (rows - 1) * left.row + depth.saturating_sub(1) * left.step;
    assert!(depth == 0 || last < left.values.len());
    assert!(right.b.len() >= depth * width && right.c.len() >= rows * width);
    assert!(width.is_multiple_of(NV * LANES) && right.keep.is_none_or(|k| k.len() >= width));
    // All about equally high, so that few rows are computed twice.
    let tiles = rows.div_ceil(MR);
    let mut row = 0;
    for rest in (1..=tiles).rev() {
        let height = (rows - row).div_ceil(rest);
        for column in (0..width).step_by(NV * LANES) {
            let (right, place) = (&mut right, (row..row + height, column));
            // SAFETY: by the assertions every element of a row below `rows`, and of the NV
            // registers from `column` on, is within its slice.
            unsafe {
                match height <= LOW {
                    true => tile::<LANES, NV, LOW>(left, right, place, register),
                    false => tile::<LANES, NV, MR>(left, right, place, register),
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
/// are within their slices; the rows are some of `left`'s.
// Indices name the same place in several arrays.
#[allow(clippy::needless_range_loop)]
// As `tile` of `loops/tile.rs`.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn tile<const LANES: usize, const NV: usize, const MR: usize>(
    left: Left<'_>,
    right: &mut Right<'_>,
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
            let b = b.add(d * right.width).cast::<[f32; LANES]>();
            let b: [_; NV] = std::array::from_fn(|v| register.load(&*b.add(v)));
            for r in 0..MR {
                let a = register.splat(*starts[r].add(d * left.step));
                for v in 0..NV {
                    acc[r][v] = register.dot(a, b[v], acc[r][v]);
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

/// `to[c, r] = from[r, c]` for `rows` by `columns` elements, each matrix with its row stride.
#[inline(always)]
pub fn transpose<const LANES: usize>(
    (from, from_stride): (&[f32], usize),
    (to, to_stride): (&mut [f32], usize),
    rows: usize,
    columns: usize,
    register: impl Register<LANES>,
) {
    let (full_rows, full_columns) = (rows / SQUARE * SQUARE, columns / SQUARE * SQUARE);
    for row in (0..full_rows).step_by(SQUARE) {
        for column in (0..full_columns).step_by(SQUARE) {
            let mut square = [[0.; SQUARE]; SQUARE];
            for (r, values) in square.iter_mut().enumerate() {
                values.copy_from_slice(&from[(row + r) * from_stride + column..][..SQUARE]);
            }
            for (c, values) in register.transpose(square).iter().enumerate() {
                to[(column + c) * to_stride + row..][..SQUARE].copy_from_slice(values);
            }
        }
    }
    for row in 0..rows {
        let done = if row < full_rows { full_columns } else { 0 };
        for column in done..columns {
            to[column * to_stride + row] = from[row * from_stride + column];
        }
    }
}
