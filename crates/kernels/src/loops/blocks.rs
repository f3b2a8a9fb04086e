//! The product of activations and weights in blocks of 32 inputs, each with a scale, and the blocks
//! of activations.
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

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::activation::Activation;
use super::attention_int8::{encode, greatest};
use super::fetch::{Ahead, claim, fetch_blocks};
use super::float_vector::{Register, forward};
use super::number::{Number, filled_up};
use super::product::{Group, Part, Product, Sink};
use crate::packed::{Element, Panel};
use crate::qparams::blocks::{Blocks, INPUTS};
use crate::qparams::symmetric_row;

/// Groups of four inputs in a block.
pub const GROUPS: usize = INPUTS / 4;

/// 32 activations of a row, `scale * code`: i8 codes within +-127, then the scale, NaN where an
/// activation is not finite, and the sum of the codes, negated. As bytes, so that they take the
/// room that other codes take.
pub type RowBlock = [[u8; 4]; GROUPS + 2];

impl Group for RowBlock {}

impl Product<'_, RowBlock> {
    /// The format of the weights.
    ///
    /// # Panics
    /// If they are not in blocks.
    pub fn format(&self) -> Blocks {
        match self.rhs.element() {
            Element::Blocks { format, .. } => format,
            other => unreachable!("blocks of activations are for weights in blocks, not {other:?}"),
        }
    }
}

#[inline(always)]
pub fn scale(block: &RowBlock) -> f32 {
    f32::from_le_bytes(block[GROUPS])
}

/// The sum of the codes, negated.
#[inline(always)]
pub fn less(block: &RowBlock) -> i32 {
    i32::from_le_bytes(block[GROUPS + 1])
}

/// The block of up to 32 activations, by their greatest magnitude or by `max`; missing activations
/// are 0.
#[inline(always)]
fn block<N: Number>(xs: &[f32], max: Option<f32>) -> RowBlock {
    let padded: [f32; INPUTS];
    let xs = match xs.as_array() {
        Some(xs) => xs,
        None => {
            padded = filled_up(xs, 0.);
            &padded
        }
    };
    let mut block = [[0; 4]; GROUPS + 2];
    let max = max.unwrap_or_else(|| greatest(xs));
    if !max.is_finite() {
        block[GROUPS] = f32::NAN.to_le_bytes();
        return block;
    }
    let scale = symmetric_row(max);
    let codes = block[..GROUPS].as_flattened_mut();
    encode::<N>(xs, 1. / scale, 0, codes);
    let code = |code: &u8| i32::from(code.cast_signed());
    let less = -codes.iter().map(code).sum::<i32>();
    block[GROUPS] = scale.to_le_bytes();
    block[GROUPS + 1] = less.to_le_bytes();
    block
}

/// Writes the blocks of rows of `k` activations, which have one scale a row or a block.
#[inline(always)]
pub fn encode_rows<N: Number>(k: usize, rows: &[f32], per_row: bool, blocks: &mut [RowBlock]) {
    let width = k.div_ceil(INPUTS).max(1);
    for (row, blocks) in rows.chunks_exact(k.max(1)).zip(blocks.chunks_exact_mut(width)) {
        let max = per_row.then(|| greatest(row));
        for (xs, to) in row.chunks(INPUTS).zip(blocks) {
            *to = block::<N>(xs, max);
        }
    }
}

/// The registers of an instruction set, of `LANES` sums, as the operations that the loops need;
/// `BYTES` of codes hold `PER` groups of inputs of each lane.
pub trait BlockVector<const LANES: usize, const BYTES: usize, const PER: usize>: Copy {
    type Int: Copy;
    type Codes: Copy;
    type Float: Register<LANES>;
    /// The value that the sums of a block begin with: `less` times the middle of codes, unless
    /// [`float`](Self::float) adds it or codes are multiplied less their middle.
    fn start(self, less: i32) -> Self::Int;
    fn load(self, codes: &[u8; BYTES]) -> [Self::Codes; PER];
    /// `acc` plus the products of a group of activations and of codes in each lane: exact.
    fn dot(self, acc: Self::Int, codes: Self::Codes, xs: [u8; 4]) -> Self::Int;
    fn float(self, acc: Self::Int, less: i32) -> V<LANES, Self::Float>;
    fn widen(self, halves: &[[u8; 2]; LANES]) -> V<LANES, Self::Float>;
    fn floats(self) -> Self::Float;
    /// Applies an activation function, out of line.
    fn activate(self, activation: Activation, xs: &mut [f32]);
}

