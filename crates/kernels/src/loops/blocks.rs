//! The product of activations and weights in blocks of 32 inputs, which both have scales of their
//! own; and activations on their way there.
//!
//! ```text
//! for each panel of channels                 two registers wide
//!   for each tile of up to MR rows           MR * NV sums in f32
//!     for each block of inputs
//!       MR * NV sums in i32, begun with the correction by the middle of codes
//!       for each register of codes           two groups of 4-bit inputs, or one of 8-bit
//!         for each row: broadcast a group of activations, NV dot products
//!       scales of NV registers; for each row: to f32, fma by the product of the scales
//!     for each row: fma by the channel's factor and the bias, store
//! ```

use std::mem::MaybeUninit;
use std::ops::Range;

use super::activation::Activation;
use super::attention_int8::encode;
use super::fetch::{Cache, LINE, prefetch};
use super::float_vector::Register;
use super::number::Number;
use super::product::{Part, Product, Sink};
use crate::packed::Panel;
use crate::packed::blocks::{Blocks, INPUTS};
use crate::qparams::symmetric_row;

/// Groups of four inputs in a block.
pub const GROUPS: usize = INPUTS / 4;

/// 32 activations of a row, `scale * code`: i8 codes within +-127, then the scale, NaN where an
/// activation is not finite, and the sum of the codes. As bytes, so that they take the room that
/// other codes take.
pub type RowBlock = [[u8; 4]; GROUPS + 2];

#[inline(always)]
fn scale(block: &RowBlock) -> f32 {
    f32::from_le_bytes(block[GROUPS])
}

#[inline(always)]
fn sum(block: &RowBlock) -> i32 {
    i32::from_le_bytes(block[GROUPS + 1])
}

/// The block of up to 32 activations; those that are missing are 0.
#[inline(always)]
fn block<N: Number>(xs: &[f32]) -> RowBlock {
    let mut padded = [0f32; INPUTS];
    let xs = match xs.as_array() {
        Some(xs) => xs,
        None => {
            padded[..xs.len()].copy_from_slice(xs);
            &padded
        }
    };
    let mut block = [[0; 4]; GROUPS + 2];
    // The bits of what is not finite are the greatest.
    let bits = |x: &f32| x.to_bits() & !(1 << 31);
    let max = f32::from_bits(xs.iter().fold(0, |max, x| bits(x).max(max)));
    if !max.is_finite() {
        block[GROUPS] = f32::NAN.to_le_bytes();
        return block;
    }
    let scale = symmetric_row(max);
    let codes = block[..GROUPS].as_flattened_mut();
    encode::<N>(xs, 1. / scale, 0, codes);
    let code = |code: &u8| i32::from(code.cast_signed());
    let sum = codes.iter().map(code).sum::<i32>();
    block[GROUPS] = scale.to_le_bytes();
    block[GROUPS + 1] = sum.to_le_bytes();
    block
}

/// Writes the blocks of rows of `k` activations.
#[inline(always)]
pub fn encode_rows<N: Number>(k: usize, rows: &[f32], blocks: &mut [RowBlock]) {
    let width = k.div_ceil(INPUTS).max(1);
    for (row, blocks) in rows
        .chunks_exact(k.max(1))
        .zip(blocks.chunks_exact_mut(width))
    {
        for (xs, to) in row.chunks(INPUTS).zip(blocks) {
            *to = block::<N>(xs);
        }
    }
}

/// One instruction set's registers of `LANES` sums, as the operations that the loops need; `BYTES`
/// of codes hold `PER` groups of inputs of each lane.
pub trait Vector<const LANES: usize, const BYTES: usize, const PER: usize>: Copy {
    type Int: Copy;
    type Codes: Copy;
    type Float: Register<LANES>;
    /// The value that the sums of a block begin with: the correction, unless [`float`](Self::float)
    /// adds it, or codes are multiplied less their middle.
    fn start(self, correction: i32) -> Self::Int;
    fn load(self, codes: &[u8; BYTES]) -> [Self::Codes; PER];
    /// `acc` plus the products of a group of activations and of codes in each lane: exact.
    fn dot(self, acc: Self::Int, codes: Self::Codes, xs: [u8; 4]) -> Self::Int;
    fn float(self, acc: Self::Int, correction: i32) -> V<LANES, Self::Float>;
    fn widen(self, halves: &[[u8; 2]; LANES]) -> V<LANES, Self::Float>;
    fn floats(self) -> Self::Float;
    /// Applies an activation function, out of line.
    fn activate(self, activation: Activation, xs: &mut [f32]);
}

type V<const LANES: usize, R> = <R as Register<LANES>>::V;

/// A [`Vector`] of closures, which have the features of the function they are written in.
#[derive(Clone, Copy)]
pub struct Closures<Start, Load, Dot, Float, Widen, R, Activate> {
    pub start: Start,
    pub load: Load,
    pub dot: Dot,
    pub float: Float,
    pub widen: Widen,
    pub floats: R,
    pub activate: Activate,
}

