//! Lines of memory that a product asks for before it uses them: weights to read, results to write.

use std::ops::Range;

use super::product::Sink;
use crate::packed::Panel;

/// Bytes that are fetched at once.
pub const LINE: usize = 64;

/// Bytes of weights between those that a single row uses and those that are fetched for it.
/// Distances of 1, 2 or 8 KiB, two distances at once, and prefetching to L2 only or past the caches
/// were no faster.
const DISTANCE: usize = 4_096;

/// Prefetches the line at `offset` to the cache of that level, 1 or 2, or does nothing.
#[inline(always)]
pub fn prefetch<const LEVEL: usize>(bytes: *const u8, offset: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        let line = bytes.wrapping_add(offset).cast();
        // SAFETY: every x86-64 CPU has the instruction, which reads nothing, at any address.
        unsafe {
            if const { LEVEL == 1 } {
                _mm_prefetch::<_MM_HINT_T0>(line);
            } else {
                _mm_prefetch::<_MM_HINT_T1>(line);
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, offset);
}

/// Brings the weights some way behind a group to L1: one row uses them faster than they come from
/// L3 or, by the hardware's prefetchers, from L2. Behind a panel mostly lies the next. Each line is
/// asked for right before one is used: all of two groups at once took 3 to 4% longer, and half of
/// the lines 30%.
#[inline(always)]
pub fn fetch<const BYTES: usize, const NV: usize>(weights: &[[[u8; BYTES]; NV]], group: usize) {
    let weights = weights.as_flattened().as_flattened();
    for line in (0..NV * BYTES).step_by(LINE) {
        prefetch::<1>(weights.as_ptr(), group * NV * BYTES + DISTANCE + line);
    }
}

/// The [`DISTANCE`] of weights in blocks, which take longer a byte: 4 KiB took 3 to 7% longer from
/// L3, and as long from memory.
const BLOCKS_DISTANCE: usize = 2_048;

/// Brings the weights some way behind the first of `weights`, in blocks, to L1.
#[inline(always)]
pub fn fetch_blocks<T>(weights: &[T]) {
    let bytes = size_of_val(weights);
    for line in (0..bytes).step_by(LINE) {
        prefetch::<1>(weights.as_ptr().cast(), BLOCKS_DISTANCE + line);
    }
}

/// Weights of the next panel, which tiles of several rows bring to L2, some lines a block: no
/// hardware prefetcher knows their address. Empty if all rows are one tile.
#[derive(Clone, Copy)]
pub struct Ahead<'a> {
    weights: &'a [u8],
    /// The offset of the next line.
    offset: usize,
    /// How often a tile fetches [`LINES`](Self::LINES) lines a block.
    times: usize,
}

impl<'a> Ahead<'a> {
    /// The number of lines that are fetched together: fewer cost as many instructions around them.
    const LINES: usize = 3;

    /// All weights of a panel, fetched by `tiles` tiles of `blocks` blocks.
    #[inline(always)]
    pub fn new(weights: &'a [u8], tiles: usize, blocks: usize) -> Self {
        let lines = (tiles * blocks * Self::LINES).max(1);
        Self { weights, offset: 0, times: weights.len().div_ceil(lines * LINE) }
    }

    #[inline(always)]
    pub fn is_none(&self) -> bool {
        self.weights.is_empty()
    }

    /// How often the next tile fetches lines in each of its blocks.
    #[inline(always)]
    pub fn times(&self) -> usize {
        if self.offset < self.weights.len() { self.times } else { 0 }
    }

    /// Fetches [`LINES`](Self::LINES) lines, `times` times.
    #[inline(always)]
    pub fn fetch(&mut self, times: usize) {
        for _ in 0..times {
            for line in 0..Self::LINES {
                prefetch::<2>(self.weights.as_ptr(), self.offset + line * LINE);
            }
            self.offset += Self::LINES * LINE;
        }
    }
}

/// Prefetches the lines of a tile's results to this core while its sums are computed: stores to
/// lines beyond L2 took a tenth of a product of 1,024 rows.
///
/// # Safety
/// No other thread writes these rows of this panel.
#[inline(always)]
pub unsafe fn claim(out: &Sink<'_>, panel: Panel<'_>, rows: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    {
        let count = rows.len();
        // SAFETY: the part is this thread's.
        let mut rows = unsafe { out.rows(rows, out.columns(panel)) };
        for row in 0..count {
            // SAFETY: the row is one of them.
            let row = unsafe { rows.row(row) };
            for offset in (0..size_of_val(row)).step_by(LINE) {
                let line = row.as_ptr().wrapping_byte_add(offset);
                // `_mm_prefetch` would make lines of another core shared ones, which cost the
                // stores a message. SAFETY: every x86-64 CPU has the instruction, which changes
                // nothing, at any address.
                unsafe {
                    std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
                }
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (out, panel, rows);
}
