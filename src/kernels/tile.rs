//! The product of u8 activations and packed int8 weights: the loop nest, written once.
//!
//! ```text
//! for each panel of channels                 its codes stay in L1 or L2 while all rows pass
//!   for each tile of up to MR rows           MR * NV accumulator registers
//!     for each group of 4 inputs
//!       load NV registers of weights
//!       for each row: broadcast 4 activation bytes, NV dot products
//!     for each row: acc - zero_point * sum, to f32, fma by scale and bias, store
//! ```
//!
//! What makes it fast: every weight register that is loaded serves MR rows and every broadcast
//! NV registers, so that dot products, not loads, are the limit; the loop has no branch but its
//! own; dequantization and bias happen in registers, so no i32 matrix exists.
//!
//! An instruction set is a [`Vector`]: six closures in a function that has its features.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::packed::{GROUP, Packed, Panel};

/// Rows of the highest tile.
pub(super) const MAX_ROWS: usize = 6;

/// Scale and zero point of each row of the left side.
#[derive(Clone, Copy, Debug)]
pub struct RowParams {
    /// NaN for a row that is not finite.
    pub scale: f32,
    /// The code that stands for 0.0.
    pub zero_point: i32,
}

/// u8 activations: `[rows, row_bytes]` codes and the parameters of each row.
#[derive(Clone, Copy)]
pub(super) struct Lhs<'a> {
    pub codes: &'a [u8],
    pub params: &'a [RowParams],
    pub row_bytes: usize,
}

impl<'a> Lhs<'a> {
    /// A row in groups of four codes.
    fn row(&self, row: usize) -> &'a [[u8; GROUP]] {
        self.codes[row * self.row_bytes..][..self.row_bytes]
            .as_chunks()
            .0
    }
}

/// The `[rows, n]` output, of which several threads write different parts.
pub(super) struct Output<'a> {
    start: *mut MaybeUninit<f32>,
    rows: usize,
    n: usize,
    _out: std::marker::PhantomData<&'a mut [MaybeUninit<f32>]>,
}

// SAFETY: a shared `Output` is written through `part` alone, whose contract is that no two
// parts that live at once overlap.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// `out` is `[rows, n]`.
    pub fn new(out: &'a mut [MaybeUninit<f32>], n: usize) -> Self {
        Self {
            rows: out.len().checked_div(n).unwrap_or(0),
            start: out.as_mut_ptr(),
            n,
            _out: std::marker::PhantomData,
        }
    }

    /// Columns of a row.
    ///
    /// # Safety
    /// No other part that overlaps this one is alive.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn part(&self, row: usize, columns: Range<usize>) -> &mut [MaybeUninit<f32>] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.n);
        // SAFETY: by the assertion the part lies within the `rows * n` elements that `start`
        // was made from and that are borrowed for `'a`; by the contract nothing aliases it.
        unsafe {
            let start = self.start.add(row * self.n + columns.start);
            std::slice::from_raw_parts_mut(start, columns.len())
        }
    }
}

