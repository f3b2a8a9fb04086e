//! The loop nest of tiles: panels, blocks of rows, tiles of inputs.

use std::arch::x86_64::{
    __m512, _mm_sfence, _mm512_add_epi32, _mm512_add_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_storeu_ps, _mm512_stream_ps,
};
use std::mem::MaybeUninit;

use super::tiles::{self, AHEAD, Configured, HEIGHT, K_GROUPS, LINE, Operands, Sums, Tiled};
use crate::kernels::arch::Group;
use crate::kernels::arch::op::Activate;
use crate::kernels::arch::x86_64::avx512_vnni;
use crate::kernels::loops::activation::Activation;
use crate::kernels::loops::product::{Pair, Part, Product, Row, Sink};
use crate::kernels::loops::vector::Lanes;
use crate::kernels::packed::{Channels, Panel};

/// Rows that pass all panels before the next: the ends of as many rows are kept on the stack.
const MAX_BLOCK: usize = 512;

/// # Safety
/// The CPU has AMX-INT8 and these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    let streams = streams(product, out);
    let finish =
        |sums: &[i32; LINE], row: Row, channels: Channels<'_, LINE>, out: &mut Lanes<LINE>| {
            // SAFETY: the array is 64 bytes to read.
            let sums = unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) };
            let sums = _mm512_add_epi32(sums, avx512_vnni::start(row, channels));
            write(avx512_vnni::finish(sums, row, channels), streams, out);
        };
    let activate = |activation, xs: &mut [f32]| avx512_vnni::run(Activate { activation, xs });
    // SAFETY: an `Isa` of AMX exists only where the CPU has AMX-INT8; parts of a `Grid` are
    // disjoint, and one thread computes each.
    unsafe {
        match fills_a_tile(&part) {
            true => multiply_on_tiles(product, out, part, finish, activate),
            false => avx512_vnni::multiply(product, out, part),
        }
    }
    if streams {
        // Streamed registers are written before this thread says that the part is done.
        _mm_sfence();
    }
}

/// # Safety
/// The CPU has AMX-BF16 and these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
    let streams = streams(product, out);
    let finish =
        |sums: &[i32; LINE], _: Row, channels: Channels<'_, LINE>, out: &mut Lanes<LINE>| {
            // SAFETY: each array is 64 bytes to read; a tile of these products has f32.
            let (sums, bias) = unsafe {
                let sums = _mm512_loadu_ps(sums.as_ptr().cast());
                (sums, _mm512_loadu_ps(channels.bias.as_ptr()))
            };
            write(_mm512_add_ps(sums, bias), streams, out);
        };
    let activate = |activation, xs: &mut [f32]| avx512_vnni::run(Activate { activation, xs });
    // SAFETY: an `Isa` of AMX exists only where the CPU has AMX-BF16; parts of a `Grid` are
    // disjoint, and one thread computes each.
    unsafe {
        match part.rows.len() >= FEW {
            true => multiply_on_tiles(product, out, part, finish, activate),
            false => avx512_vnni::multiply_bf16(product, out, part),
        }
    }
    if streams {
        // As above.
        _mm_sfence();
    }
}

/// Whether results are written past the caches. An activation function reads what was written.
fn streams<G>(product: &Product<'_, G>, out: &Sink<'_>) -> bool {
    product.activation.is_none() && out.exceeds_caches()
}

/// Writes a register of results.
#[target_feature(enable = "avx512f")]
#[inline]
fn write(values: __m512, streams: bool, out: &mut Lanes<LINE>) {
    let out = out.as_mut_ptr();
    // SAFETY: the array is 64 bytes to write, and a cache line where it is streamed.
    unsafe {
        match streams && out.cast::<__m512>().is_aligned() {
            true => _mm512_stream_ps(out.cast(), values),
            false => _mm512_storeu_ps(out.cast(), values),
        }
    }
}

/// Rows from which products of bfloat16 are computed on tiles, which may be low: registers take
/// several instructions for what is one of codes.
pub const FEW: usize = 2;

/// Whether a part of int8 has the rows of a tile. Fewer are left to registers: both wait for weights
/// then, and sums in registers need no trip through memory.
pub fn fills_a_tile(part: &Part) -> bool {
    part.rows.len() >= HEIGHT
}