impl<
    const LANES: usize,
    const BYTES: usize,
    const PER: usize,
    Int,
    Codes,
    Start,
    Load,
    Dot,
    Float,
    Widen,
    R,
    Activate,
> Vector<LANES, BYTES, PER> for Closures<Start, Load, Dot, Float, Widen, R, Activate>
where
    Int: Copy,
    Codes: Copy,
    R: Register<LANES>,
    Start: Fn(i32) -> Int + Copy,
    Load: Fn(&[u8; BYTES]) -> [Codes; PER] + Copy,
    Dot: Fn(Int, Codes, [u8; 4]) -> Int + Copy,
    Float: Fn(Int, i32) -> R::V + Copy,
    Widen: Fn(&[[u8; 2]; LANES]) -> R::V + Copy,
    Activate: Fn(Activation, &mut [f32]) + Copy,
{
    type Int = Int;
    type Codes = Codes;
    type Float = R;

    #[inline(always)]
    fn start(self, correction: i32) -> Int {
        (self.start)(correction)
    }

    #[inline(always)]
    fn load(self, codes: &[u8; BYTES]) -> [Codes; PER] {
        (self.load)(codes)
    }

    #[inline(always)]
    fn dot(self, acc: Int, codes: Codes, xs: [u8; 4]) -> Int {
        (self.dot)(acc, codes, xs)
    }

    #[inline(always)]
    fn float(self, acc: Int, correction: i32) -> R::V {
        (self.float)(acc, correction)
    }

    #[inline(always)]
    fn widen(self, halves: &[[u8; 2]; LANES]) -> R::V {
        (self.widen)(halves)
    }

    #[inline(always)]
    fn floats(self) -> R {
        self.floats
    }

    #[inline(always)]
    fn activate(self, activation: Activation, xs: &mut [f32]) {
        (self.activate)(activation, xs);
    }
}

/// Computes a part of a product of weights in that format, in tiles of at most `MR` rows, at most
/// [`MAX_ROWS`](super::tile::MAX_ROWS).
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply<
    const LANES: usize,
    const BYTES: usize,
    const PER: usize,
    const MR: usize,
    X,
>(
    product: &Product<'_, RowBlock>,
    format: Blocks,
    out: &Sink<'_>,
    part: Part,
    vector: X,
) where
    X: Vector<LANES, BYTES, PER>,
{
    for index in part.panels {
        let panel = product.rhs.panel(index);
        // SAFETY: the rows and the panel are in the part that this thread alone computes.
        unsafe {
            match panel.sums.len() / LANES {
                2 => column::<LANES, BYTES, PER, 2, MR, X>(
                    product,
                    (panel, format),
                    out,
                    part.rows.clone(),
                    vector,
                ),
                _ => column::<LANES, BYTES, PER, 1, MR, X>(
                    product,
                    (panel, format),
                    out,
                    part.rows.clone(),
                    vector,
                ),
            }
        }
    }
}

/// All tiles of one panel of `NV` registers.
///
/// # Safety
/// No other thread writes these rows of this panel.
#[inline(always)]
unsafe fn column<
    const LANES: usize,
    const BYTES: usize,
    const PER: usize,
    const NV: usize,
    const MR: usize,
    X,
