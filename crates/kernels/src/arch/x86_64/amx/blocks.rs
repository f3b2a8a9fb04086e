//! Products of weights in blocks on tiles: a tile of sums is a block of inputs of 16 rows and 16
//! channels, which is scaled before the next is added.
//!
//! ```text
//! for each 16 channels of each panel
//!   widen their codes to bytes, less the middle
//!   for each 16 rows                     16 sums in f32
//!     for each block of inputs
//!       one product of tiles, stored in L1
//!       for each row: to f32, fma by the product of the scales
//!     for each row: fma by the channel's factor and the bias, store
//! ```

use std::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_set1_epi8, _mm512_srli_epi16,
    _mm512_storeu_si512, _mm512_sub_epi8,
};

use std::ops::Range;

use super::nest::fills_a_tile;
use super::tiles::{self, Configuration, Configured, HEIGHT, LINE, Line, ROW};
use crate::arch::op::Activate;
use crate::arch::x86_64::{avx512, avx512_vnni};
use crate::loops::blocks::{self, GROUPS, RowBlock};
use crate::loops::fetch::claim;
use crate::loops::float_vector::Register;
use crate::loops::product::{Part, Product, Sink};
use crate::packed::Panel;
use crate::packed::blocks::PanelBlock;
use crate::qparams::blocks::Blocks;

/// A block of 16 channels: a tile of weights.
type Codes = [[u8; ROW]; GROUPS];

/// # Safety
/// The CPU has AMX-INT8 and these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    // SAFETY: an `Isa` of AMX exists only where the CPU, or its emulation, has tiles; parts of a
    // `Grid` are disjoint, and one thread computes each.
    unsafe {
        if !fills_a_tile(product, &part) {
            avx512_vnni::multiply_blocks(product, out, part);
        } else if product.format().has_offsets() {
            on_tiles::<true>(product, out, part);
        } else {
            on_tiles::<false>(product, out, part);
        }
    }
}

/// Computes a part with at least as many rows as a tile.
///
/// # Safety
/// As of [`multiply_blocks`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
unsafe fn on_tiles<const OFFSETS: bool>(
    product: &Product<'_, RowBlock>,
    out: &Sink<'_>,
    Part { rows, panels, .. }: Part,
) {
    let format = product.format();
    // SAFETY: by the contract the CPU has tiles.
    let _configured = unsafe { Configured::new(Configuration::of_blocks()) };
    #[cfg(test)]
    super::tests::count_part();
    let mut codes = vec![[[0; ROW]; GROUPS]; product.groups];
    let row_blocks = rows.len().div_ceil(MAX_ROWS);
    for block in 0..row_blocks {
        let bound = |block| rows.start + rows.len() * block / row_blocks;
        let tiles: Vec<_> = tiles_of(product, bound(block)..bound(block + 1)).collect();
        for index in panels.clone() {
            let panel = product.rhs.panel(index);
            for register in 0..panel.sums.len() / LINE {
                for (to, block) in codes.iter_mut().zip(panel.blocks::<LINE, ROW>(format)) {
                    widen(block, format, register, to);
                }
                for rows in &tiles {
                    let place = (panel, format, register);
                    // SAFETY: the rows and the panel are in the part that this thread alone
                    // computes.
                    unsafe { tile::<OFFSETS>(product, rows, place, &codes, out) }
                }
            }
        }
    }
    for index in panels {
        let apply = |activation, xs: &mut [f32]| avx512::run(Activate { activation, xs });
        // SAFETY: the rows of the panel are written, and in the part that this thread alone
        // computes.
        unsafe { product.activate(out, product.rhs.panel(index), &rows, apply) };
    }
}

/// Rows that pass all panels before the next: their activations stay in L2.
const MAX_ROWS: usize = 256;

/// 16 rows: the first, and block after block the scales and the negated sums of codes of all, side
/// by side.
type Tile = (usize, Vec<([f32; HEIGHT], [i32; HEIGHT])>);