type V<const LANES: usize, R> = <R as Register<LANES>>::V;

/// A [`BlockVector`] of closures, which have the features of the function they are written in.
#[derive(Clone, Copy)]
pub struct BlockClosures<Start, Load, Dot, Float, Widen, R, Activate> {
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
> BlockVector<LANES, BYTES, PER> for BlockClosures<Start, Load, Dot, Float, Widen, R, Activate>
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

    forward! {
        start(less: i32) -> Int;
        load(codes: &[u8; BYTES]) -> [Codes; PER];
        dot(acc: Int, codes: Codes, xs: [u8; 4]) -> Int;
        float(acc: Int, less: i32) -> R::V;
        widen(halves: &[[u8; 2]; LANES]) -> R::V;
        activate(activation: Activation, xs: &mut [f32]);
    }

    #[inline(always)]
    fn floats(self) -> R {
        self.floats
    }
}

/// Computes a part of a product, in tiles of at most `MR` rows by two registers, `MR` at most
/// [`MAX_ROWS`](super::tile::MAX_ROWS), or of one row by all registers of a panel.
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply<
    const LANES: usize,
    const BYTES: usize,
    const PER: usize,
    const MR: usize,
    X: BlockVector<LANES, BYTES, PER>,
>(
    product: &Product<'_, RowBlock>,
    out: &Sink<'_>,
    Part { rows, panels, .. }: Part,
    vector: X,
) {
    let format = product.format();
    let (nest, offsets) = (BlockNest { product, out, format, vector }, format.has_offsets());
    for index in panels {
        let panel = product.rhs.panel(index);
        let registers = panel.sums.len() / LANES;
        let tiles_of_rows = rows.len().div_ceil(MR);
        // After the last panel a thread mostly goes on with the part beside this one.
        let next: &[u8] = if tiles_of_rows > 1 && index + 1 < product.rhs.panels() {
            product.rhs.panel(index + 1).weights
        } else {
            &[]
        };
        let ahead = &mut Ahead::new(next, registers.div_ceil(2) * tiles_of_rows, product.groups);
        let mut register = 0;
        while register < registers {
            let (place, rows) = ((panel, register, &mut *ahead), rows.clone());
            // Panels of 8 lanes have two registers at most: wider tiles are not compiled for them.
            // SAFETY: the rows and the panel are in the part that this thread alone computes.
            unsafe {
                register += match (registers - register, rows.len()) {
                    (4, 1) if const { LANES != 8 } && !offsets => {
                        nest.tiles::<4, 1, false>(place, rows)
                    }
                    (3, 1) if const { LANES != 8 } && !offsets => {
                        nest.tiles::<3, 1, false>(place, rows)
                    }
                    (2.., _) if const { PER == 2 } && offsets => {
                        nest.tiles::<2, MR, true>(place, rows)
                    }
                    (_, _) if const { PER == 2 } && offsets => {
                        nest.tiles::<1, MR, true>(place, rows)
                    }
                    (2.., _) => nest.tiles::<2, MR, false>(place, rows),
                    _ => nest.tiles::<1, MR, false>(place, rows),
                };
            }
        }
        let apply = |activation: Activation, xs: &mut [f32]| vector.activate(activation, xs);
        // SAFETY: the rows of the panel are written, and in the part that this thread alone
        // computes.
        unsafe { product.activate(out, panel, &rows, apply) };
    }
}

/// The operands that all tiles share.
#[derive(Clone, Copy)]
struct BlockNest<'a, const LANES: usize, const BYTES: usize, const PER: usize, X> {
    product: &'a Product<'a, RowBlock>,
    out: &'a Sink<'a>,
    format: Blocks,
    vector: X,
}