>(
    product: &Product<'_, RowBlock>,
    of: (Panel<'_>, Blocks),
    out: &Sink<'_>,
    rows: Range<usize>,
    vector: X,
) where
    X: Vector<LANES, BYTES, PER>,
{
    let tiles = rows.len().div_ceil(MR);
    let mut row = rows.start;
    for left in (1..=tiles).rev() {
        let height = (rows.end - row).div_ceil(left);
        // SAFETY: the rows of a tile are among these, and the panel is in the part that this thread
        // alone computes.
        unsafe {
            match height {
                6 if const { MR >= 6 } => {
                    tile::<LANES, BYTES, PER, NV, 6, X>(product, of, out, row, vector);
                }
                5 if const { MR >= 5 } => {
                    tile::<LANES, BYTES, PER, NV, 5, X>(product, of, out, row, vector);
                }
                4 if const { MR >= 4 } => {
                    tile::<LANES, BYTES, PER, NV, 4, X>(product, of, out, row, vector);
                }
                3 if const { MR >= 3 } => {
                    tile::<LANES, BYTES, PER, NV, 3, X>(product, of, out, row, vector);
                }
                2 => tile::<LANES, BYTES, PER, NV, 2, X>(product, of, out, row, vector),
                _ => tile::<LANES, BYTES, PER, NV, 1, X>(product, of, out, row, vector),
            }
            let apply = |activation: Activation, xs: &mut [f32]| vector.activate(activation, xs);
            product.activate(out, of.0, &(row..row + height), apply);
        }
        row += height;
    }
}

/// Bytes of weights between those that a single row uses and those that are fetched for it.
const DISTANCE: usize = 4_096;

/// `MR` rows by `NV` registers.
///
/// # Safety
/// No other thread writes these rows of this panel.
// Indices name the same place in several arrays.
#[allow(clippy::needless_range_loop)]
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn tile<
    const LANES: usize,
    const BYTES: usize,
    const PER: usize,
    const NV: usize,
    const MR: usize,
    X,
>(
    product: &Product<'_, RowBlock>,
    (panel, format): (Panel<'_>, Blocks),
    out: &Sink<'_>,
    first_row: usize,
    vector: X,
) where
    X: Vector<LANES, BYTES, PER>,
{
    let (float, blocks) = (vector.floats(), product.groups);
    let rows: [_; MR] = std::array::from_fn(|r| product.lhs.groups(first_row + r, blocks));
    let mut acc = [[float.splat(0.); NV]; MR];
    let of_blocks = panel.blocks::<LANES, BYTES, NV>(format);
    for (block, weights) in of_blocks.take(blocks).enumerate() {
        if MR == 1 {
            for line in (0..size_of_val(weights.codes)).step_by(LINE) {
                let codes = weights.codes.as_flattened().as_flattened();
                prefetch(Cache::L1, codes, DISTANCE + line);
            }
        }
        // SAFETY: each row has as many blocks.
        let of_rows = rows.map(|row| unsafe { row.get_unchecked(block) });
        let corrections = of_rows.map(|row| sum(row).wrapping_mul(-format.middle()));
        let mut sums = corrections.map(|correction| [vector.start(correction); NV]);
        // Told its number, the compiler unrolls the rows.
        assert!(weights.codes.len() == GROUPS / PER);
        for i in 0..GROUPS / PER {
            let codes: [_; NV] = std::array::from_fn(|v| vector.load(&weights.codes[i][v]));
            for p in 0..PER {
                for r in 0..MR {
                    for v in 0..NV {
                        let xs = of_rows[r][i * PER + p];
                        sums[r][v] = vector.dot(sums[r][v], codes[v][p], xs);
                    }
                }
            }
        }
        for v in 0..NV {
            let scale = vector.widen(&weights.scales[v]);
            for r in 0..MR {
                let total = vector.float(sums[r][v], corrections[r]);
                let scale = multiplied(float, scale, self::scale(of_rows[r]));
                acc[r][v] = float.fma(total, scale, acc[r][v]);
            }
            let Some(offsets) = weights.offsets else {
                continue;
            };
            let mut addend = vector.widen(&offsets[v]);
            if format == Blocks::Int4ZeroPoint {
                let negative = multiplied(float, scale, -1.);
                addend = float.fma(negative, addend, float.splat(-0.));
            }
            for r in 0..MR {
                let addend = multiplied(float, addend, self::scale(of_rows[r]));
                let codes = float.splat(self::sum(of_rows[r]) as f32);
                acc[r][v] = float.fma(codes, addend, acc[r][v]);
            }
        }
    }
    // SAFETY: the tile is in the part that this thread alone computes.
    unsafe { store(out, panel, first_row, acc, float) };
}

/// The products of a register and a number, signs of zeros included.
#[inline(always)]
fn multiplied<const LANES: usize, R: Register<LANES>>(float: R, a: R::V, b: f32) -> R::V {
    float.fma(a, float.splat(b), float.splat(-0.))
}

/// Finishes and stores the sums of a tile: `fma(sum, factor, bias)`.
///
/// # Safety
/// No other thread writes these rows of this panel.
#[inline(always)]
unsafe fn store<const LANES: usize, const NV: usize, const MR: usize, R: Register<LANES>>(
    out: &Sink<'_>,
    panel: Panel<'_>,
    first_row: usize,
    acc: [[R::V; NV]; MR],
    float: R,
) {
    let channels = panel.channels::<LANES, NV>(0);
    let columns = out.columns(panel);
    // SAFETY: the tile is in the part that this thread alone computes.
    let mut out = unsafe { out.rows(first_row..first_row + MR, columns) };
    for (r, acc) in acc.into_iter().enumerate() {
        let mut values = [[0.; LANES]; NV];
        for (v, acc) in acc.into_iter().enumerate() {
            let (factor, bias) = (float.load(channels[v].scales), float.load(channels[v].bias));
            float.store(float.fma(acc, factor, bias), &mut values[v]);
        }
        // SAFETY: there are `MR` rows.
        let out = unsafe { out.row(r) };
        let values = values.as_flattened();
        // Padding channels are computed like the others and not stored.
        for (out, value) in out.iter_mut().zip(values) {
            *out = MaybeUninit::new(*value);
        }
    }
}
