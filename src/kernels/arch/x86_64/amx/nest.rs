//! The loop nest of tiles: panels, blocks of rows, tiles of inputs.

use std::arch::x86_64::{_mm512_add_epi32, _mm512_loadu_si512};
use std::mem::MaybeUninit;

use super::tiles::{self, AHEAD, Configured, HEIGHT, K_GROUPS, LINE, Operands, Sums};
use crate::kernels::arch::op::Activate;
use crate::kernels::arch::x86_64::avx512_vnni;
use crate::kernels::loops::activation::Activation;
use crate::kernels::loops::product::{Part, Product};
use crate::kernels::loops::tile::{Lanes, Terms};
use crate::kernels::packed::Panel;

/// Rows that pass all panels before the next: the ends of as many rows are kept on the stack.
const MAX_BLOCK: usize = 512;

/// # Safety
/// The CPU has AMX-INT8 and these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, part: Part) {
    let finish = |sums: &[i32; LINE], terms: Terms<'_, LINE>, out: &mut Lanes<LINE>| {
        // SAFETY: the array is 64 bytes to read.
        let sums = unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) };
        let sums = _mm512_add_epi32(sums, avx512_vnni::start(terms));
        avx512_vnni::finish(sums, terms, out);
    };
    let activate = |activation, xs: &mut [f32]| avx512_vnni::run(Activate { activation, xs });
    // SAFETY: the CPU has AMX-INT8, and the part is of this thread alone.
    unsafe {
        match fills_a_tile(&part) {
            true => multiply_on_tiles(product, part, finish, activate),
            false => avx512_vnni::multiply(product, part),
        }
    }
}

/// Whether a part has the rows of a tile. Fewer are left to registers: both wait for weights then,
/// and sums in registers need no trip through memory.
pub fn fills_a_tile(part: &Part) -> bool {
    part.rows.len() >= HEIGHT
}

/// Dequantizes a line of sums: scale and bias of its channels, and the parameters of its row.
pub trait Finish: Fn(&[i32; LINE], Terms<'_, LINE>, &mut Lanes<LINE>) + Copy {}

impl<F: Fn(&[i32; LINE], Terms<'_, LINE>, &mut Lanes<LINE>) + Copy> Finish for F {}

/// The activations of a block of rows as tiles read them.
struct Activations<'a> {
    /// `[rows, groups]`
    groups: &'a [[u8; 4]],
    /// Groups of a row.
    stride: usize,
    /// The groups of each row that fill no tile, with zeros behind them; empty if there are none.
    ends: &'a [MaybeUninit<End>],
}

/// The end of a row, filled up with zeros: weights beyond the last input are multiplied by them.
type End = [[u8; 4]; K_GROUPS];

#[repr(align(64))]
struct Ends([MaybeUninit<End>; MAX_BLOCK]);

/// A tile of weights of each register of the widest panel.
const TILES: usize = K_GROUPS * 4 * 4 * LINE;

#[repr(align(64))]
struct LastTiles([u8; TILES]);

/// Computes a part that [fills a tile](fills_a_tile).
///
/// # Safety
/// The CPU has AMX-INT8, and no other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply_on_tiles(
    product: &Product<'_, [u8; 4]>,
    part: Part,
    finish: impl Finish,
    activate: impl Fn(Activation, &mut [f32]) + Copy,
) {
    let Part { rows, panels, .. } = part;
    let groups = product.rhs.groups();
    // SAFETY: there are tiles.
    let _configured = unsafe { Configured::new() };
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
                    let group = |i| row.get(i).copied().unwrap_or_default();
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
                activations: &activations,
                panel,
                end,
                next: product
                    .rhs
                    .weights_from((index + 1).min(product.rhs.panels() - 1))
                    .as_ptr(),
                first_row: block.start,
                finish,
            };
            // SAFETY: blocks are about equally high, and so at least as high as a tile; these rows
            // of this panel are a part of ours.
            unsafe {
                column.multiply(block.len());
                product.activate(column.panel, &block, activate);
            }
        }
    }
}

