//! The loop nest of tiles: panels, blocks of rows, tiles of inputs.

use std::arch::x86_64::{
    __m512, __m512i, _mm_sfence, _mm512_add_ps, _mm512_castsi512_ps, _mm512_mullo_epi32,
    _mm512_set1_epi32, _mm512_storeu_ps, _mm512_stream_ps, _mm512_sub_epi32,
};
use std::mem::MaybeUninit;
use std::ops::{Range, RangeInclusive};
use std::ptr::null;

use super::tiles::{
    self, AHEAD, Configuration, Configured, HEIGHT, K_GROUPS, LINE, Line, Sums, TileOperands, Tiled,
};
use crate::arch::op::Activate;
use crate::arch::x86_64::{avx512, avx512_vnni};
use crate::loops::activation::Activation;
use crate::loops::buffer::RowsMut;
use crate::loops::product::{Group, Pair, Part, Product, Row, Sink};
use crate::packed::{Channels, Panel};

/// Rows that pass all panels before the next: the ends of as many rows are kept on the stack.
const MAX_BLOCK: usize = 512;

/// # Safety
/// The CPU has AMX-INT8 and these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    let streams = streams(product, out);
    let finish = Dequantize { streams };
    let activate = |activation, xs: &mut [f32]| avx512::run(Activate { activation, xs });
    // SAFETY: an `Isa` of AMX exists only where the CPU has AMX-INT8; parts of a `Grid` are
    // disjoint, and one thread computes each.
    unsafe {
        if fills_a_tile(product, &part) {
            multiply_on_tiles(product, out, part, finish, activate)
        } else {
            avx512_vnni::multiply(product, out, part)
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
    let finish = AddBias { streams };
    let activate = |activation, xs: &mut [f32]| avx512::run(Activate { activation, xs });
    // SAFETY: an `Isa` of AMX exists only where the CPU has AMX-BF16; parts of a `Grid` are
    // disjoint, and one thread computes each.
    unsafe {
        if part.rows.len() >= FEW {
            multiply_on_tiles(product, out, part, finish, activate)
        } else {
            avx512::multiply_bf16(product, out, part)
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

/// Dequantizes sums of codes.
#[derive(Clone, Copy)]
struct Dequantize {
    streams: bool,
}

impl Finish for Dequantize {
    #[inline(always)]
    unsafe fn finish<const C: usize>(self, lines: Lines<'_, C>) {
        // SAFETY: the CPU has the features, by the contract.
        unsafe { dequantize(lines, self.streams) }
    }
}

/// Adds the bias to sums of products of bfloat16, which are f32.
#[derive(Clone, Copy)]
struct AddBias {
    streams: bool,
}

impl Finish for AddBias {
    #[inline(always)]
    unsafe fn finish<const C: usize>(self, lines: Lines<'_, C>) {
        // SAFETY: the CPU has the features, by the contract.
        unsafe { add_bias(lines, self.streams) }
    }
}

/// Loads what depends on no row once.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn dequantize<const C: usize>(lines: Lines<'_, C>, streams: bool) {
    let channels = lines.channels;
    let of_channels = channels.map(|channels| avx512::integers(channels.sums));
    let scales = channels.map(|channels| avx512::floats(channels.scales));
    let bias = channels.map(|channels| avx512::floats(channels.bias));
    let value = |sums, row: &Row, j: usize| {
        let zero_point = _mm512_set1_epi32(row.zero_point);
        let sums = _mm512_sub_epi32(sums, _mm512_mullo_epi32(zero_point, of_channels[j]));
        avx512::scaled(sums, *row, scales[j], bias[j])
    };
    // All channels of a panel have zero points, or none.
    let zero_points =
        channels.map(|channels| channels.zero_points.map(|all| avx512::integers(all)));
    if zero_points.iter().all(Option::is_none) {
        return each_row(lines, streams, value);
    }
    let zero_points = zero_points.map(|some| some.unwrap_or_else(|| _mm512_set1_epi32(0)));
    each_row(lines, streams, |sums, row: &Row, j: usize| {
        let sum = _mm512_set1_epi32(row.sum);
        let sums = _mm512_sub_epi32(sums, _mm512_mullo_epi32(sum, zero_points[j]));
        value(sums, row, j)
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
fn add_bias<const C: usize>(lines: Lines<'_, C>, streams: bool) {
    let bias = lines.channels.map(|channels| avx512::floats(channels.bias));
    each_row(lines, streams, |sums, _: &Row, j: usize| {
        _mm512_add_ps(_mm512_castsi512_ps(sums), bias[j])
    });
}

/// Writes the value of each line of sums row by row, and streams it if it fills a cache line.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
#[inline]
fn each_row<const C: usize>(
    lines: Lines<'_, C>,
    streams: bool,
    value: impl Fn(__m512i, &Row, usize) -> __m512,
) {
    let Lines { sums, rows, mut out, .. } = lines;
    assert!(out.has([rows.len(), C * LINE]) && sums.iter().all(|sums| sums.len() == rows.len()));
    let streams = streams && out.is_aligned(size_of::<__m512>());
    for (r, row) in rows.iter().enumerate() {
        // SAFETY: by the assertion there is that row, of `C` lines to write.
        let out = unsafe { out.row(r) };
        for (j, out) in out.as_chunks_mut::<LINE>().0.iter_mut().enumerate().take(C) {
            let value = value(avx512::integers(&sums[j][r]), row, j);
            let out = out.as_mut_ptr();
            // SAFETY: it points to 64 bytes to write, which are a cache line if they are streamed.
            unsafe {
                if streams {
                    _mm512_stream_ps(out.cast(), value)
                } else {
                    _mm512_storeu_ps(out.cast(), value)
                }
            }
        }
    }
}

/// Rows from which products of bfloat16 are computed on tiles, which may be low: registers take
/// several instructions where products of codes take one.
pub const FEW: usize = 2;

/// Whether a part of int8 has the rows of a tile. Fewer are left to registers: both wait for
/// weights then, and sums in registers need no trip through memory.
pub fn fills_a_tile<G>(product: &Product<'_, G>, part: &Part) -> bool {
    // Rows of a tile lie at one distance from each other, as windows do not.
    part.rows.len() >= HEIGHT && product.windows.is_none()
}

/// The sums of `C` adjacent tiles, with the parameters of their rows and of their channels.
pub struct Lines<'a, const C: usize> {
    pub sums: [&'a [Line]; C],
    pub rows: &'a [Row],
    pub channels: [Channels<'a, LINE>; C],
    /// The rows that the values are written to.
    pub out: RowsMut<'a>,
}

/// Finishes the sums of adjacent tiles.
pub trait Finish: Copy {
    /// Writes rows of `C` lines. A row is written as a whole: lines that are adjacent
    /// in memory, written one after the other, take less time than tile after tile (on Sapphire
    /// Rapids all of a product of 1024 x 768 x 768 took 0.7 times as long).
    ///
    /// # Safety
    /// The CPU has the instructions that it uses.
    unsafe fn finish<const C: usize>(self, lines: Lines<'_, C>);
}

/// The activations of a block of rows as tiles read them.
struct TileActivations<'a, G> {
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

impl<G: Group> Ends<G> {
    /// Copies the ends of rows; none if all their groups fill tiles.
    #[inline(always)]
    fn fill(&mut self, rows: &[G], groups: usize, count: usize) -> &[MaybeUninit<End<G>>] {
        let end = groups % K_GROUPS;
        if end == 0 {
            return &[];
        }
        for (row, to) in rows.chunks_exact(groups).zip(&mut self.0) {
            let row = &row[groups - end..];
            let group = |i| row.get(i).copied().unwrap_or(G::default());
            to.write(std::array::from_fn(group));
        }
        &self.0[..count]
    }
}

/// A tile of weights of each register of the widest panel.
const TILES: usize = K_GROUPS * 4 * 4 * LINE;

#[repr(align(64))]
struct LastTiles(MaybeUninit<[u8; TILES]>);

/// Bytes of a group of two registers' channels.
const PAIR: usize = 2 * 4 * LINE;

/// Max groups of which two registers of a panel of four fit in L1 beside the activations as they
/// are.
const IN_L1: usize = 96;

/// Groups of which two registers fit if they are side by side.
const SPREAD: RangeInclusive<usize> = IN_L1 + 1..=192;

/// Rows from which a copy costs less than it gains. On Sapphire Rapids, with 768 inputs, it takes
/// as long as the products of 32 rows, which are 1.16 times as fast after it.
const MANY: usize = 16 * HEIGHT;

/// The weights of two of a panel's four registers, side by side.
///
/// In the panel they are in half the sets of a level-1 cache: 128 of each 256 bytes. 768 inputs of
/// 32 channels fill these sets of Intel's 48 KiB, and activations, of which there are as many for
/// 32 rows, displace them: tiles then take 1.2 times as long as from adjacent lines, by a loop over
/// both on Sapphire Rapids. With more inputs, neither fits.
#[repr(align(64))]
struct SideBySide([MaybeUninit<[u8; PAIR]>; *SPREAD.end()]);

impl SideBySide {
    /// Whether a copy costs less than it gains for so many rows of a panel.
    fn gains(rows: usize, panel: Panel<'_>, groups: usize) -> bool {
        rows >= MANY && SPREAD.contains(&groups) && panel.sums.len() == 4 * LINE
    }

    /// The weights of some tiles, copied when called for the first rows, before all others.
    #[inline(always)]
    fn copied(&mut self, panel: Panel<'_>, tiles: Tiles) -> Weights {
        if tiles.rows[0] == 0 {
            let groups = panel.weights.as_chunks::<{ 2 * PAIR }>().0;
            for (to, group) in self.0.iter_mut().zip(groups) {
                to.write(group.as_chunks().0[4 * tiles.lane / PAIR]);
            }
        }
        Weights { start: self.0.as_ptr().cast(), stride: PAIR }
    }
}

/// Computes a part; with fewer rows than a tile has, on lower tiles.
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
    let groups = product.groups;
    assert!(groups <= product.rhs.groups(), "groups of the weights");
    // SAFETY: an `Isa` of AMX exists only where the CPU, or its emulation, has tiles.
    let _configured =
        unsafe { Configured::new(Configuration::of_products(rows.len().min(HEIGHT))) };
    #[cfg(test)]
    super::tests::count_part();
    let mut ends = Ends([MaybeUninit::uninit(); MAX_BLOCK]);
    let mut last_tiles = LastTiles(MaybeUninit::uninit());
    let mut side_by_side = SideBySide([MaybeUninit::uninit(); _]);
    let mut sums = Sums::uninit();
    let blocks = rows.len().div_ceil(MAX_BLOCK);
    for block in 0..blocks {
        let bound = |block| rows.start + rows.len() * block / blocks;
        let rows = bound(block)..bound(block + 1);
        let lhs = &product.lhs[rows.start * groups..rows.end * groups];
        let ends = ends.fill(lhs, groups, rows.len());
        let activations = TileActivations { groups: lhs, stride: groups, ends };
        for index in panels.clone() {
            let panel = product.rhs.panel(index);
            let width = panel.sums.len();
            let row = 4 * width;
            let mut end = &product.rhs.weights_from(index)[groups / K_GROUPS * K_GROUPS * row..];
            if !ends.is_empty() && end.len() < K_GROUPS * row {
                // Behind the last panel there may be nothing to read.
                let tiles = last_tiles.0.write([0; TILES]);
                tiles[..end.len()].copy_from_slice(end);
                end = tiles;
            }
            let next = (index + 1).min(product.rhs.panels() - 1);
            let next_panel = product.rhs.weights_from(next).as_ptr();
            let fetched = groups / K_GROUPS * AHEAD;
            let copies = SideBySide::gains(rows.len(), panel, groups);
            for (i, tiles) in blocks_of(rows.len(), width).enumerate() {
                // The next panel once: a prefetch takes the place of a load, whatever it finds.
                let ahead = if i * fetched < groups * row {
                    next_panel.wrapping_add(i * fetched)
                } else {
                    null()
                };
                let of_panel = |weights: &[u8]| Weights {
                    start: weights.as_ptr().wrapping_add(4 * tiles.lane),
                    stride: row,
                };
                let weights = if copies && tiles.shape == [2, 2] {
                    side_by_side.copied(panel, tiles)
                } else {
                    of_panel(panel.weights)
                };
                // SAFETY: tiles are configured; the blocks cover this panel and these rows, which
                // are a part of ours. Rows are about equally many in all blocks of them, and so at
                // least as many as a tile has.
                unsafe {
                    activations.multiply([weights, of_panel(end)], tiles, ahead);
                    sums.store(tiles.shape);
                    tiles.finish(&sums, product, panel, &rows, out, finish);
                }
            }
            // SAFETY: all rows of the panel are written.
            unsafe { product.activate(out, panel, &rows, activate) };
        }
    }
}

/// Tiles whose sums are computed together, some rows by some channels of a panel.
#[derive(Clone, Copy)]
struct Tiles {
    /// 2 x 2, 2 x 1, or 1 x 1 to 4.
    shape: [usize; 2],
    /// The first row of each tile; twice the same for one tile.
    rows: [usize; 2],
    /// The first channel.
    lane: usize,
}

/// The blocks of a panel of `width` channels: first all pairs of tiles of rows. The last one may
/// overlap the one before: to compute rows twice takes less time than to configure lower tiles.
#[inline(always)]
fn blocks_of(rows: usize, width: usize) -> impl Iterator<Item = Tiles> {
    let last = rows.saturating_sub(HEIGHT);
    // The rows that fill no pair may fit in one tile.
    let rest = rows % (2 * HEIGHT);
    let single = (1..=HEIGHT).contains(&rest);
    let pairs = if single { rows - rest } else { rows };
    let columns = move |lane: usize, most: usize| ((width - lane) / LINE).min(most);
    let of_pairs = (0..width).step_by(2 * LINE).flat_map(move |lane| {
        (0..pairs).step_by(2 * HEIGHT).map(move |row| Tiles {
            shape: [2, columns(lane, 2)],
            rows: [row, last.min(row + HEIGHT)],
            lane,
        })
    });
    let singles = (0..width * usize::from(single)).step_by(4 * LINE);
    of_pairs.chain(singles.map(move |lane| Tiles {
        shape: [1, columns(lane, 4)],
        rows: [last; 2],
        lane,
    }))
}

/// The weights of some registers.
#[derive(Clone, Copy)]
struct Weights {
    start: *const u8,
    /// Bytes from a group to the next.
    stride: usize,
}

impl<G: Tiled> TileActivations<'_, G> {
    /// Computes the sums of some tiles, of the weights of whole tiles and of one more, behind the
    /// last group; on the way weights from `ahead` on are brought to L2, unless it is null.
    ///
    /// # Safety
    /// Tiles are configured, for as many rows as there are if a tile has more; each tile ends at
    /// the last row or before, and there are weights of all registers.
    #[inline(always)]
    unsafe fn multiply(&self, [weights, end]: [Weights; 2], tiles: Tiles, ahead: *const u8) {
        let Self { groups, stride, ends } = *self;
        let Tiles { shape, rows, .. } = tiles;
        let whole = stride / K_GROUPS;
        // SAFETY: a row of activations and the weights have `whole` tiles and, if `ends` is not
        // empty, an end that is one.
        unsafe {
            tiles::clear();
            let operands = TileOperands {
                lhs: rows.map(|row| groups[row * stride..].as_ptr().cast()),
                lhs_stride: 4 * stride,
                lhs_stays: stride <= IN_L1,
                rhs: weights.start,
                rhs_stride: weights.stride,
                ahead,
            };
            if whole > 0 {
                G::multiply(shape, operands, whole);
            }
            if !ends.is_empty() {
                let operands = TileOperands {
                    lhs: rows.map(|row| ends[row..].as_ptr().cast()),
                    lhs_stride: size_of::<End<G>>(),
                    rhs: end.start,
                    rhs_stride: end.stride,
                    ..operands
                };
                G::multiply(shape, operands, 1);
            }
        }
    }
}

impl Tiles {
    /// Finishes the sums of tiles of a panel, in a block of rows of the result.
    ///
    /// # Safety
    /// `sums` belong to these tiles, the CPU has the instructions of `finish`, and no other thread
    /// writes these rows of this panel.
    #[inline(always)]
    unsafe fn finish<G: Group>(
        self,
        sums: &Sums,
        product: &Product<'_, G>,
        panel: Panel<'_>,
        rows: &Range<usize>,
        out: &Sink<'_>,
        finish: impl Finish,
    ) {
        let height = rows.len().min(HEIGHT);
        let [high, wide] = self.shape;
        for (i, first) in self.rows.into_iter().enumerate().take(high) {
            let rows = rows.start + first..rows.start + first + height;
            for j in (0..wide).step_by(2) {
                let place = (sums, i * wide + j, panel, self.lane + j * LINE);
                // SAFETY: the contract is the same.
                unsafe {
                    if wide - j == 1 {
                        finish_lines::<G, 1>(place, rows.clone(), product, out, finish)
                    } else {
                        finish_lines::<G, 2>(place, rows.clone(), product, out, finish)
                    }
                }
            }
        }
    }
}

/// Finishes the sums of `C` adjacent tiles with the same rows, given the first tile and the first
/// channel of a panel.
///
/// # Safety
/// The sums were stored, the CPU has the instructions of `finish`, and no other thread writes these
/// rows of this panel.
#[inline(always)]
unsafe fn finish_lines<G: Group, const C: usize>(
    (sums, tile, panel, lane): (&Sums, usize, Panel<'_>, usize),
    rows: Range<usize>,
    product: &Product<'_, G>,
    out: &Sink<'_>,
    finish: impl Finish,
) {
    let height = rows.len();
    // SAFETY: the tiles were stored; no other thread writes these rows of this panel, and no other
    // of ours is alive.
    unsafe {
        let sums = std::array::from_fn(|j| sums.rows(tile + j, height));
        let lines = |out| Lines {
            sums,
            rows: &product.rows[rows.clone()],
            channels: panel.channels::<LINE, C>(lane),
            out,
        };
        let out = out.rows(rows.clone(), out.columns(panel));
        let mut out = out.narrow(lane, C * LINE);
        if out.has([height, C * LINE]) {
            return finish.finish(lines(out));
        }
        // Padding channels are computed like the others and not stored.
        let mut values = [[[0f32; LINE]; C]; HEIGHT];
        let room = &mut values.as_flattened_mut().as_flattened_mut()[..height * C * LINE];
        finish.finish(lines(RowsMut::of_matrix(room, C * LINE)));
        for (r, line) in values[..height].iter().enumerate() {
            let out = out.row(r);
            out.write_copy_of_slice(&line.as_flattened()[..out.len()]);
        }
    }
}