/// Dequantizes a line of sums: scale and bias of its channels, and the parameters of its row.
pub trait Finish: Fn(&[i32; LINE], Row, Channels<'_, LINE>, &mut Lanes<LINE>) + Copy {}

impl<F: Fn(&[i32; LINE], Row, Channels<'_, LINE>, &mut Lanes<LINE>) + Copy> Finish for F {}

/// The activations of a block of rows as tiles read them.
struct Activations<'a, G> {
    /// `[rows, groups]`
    groups: &'a [G],
    /// Groups of a row.
    stride: usize,
    /// The groups of each row that fill no tile, with zeros behind them; empty if there are none.
    ends: &'a [MaybeUninit<End<G>>],
}

/// The end of a row, filled up with zeros: weights beyond the last input are multiplied by them.
type End<G> = [G; K_GROUPS];

#[repr(align(64))]
struct Ends<G>([MaybeUninit<End<G>>; MAX_BLOCK]);

/// A tile of weights of each register of the widest panel.
const TILES: usize = K_GROUPS * 4 * 4 * LINE;

#[repr(align(64))]
struct LastTiles([u8; TILES]);

/// Computes a part. If it has fewer rows than a tile, tiles are as low.
///
/// # Safety
/// The CPU has AMX with these products, and no other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply_on_tiles<G: Group + Tiled>(
    product: &Product<'_, G>,
    out: &Sink<'_>,
    part: Part,
    finish: impl Finish,
    activate: impl Fn(Activation, &mut [f32]) + Copy,
) {
    let Part { rows, panels, .. } = part;
    let groups = product.rhs.groups();
    // SAFETY: an `Isa` of AMX exists only where the CPU, or its emulation, has tiles.
    let _configured = unsafe { Configured::new(rows.len().min(HEIGHT)) };
    #[cfg(test)]
    super::tests::count_part();
    let mut ends = Ends([MaybeUninit::uninit(); MAX_BLOCK]);
    let mut last_tiles = LastTiles([0; TILES]);
    let blocks = rows.len().div_ceil(MAX_BLOCK);
    for block in 0..blocks {
        let bound = |block| rows.start + rows.len() * block / blocks;
        let block = bound(block)..bound(block + 1);
        let lhs = &product.lhs.groups[block.start * groups..block.end * groups];
        let ends = match groups % K_GROUPS {
            0 => &[][..],
            end => {
                for (row, to) in lhs.chunks_exact(groups).zip(&mut ends.0) {
                    let row = &row[groups - end..];
                    let group = |i| row.get(i).copied().unwrap_or(G::ZERO);
                    to.write(std::array::from_fn(group));
                }
                &ends.0[..block.len()]
            }
        };
        let activations = Activations {
            groups: lhs,
            stride: groups,
            ends,
        };
        for index in panels.clone() {
            let panel = product.rhs.panel(index);
            let row = 4 * panel.sums.len();
            let mut end = &product.rhs.weights_from(index)[groups / K_GROUPS * K_GROUPS * row..];
            if end.len() < K_GROUPS * row {
                // Behind the last panel there may be nothing to read.
                last_tiles.0[..end.len()].copy_from_slice(end);
                end = &last_tiles.0;
            }
            let column = Column {
                product,
                out,
                activations: &activations,
                panel,
                end,
                next: product
                    .rhs
                    .weights_from((index + 1).min(product.rhs.panels() - 1))
                    .as_ptr(),
                first_row: block.start,
                rows: block.len(),
                finish,
            };
            // SAFETY: blocks are about equally high, and so at least as high as tiles are; these rows
            // of this panel are a part of ours.
            unsafe {
                column.multiply();
                product.activate(out, column.panel, &block, activate);
            }
        }
    }
}

/// A panel, and the rows that pass it.
struct Column<'a, G, F> {
    product: &'a Product<'a, G>,
    out: &'a Sink<'a>,
    activations: &'a Activations<'a, G>,
    panel: Panel<'a>,
    /// The weights of the groups that fill no tile, and behind them at least as many bytes as make
    /// one of each register full.
    end: &'a [u8],
    /// Where the weights that come next begin.
    next: *const u8,
    first_row: usize,
    rows: usize,
    finish: F,
}