/// One instruction set's register of `LANES` i32, as the operations the loop nest needs.
///
/// `BYTES` is `4 * LANES`. `Acc` is a register of sums, `A` four broadcast activation bytes,
/// `B` a register of weights; `A` and `B` may be held in any form that makes `dot` cheap.
pub(super) trait Vector<const LANES: usize, const BYTES: usize>: Copy {
    type Acc: Copy;
    type A: Copy;
    type B: Copy;
    fn zero(self) -> Self::Acc;
    fn load(self, weights: &[i8; BYTES]) -> Self::B;
    fn splat(self, codes: [u8; GROUP]) -> Self::A;
    /// `acc` plus the sum of four products in each lane, exact in i32.
    fn dot(self, acc: Self::Acc, a: Self::A, b: Self::B) -> Self::Acc;
    fn add(self, left: Self::Acc, right: Self::Acc) -> Self::Acc;
    /// `fma((acc - zero_point * sum) as f32, scale_a * scale_w, bias)` in each lane.
    fn finish(self, acc: Self::Acc, with: Epilogue<'_, LANES>) -> [f32; LANES];
}

/// A [`Vector`] of closures: written inside a function that has an instruction set's features,
/// they have them too, so that intrinsics need no `unsafe` but for pointers.
#[derive(Clone, Copy)]
pub(super) struct Closures<Zero, Load, Splat, Dot, Add, Finish> {
    pub zero: Zero,
    pub load: Load,
    pub splat: Splat,
    pub dot: Dot,
    pub add: Add,
    pub finish: Finish,
}

impl<const LANES: usize, const BYTES: usize, Acc, A, B, Zero, Load, Splat, Dot, Add, Finish>
    Vector<LANES, BYTES> for Closures<Zero, Load, Splat, Dot, Add, Finish>
where
    Acc: Copy,
    A: Copy,
    B: Copy,
    Zero: Fn() -> Acc + Copy,
    Load: Fn(&[i8; BYTES]) -> B + Copy,
    Splat: Fn([u8; GROUP]) -> A + Copy,
    Dot: Fn(Acc, A, B) -> Acc + Copy,
    Add: Fn(Acc, Acc) -> Acc + Copy,
    Finish: Fn(Acc, Epilogue<'_, LANES>) -> [f32; LANES] + Copy,
{
    type Acc = Acc;
    type A = A;
    type B = B;

    #[inline(always)]
    fn zero(self) -> Acc {
        (self.zero)()
    }

    #[inline(always)]
    fn load(self, weights: &[i8; BYTES]) -> B {
        (self.load)(weights)
    }

    #[inline(always)]
    fn splat(self, codes: [u8; GROUP]) -> A {
        (self.splat)(codes)
    }

    #[inline(always)]
    fn dot(self, acc: Acc, a: A, b: B) -> Acc {
        (self.dot)(acc, a, b)
    }

    #[inline(always)]
    fn add(self, left: Acc, right: Acc) -> Acc {
        (self.add)(left, right)
    }

    #[inline(always)]
    fn finish(self, acc: Acc, with: Epilogue<'_, LANES>) -> [f32; LANES] {
        (self.finish)(acc, with)
    }
}

/// What `finish` needs to know of a row and a register's channels.
pub(super) struct Epilogue<'a, const LANES: usize> {
    pub row: RowParams,
    pub sums: &'a [i32; LANES],
    pub scales: &'a [f32; LANES],
    pub bias: &'a [f32; LANES],
}

/// A part of a product: `rows` of the left side by `panels` of the right side.
#[derive(Clone)]
pub(super) struct Part {
    pub rows: Range<usize>,
    pub panels: Range<usize>,
}

/// The whole product, of which each task computes a [`Part`].
pub(super) struct Product<'a> {
    pub lhs: Lhs<'a>,
    pub rhs: &'a Packed,
    pub out: Output<'a>,
}

/// Computes a part of a product, in tiles of at most `MR` rows; `MR` is at most [`MAX_ROWS`].
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub(super) unsafe fn multiply<const LANES: usize, const BYTES: usize, const MR: usize>(
    product: &Product<'_>,
    part: Part,
    vector: impl Vector<LANES, BYTES>,
) {
    for panel in part.panels.map(|index| product.rhs.panel(index)) {
        // SAFETY: these rows and this panel are a part of the part that is ours.
        unsafe {
            match panel.sums.len() / LANES {
                1 => column::<LANES, BYTES, MR, 1>(product, panel, part.rows.clone(), vector),
                2 => column::<LANES, BYTES, MR, 2>(product, panel, part.rows.clone(), vector),
                3 => column::<LANES, BYTES, MR, 3>(product, panel, part.rows.clone(), vector),
                _ => column::<LANES, BYTES, MR, 4>(product, panel, part.rows.clone(), vector),
            }
        }
    }
}