/// A panel, its first register to compute, and the weights that are fetched on the way.
type BlockPlace<'a, 'b> = (Panel<'a>, usize, &'a mut Ahead<'b>);

impl<const LANES: usize, const BYTES: usize, const PER: usize, X: BlockVector<LANES, BYTES, PER>>
    BlockNest<'_, LANES, BYTES, PER, X>
{
    /// Computes all tiles of `NV` registers of a panel; returns `NV`.
    ///
    /// # Safety
    /// No other thread writes these rows of this panel.
    #[inline(always)]
    unsafe fn tiles<const NV: usize, const MR: usize, const OFFSETS: bool>(
        self,
        (panel, register, ahead): BlockPlace<'_, '_>,
        rows: Range<usize>,
    ) -> usize {
        let tiles = rows.len().div_ceil(MR);
        let far = rows.len() > 1 && self.out.exceeds_l2();
        let mut row = rows.start;
        for left in (1..=tiles).rev() {
            let height = (rows.end - row).div_ceil(left);
            let place = (panel, register, &mut *ahead);
            // SAFETY: the rows of a tile are among these, and the panel is in the part that this
            // thread alone computes.
            unsafe {
                if far && register == 0 {
                    claim(self.out, panel, row..row + height);
                }
                match height {
                    6 if const { MR >= 6 } => self.tile::<NV, 6, OFFSETS>(place, row),
                    5 if const { MR >= 5 } => self.tile::<NV, 5, OFFSETS>(place, row),
                    4 if const { MR >= 4 } => self.tile::<NV, 4, OFFSETS>(place, row),
                    3 if const { MR >= 3 } => self.tile::<NV, 3, OFFSETS>(place, row),
                    2 if const { MR >= 2 } => self.tile::<NV, 2, OFFSETS>(place, row),
                    _ => self.tile::<NV, 1, OFFSETS>(place, row),
                }
            }
            row += height;
        }
        NV
    }

    /// Computes `MR` rows by `NV` registers of a panel.
    ///
    /// # Safety
    /// No other thread writes these rows of this panel.
    // Indices name the same place in several arrays.
    #[allow(clippy::needless_range_loop)]
    #[cfg_attr(target_arch = "wasm32", inline(never))]
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    unsafe fn tile<const NV: usize, const MR: usize, const OFFSETS: bool>(
        self,
        (panel, register, ahead): BlockPlace<'_, '_>,
        first_row: usize,
    ) {
        let Self { product, out, format, vector } = self;
        let (float, blocks) = (vector.floats(), product.groups);
        let rows: [_; MR] = std::array::from_fn(|r| product.row(first_row + r));
        let mut acc = [[float.splat(0.); NV]; MR];
        // All rows pass the panel at once.
        let near = MR == 1 || ahead.is_none();
        let (mut own, times) = (*ahead, ahead.times());
        // If it knew the number, the compiler would unroll the loop, for which there are too few
        // registers.
        let steps = match MR {
            1 => GROUPS / PER,
            _ => black_box(GROUPS / PER),
        };
        for (block, weights) in panel.blocks::<LANES, BYTES>(format).take(blocks).enumerate() {
            debug_assert_eq!(weights.codes.len(), steps * weights.registers);
            // SAFETY: each row has as many blocks.
            let of_rows = rows.map(|row| unsafe { row.get_unchecked(block) });
            let less = |r: usize| if OFFSETS { 0 } else { less(of_rows[r]) };
            if MR > 1 {
                own.fetch(times);
            }
            let mut sums = [[vector.start(0); NV]; MR];
            for r in 0..MR {
                for v in 0..NV {
                    sums[r][v] = vector.start(less(r));
                }
            }
            for i in 0..steps {
                let first = i * weights.registers + register;
                // SAFETY: a block has as many rows of codes, each of all registers.
                let codes = unsafe { weights.codes.get_unchecked(first..first + NV) };
                if near {
                    fetch_blocks(codes);
                }
                // SAFETY: all rows of codes have as many groups as the blocks of rows.
                unsafe { self.step(&mut sums, codes, (of_rows, i * PER)) };
            }
            let scales = &weights.scales[register..][..NV];
            if near {
                fetch_blocks(scales);
            }
            let of_rows = |r: usize| (scale(of_rows[r]), self::less(of_rows[r]));
            let totals = |r: usize, v: usize| vector.float(sums[r][v], less(r));
            let offsets = OFFSETS.then(|| (&weights.offsets[register..][..NV], format));
            let widen = |halves: &_| vector.widen(halves);
            add::<LANES, NV, MR, _>(&mut acc, totals, of_rows, (scales, offsets), widen, float);
        }
        *ahead = own;
        // SAFETY: the tile is in the part that this thread alone computes.
        unsafe { store(out, (panel, register), first_row, acc, float) };
    }

    /// Multiplies a row of codes of `NV` registers and its groups of activations: `NV` loads,
    /// `PER * MR` broadcasts, `PER * MR * NV` dot products.
    ///
    /// # Safety
    /// There are these registers and groups.
    // Indices name the same place in several arrays.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    unsafe fn step<const NV: usize, const MR: usize>(
        self,
        sums: &mut [[X::Int; NV]; MR],
        codes: &[[u8; BYTES]],
        (rows, group): ([&RowBlock; MR], usize),
    ) {
        // SAFETY: there are these registers.
        let load = |v| self.vector.load(unsafe { codes.get_unchecked(v) });
        let codes: [_; NV] = std::array::from_fn(load);
        for p in 0..PER {
            for r in 0..MR {
                // SAFETY: there are these groups.
                let xs = unsafe { *rows[r].get_unchecked(group + p) };
                for v in 0..NV {
                    sums[r][v] = self.vector.dot(sums[r][v], codes[v][p], xs);
                }
            }
        }
    }
}