impl<G: Tiled, F: Finish> Column<'_, G, F> {
    /// All tiles. The last of a column may overlap the one before: to compute rows twice takes
    /// less time than to configure lower tiles.
    ///
    /// # Safety
    /// Tiles are configured, for as many rows as there are if a tile has more, and no other thread
    /// writes these rows of this panel.
    #[inline(always)]
    unsafe fn multiply(&self) {
        let (rows, width) = (self.rows, self.panel.sums.len());
        let last = rows.saturating_sub(HEIGHT);
        let mut ahead = self.next;
        // The rows that fill no pair of tiles may fit in one tile.
        let rest = rows % (2 * HEIGHT);
        let single = (1..=HEIGHT).contains(&rest);
        let pairs = if single { rows - rest } else { rows };
        for lane in (0..width).step_by(2 * LINE) {
            for row in (0..pairs).step_by(2 * HEIGHT) {
                let rows = [row, last.min(row + HEIGHT)];
                // SAFETY: tiles are configured, and no other thread writes these rows of this
                // panel; each tile ends at the last row or before.
                unsafe {
                    match width - lane {
                        LINE => self.block::<2, 1>(rows, lane, ahead),
                        _ => self.block::<2, 2>(rows, lane, ahead),
                    }
                }
                ahead = ahead.wrapping_add(self.activations.stride / K_GROUPS * AHEAD);
            }
        }
        for lane in (0..width * usize::from(single)).step_by(4 * LINE) {
            // SAFETY: tiles are configured, and no other thread writes these rows of this panel;
            // the tile, which may be low, ends at the last row.
            unsafe {
                match (width - lane) / LINE {
                    1 => self.block::<1, 1>([last; 2], lane, ahead),
                    2 => self.block::<1, 2>([last; 2], lane, ahead),
                    3 => self.block::<1, 3>([last; 2], lane, ahead),
                    _ => self.block::<1, 4>([last; 2], lane, ahead),
                }
            }
        }
    }

    /// A block of `R` x `C` tiles: those that begin at `rows`, by the channels from `lane` on; on
    /// the way weights are fetched that come next.
    ///
    /// # Safety
    /// As of [`multiply`](Self::multiply); `R` is 1 if tiles are low; a tile that begins at each of
    /// `rows` ends at the last row or before, and there are `C` tiles of channels from `lane` on.
    #[inline(always)]
    unsafe fn block<const R: usize, const C: usize>(
        &self,
        rows: [usize; 2],
        lane: usize,
        ahead: *const u8,
    ) {
        let Activations {
            groups,
            stride,
            ends,
        } = *self.activations;
        let (whole, rhs_stride) = (stride / K_GROUPS, 4 * self.panel.sums.len());
        let mut sums = Sums::uninit();
        // SAFETY: a row of activations and the panel have `whole` tiles and, if `ends` is not
        // empty, an end that is one.
        unsafe {
            tiles::clear();
            let operands = Operands {
                lhs: rows.map(|row| groups[row * stride..].as_ptr().cast()),
                lhs_stride: 4 * stride,
                rhs: self.panel.weights.as_ptr().wrapping_add(4 * lane),
                rhs_stride,
                ahead,
            };
            if whole > 0 {
                G::multiply::<R, C>(operands, whole);
            }
            if !ends.is_empty() {
                let operands = Operands {
                    lhs: rows.map(|row| ends[row..].as_ptr().cast()),
                    lhs_stride: size_of::<End<G>>(),
                    rhs: self.end[4 * lane..].as_ptr(),
                    ..operands
                };
                G::multiply::<R, C>(operands, 1);
            }
            sums.store::<R, C>();
            self.finish::<R, C>(rows, lane, &sums);
        }
    }

    /// Dequantizes the sums of a block and stores them.
    ///
    /// # Safety
    /// As of [`block`](Self::block), whose `sums` these are.
    #[inline(always)]
    unsafe fn finish<const R: usize, const C: usize>(
        &self,
        rows: [usize; 2],
        lane: usize,
        sums: &Sums,
    ) {
        // All checks are before the loop, which has little else in it.
        let channels = self.panel.channels::<LINE, C>(lane);
        let columns = self.out.columns(self.panel);
        let height = self.rows.min(HEIGHT);
        for (i, first) in rows.into_iter().enumerate().take(R) {
            let rows = self.first_row + first..self.first_row + first + height;
            let of_rows = &self.product.lhs.rows[rows.clone()];
            // SAFETY: no other thread writes these rows of this panel; each row is written before
            // the next is asked for.
            let out = unsafe { self.out.rows(rows, columns.clone()) };
            let mut out = out.narrow(lane, C * LINE);
            for (r, row) in of_rows.iter().copied().enumerate() {
                let finish = |j: usize, out: &mut Lanes<LINE>| {
                    // SAFETY: the tile was stored.
                    let sums = unsafe { sums.row(i * C + j, r) };
                    (self.finish)(sums, row, channels[j], out);
                };
                // SAFETY: `r` is below `height`, the number of rows that `out` was made of.
                let out = unsafe { out.row(r) };
                match out.as_chunks_mut().0.first_chunk_mut::<C>() {
                    Some(out) => (0..C).for_each(|j| finish(j, &mut out[j])),
                    // Padding channels are computed like the others and not stored.
                    None => {
                        let mut lines = [[MaybeUninit::uninit(); LINE]; C];
                        (0..C).for_each(|j| finish(j, &mut lines[j]));
                        out.copy_from_slice(&lines.as_flattened()[..out.len()]);
                    }
                }
            }
        }
    }
}