/// Tiles of some rows, at least 16; the last may overlap the one before.
fn tiles_of(product: &Product<'_, RowBlock>, rows: Range<usize>) -> impl Iterator<Item = Tile> {
    let of_rows = move |first: usize, block: usize| {
        let row = |r: usize| &product.row(first + r)[block];
        let scales = std::array::from_fn(|r| blocks::scale(row(r)));
        (scales, std::array::from_fn(|r| blocks::less(row(r))))
    };
    let last = rows.end - HEIGHT;
    rows.step_by(HEIGHT).map(move |first| {
        let first = first.min(last);
        let blocks = (0..product.groups).map(|block| of_rows(first, block));
        (first, blocks.collect())
    })
}

/// The codes of a block of 16 channels, less the middle: at most 8 bits with a sign.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn widen(block: PanelBlock<'_, LINE, ROW>, format: Blocks, register: usize, to: &mut Codes) {
    let middle = _mm512_set1_epi8(format.middle() as i8);
    let put = |codes: __m512i, to: &mut [u8; ROW]| {
        // SAFETY: the array is 64 bytes to write; no alignment is asked.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_sub_epi8(codes, middle)) }
    };
    let rows = block.codes[register..].iter().step_by(block.registers);
    let rows = rows.map(|row| avx512::load(row));
    if format.bits() == 8 {
        return rows.zip(to).for_each(|(row, to)| put(row, to));
    }
    let halves = _mm512_set1_epi8(15);
    for (row, [low, high]) in rows.zip(to.as_chunks_mut().0) {
        put(_mm512_and_si512(row, halves), low);
        put(_mm512_and_si512(_mm512_srli_epi16::<4>(row), halves), high);
    }
}

/// 16 rows by the 16 channels of a register of a panel, whose codes are given.
///
/// # Safety
/// Tiles are configured for blocks, and no other thread writes these rows of this panel.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
unsafe fn tile<const OFFSETS: bool>(
    product: &Product<'_, RowBlock>,
    (first, of_rows): &Tile,
    (panel, format, register): (Panel<'_>, Blocks, usize),
    codes: &[Codes],
    out: &Sink<'_>,
) {
    let (float, blocks) = (avx512::register(), product.groups);
    if register == 0 && out.exceeds_l2() {
        // SAFETY: no other thread writes these rows of this panel.
        unsafe { claim(out, panel, *first..first + HEIGHT) };
    }
    let rows = &product.lhs[first * blocks..(first + HEIGHT) * blocks];
    let mut acc = [[float.splat(0.)]; HEIGHT];
    let mut sums = TileSums([[0; LINE]; HEIGHT]);
    let of_blocks = panel.blocks::<LINE, ROW>(format).zip(codes).zip(of_rows);
    for (block, ((weights, codes), (scales, less))) in of_blocks.enumerate() {
        let lhs = rows[block].as_ptr().cast();
        // SAFETY: tiles are configured; each of 16 rows has as many blocks, which begin with 32
        // codes.
        unsafe {
            tiles::multiply_block(lhs, blocks * size_of::<RowBlock>(), codes, &mut sums.0);
        }
        let of_register = register..register + 1;
        let offsets = OFFSETS.then(|| (&weights.offsets[of_register.clone()], format));
        blocks::add::<LINE, 1, HEIGHT, _>(
            &mut acc,
            |r, _| _mm512_cvtepi32_ps(avx512::integers(&sums.0[r])),
            |r| (scales[r], less[r]),
            (&weights.scales[of_register], offsets),
            |halves| avx512::of_halves(halves),
            float,
        );
    }
    // SAFETY: the tile is in the part that this thread alone computes.
    unsafe { blocks::store(out, (panel, register), *first, acc, float) };
}

/// The sums of a tile.
#[repr(align(64))]
struct TileSums([Line; HEIGHT]);