/// All tiles of one panel of `NV` registers.
///
/// # Safety
/// No other thread writes these rows of this panel.
#[inline(always)]
unsafe fn column<const LANES: usize, const BYTES: usize, const MR: usize, const NV: usize>(
    product: &Product<'_>,
    panel: Panel<'_>,
    rows: Range<usize>,
    vector: impl Vector<LANES, BYTES>,
) {
    let mut row = rows.start;
    while row < rows.end {
        let height = MR.min(rows.end - row);
        // SAFETY: the caller's promise.
        unsafe {
            match height {
                1 => tile::<LANES, BYTES, NV, 1, true>(product, panel, row, vector),
                2 => tile::<LANES, BYTES, NV, 2, false>(product, panel, row, vector),
                3 => tile::<LANES, BYTES, NV, 3, false>(product, panel, row, vector),
                4 => tile::<LANES, BYTES, NV, 4, false>(product, panel, row, vector),
                5 => tile::<LANES, BYTES, NV, 5, false>(product, panel, row, vector),
                _ => tile::<LANES, BYTES, NV, 6, false>(product, panel, row, vector),
            }
        }
        row += height;
    }
}

/// One group of inputs: `NV` loads, `MR` broadcasts, `MR * NV` dot products.
// Indices name the same place in several arrays.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn step<const LANES: usize, const BYTES: usize, const NV: usize, const MR: usize, V>(
    acc: &mut [[V::Acc; NV]; MR],
    rows: &[&[[u8; GROUP]]; MR],
    weights: &[[i8; BYTES]],
    group: usize,
    vector: V,
) where
    V: Vector<LANES, BYTES>,
{
    let weights = &weights[group * NV..][..NV];
    let b: [_; NV] = std::array::from_fn(|v| vector.load(&weights[v]));
    for r in 0..MR {
        let a = vector.splat(rows[r][group]);
        for v in 0..NV {
            acc[r][v] = vector.dot(acc[r][v], a, b[v]);
        }
    }
}

/// `MR` rows by `NV` registers.
///
/// `SPLIT` sums even and odd groups of inputs apart: one row alone has too few sums to hide the
/// latency of a dot product.
///
/// # Safety
/// No other thread writes these rows of this panel.
// Indices name the same place in several arrays.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
unsafe fn tile<
    const LANES: usize,
    const BYTES: usize,
    const NV: usize,
    const MR: usize,
    const SPLIT: bool,
>(
    product: &Product<'_>,
    panel: Panel<'_>,
    first_row: usize,
    vector: impl Vector<LANES, BYTES>,
) {
    let groups = product.lhs.row_bytes / GROUP;
    // Slices of one known length: the loop below is free of bounds checks.
    let rows: [_; MR] = std::array::from_fn(|r| &product.lhs.row(first_row + r)[..groups]);
    let weights = &panel.codes.as_chunks::<BYTES>().0[..groups * NV];

    let mut acc = [[vector.zero(); NV]; MR];
    let mut group = 0;
    if SPLIT {
        let mut odd = acc;
        while group + 1 < groups {
            step(&mut acc, &rows, weights, group, vector);
            step(&mut odd, &rows, weights, group + 1, vector);
            group += 2;
        }
        for r in 0..MR {
            for v in 0..NV {
                acc[r][v] = vector.add(acc[r][v], odd[r][v]);
            }
        }
    }
    while group < groups {
        step(&mut acc, &rows, weights, group, vector);
        group += 1;
    }

    let sums = panel.sums.as_chunks::<LANES>().0;
    let scales = panel.scales.as_chunks::<LANES>().0;
    let bias = panel.bias.as_chunks::<LANES>().0;
    for r in 0..MR {
        let row = first_row + r;
        // SAFETY: the caller's promise; the part of the row before is no longer alive.
        let out = unsafe {
            let columns = panel.start..panel.start + panel.channels;
            product.out.part(row, columns)
        };
        for v in 0..NV {
            let values = vector.finish(
                acc[r][v],
                Epilogue {
                    row: product.lhs.params[row],
                    sums: &sums[v],
                    scales: &scales[v],
                    bias: &bias[v],
                },
            );
            // Padding channels are computed like the others and not stored.
            let real = &mut out[v * LANES..];
            match real.first_chunk_mut::<LANES>() {
                Some(full) => *full = values.map(MaybeUninit::new),
                None => {
                    for (out, value) in real.iter_mut().zip(values) {
                        out.write(value);
                    }
                }
            }
        }
    }
}