/// Registers of float16 numbers.
type Halves<'a, const LANES: usize> = &'a [[[u8; 2]; LANES]];

/// Adds the sums of a block of inputs, times the scales of rows and channels, to the sums of a
/// tile, given the scale and the negated sum of codes of each row, and the scales of the registers
/// and their offsets, if they have any.
#[inline(always)]
pub fn add<const LANES: usize, const NV: usize, const MR: usize, R: Register<LANES>>(
    acc: &mut [[R::V; NV]; MR],
    totals: impl Fn(usize, usize) -> R::V,
    of_rows: impl Fn(usize) -> (f32, i32),
    (scales, offsets): (Halves<'_, LANES>, Option<(Halves<'_, LANES>, Blocks)>),
    widen: impl Fn(&[[u8; 2]; LANES]) -> R::V,
    float: R,
) {
    for v in 0..NV {
        let scale = widen(&scales[v]);
        for (r, acc) in acc.iter_mut().enumerate() {
            let scale = multiplied(float, scale, of_rows(r).0);
            acc[v] = float.fma(totals(r, v), scale, acc[v]);
        }
        let Some((offsets, format)) = offsets else {
            continue;
        };
        // The negated addend, for the negated sum.
        let offset = widen(&offsets[v]);
        let addend = match format {
            Blocks::Int4ZeroPoint => float.fma(scale, offset, float.splat(-0.)),
            _ => multiplied(float, offset, -1.),
        };
        for (r, acc) in acc.iter_mut().enumerate() {
            let (scale, less) = of_rows(r);
            let addend = multiplied(float, addend, scale);
            acc[v] = float.fma(float.splat(less as f32), addend, acc[v]);
        }
    }
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
pub unsafe fn store<const LANES: usize, const NV: usize, const MR: usize, R: Register<LANES>>(
    out: &Sink<'_>,
    (panel, register): (Panel<'_>, usize),
    first_row: usize,
    acc: [[R::V; NV]; MR],
    float: R,
) {
    let channels = panel.channels::<LANES, NV>(register * LANES);
    // SAFETY: the panel's rows are in the part that this thread alone computes.
    let mut out = unsafe { out.rows(first_row..first_row + MR, out.columns(panel)) };
    for (r, acc) in acc.into_iter().enumerate() {
        // SAFETY: there are `MR` rows.
        let out = &mut unsafe { out.row(r) }[register * LANES..];
        let mut values = [[0.; LANES]; NV];
        for (v, acc) in acc.into_iter().enumerate() {
            let (factor, bias) = (float.load(channels[v].scales), float.load(channels[v].bias));
            float.store(float.fma(acc, factor, bias), &mut values[v]);
        }
        // Padding channels are computed like the others and not stored.
        for (out, value) in out.iter_mut().zip(values.as_flattened()) {
            *out = MaybeUninit::new(*value);
        }
    }
}