/// A panel, and the rows that pass it.
struct Column<'a, F> {
    product: &'a Product<'a, [u8; 4]>,
    activations: &'a Activations<'a>,
    panel: Panel<'a>,
    /// The weights of the groups that fill no tile, and behind them at least as many bytes as make
    /// one of each register full.
    end: &'a [u8],
    /// Where the weights that come next begin.
    next: *const u8,
    first_row: usize,
    finish: F,
}

impl<F: Finish> Column<'_, F> {
    /// All tiles. The last of a column may overlap the one before: to compute rows twice takes
    /// less time than to configure lower tiles.
    ///
    /// # Safety
    /// Tiles are configured, there are at least as many rows as a tile has, and no other thread
    /// writes these rows of this panel.
    #[inline(always)]
    unsafe fn multiply(&self, rows: usize) {
        let width = self.panel.sums.len();
        let last = rows - HEIGHT;
        let mut ahead = self.next;
        // What is left by pairs of tiles is less than a pair, of which one tile may be enough.
        let rest = rows % (2 * HEIGHT);
        let single = (1..=HEIGHT).contains(&rest);
        let pairs = if single { rows - rest } else { rows };
        for lane in (0..width).step_by(2 * LINE) {
            for row in (0..pairs).step_by(2 * HEIGHT) {
                let rows = [row, last.min(row + HEIGHT)];
                // SAFETY: tiles are configured, and no other thread writes these rows of this panel;
                // each tile ends at the last row or before.
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
            // the tile ends at the last row.
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
    /// As of [`multiply`](Self::multiply); a tile that begins at each of `rows` ends at the last
    /// row or before, and there are `C` tiles of channels from `lane` on.
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
        // SAFETY: a row of activations and the panel have `whole` tiles and, if `ends` is not empty,
        // an end that is one.
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
                tiles::multiply::<R, C>(operands, whole);
            }
            if !ends.is_empty() {
                let operands = Operands {
                    lhs: rows.map(|row| ends[row..].as_ptr().cast()),
                    lhs_stride: size_of::<End>(),
                    rhs: self.end[4 * lane..].as_ptr(),
                    ..operands
                };
                tiles::multiply::<R, C>(operands, 1);
            }
            tiles::store::<R, C>(&mut sums);
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
        // What is checked is checked before the loop: there is little else in it.
        let panel = self.panel;
        let of_codes = lanes::<C, _>(panel.sums, lane);
        let zero_points = match panel.zero_points {
            [] => None,
            zero_points => Some(lanes::<C, _>(zero_points, lane)),
        };
        let (scales, bias) = (
            lanes::<C, _>(panel.scales, lane),
            lanes::<C, _>(panel.bias, lane),
        );
        let columns = self.product.out.columns(panel);
        for (i, first) in rows.into_iter().enumerate().take(R) {
            let rows = self.first_row + first..self.first_row + first + HEIGHT;
            let of_rows = &self.product.lhs.rows[rows.clone()];
            // SAFETY: no other thread writes these rows of this panel; each row is written before the
            // next is asked for.
            let mut out = unsafe { self.product.out.rows(rows, columns.clone()) };
            for (r, row) in of_rows.iter().enumerate() {
                let finish = |j: usize, out: &mut Lanes<LINE>| {
                    let terms = Terms {
                        row: *row,
                        sums: &of_codes[j],
                        zero_points: zero_points.map(|zero_points| &zero_points[j]),
                        scales: &scales[j],
                        bias: &bias[j],
                    };
                    // SAFETY: the tile was stored.
                    (self.finish)(unsafe { sums.row(i * C + j, r) }, terms, out);
                };
                // SAFETY: there are as many rows.
                let out = unsafe { out.row(r) }.get_mut(lane..).unwrap_or_default();
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

/// The lanes of `C` tiles of a panel.
#[inline(always)]
fn lanes<const C: usize, T>(of_panel: &[T], lane: usize) -> &[[T; LINE]; C] {
    let lines = of_panel[lane..].as_chunks().0.first_chunk();
    lines.expect("a panel of whole tiles")
}
