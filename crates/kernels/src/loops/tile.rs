//! The product of activations and packed weights: the loop nest, written once for u8 by int8, for
//! f32 by float16 and for bfloat16.
//!
//! ```text
//! for each panel of channels                 its codes stay in L1 or L2 while all rows pass
//!   for each tile of up to MR rows           MR * NV sums, begun with the correction by zero points
//!     for each group of inputs               4 of int8, 1 of float16, 2 of bfloat16
//!       load NV registers of weights
//!       for each row: broadcast a group of activations, NV dot products
//!     for each row: to f32, fma by scale and bias, store
//! ```
//!
//! It is fast because every weight register that is loaded serves MR rows and every broadcast
//! NV registers, so that dot products, not loads, are the limit; the loop has no branch but its
//! own; dequantization and bias happen in registers, so no i32 matrix exists. Sums that
//! went over the stack on their way out made a product of 384 inputs 4% slower.
//! A single row uses each weight once, so bytes are the limit: weights are prefetched.
//!
//! Rows of a convolution are [`Windows`]: a tile takes the sums of one tap after the other, each of
//! another position and panel, to f32, and adds them to results that begin with the bias.
//!
//! An instruction set is a [`Vector`]: eight closures in a function that has its features. Tiles
//! that it has no panels or no rows for are not compiled: branches on an inline `const` leave them
//! out.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::activation::Activation;
use super::buffer::as_uninit;
use super::fetch::{LINE, claim, fetch, prefetch};
use super::product::{Group, Part, Product, Row, Sink, Windows, two_bases};
use super::vector::Vector;
use crate::packed::{Channels, Panel, split_width};

/// Rows of the highest tile.
#[allow(dead_code, reason = "some instruction sets have registers for fewer")]
pub const MAX_ROWS: usize = 6;

/// Computes a part of a product, in tiles of at most `MR` rows by `NV` registers, which make a full
/// panel; `MR` is at most [`MAX_ROWS`], `NV` at most 4.
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply<
    const LANES: usize,
    const BYTES: usize,
    const NV: usize,
    const MR: usize,
    V: Vector<LANES, BYTES>,
>(
    product: &Product<'_, V::Group>,
    out: &Sink<'_>,
    part: Part,
    vector: V,
) {
    // By value: behind references, what is in registers would be loaded again after each store.
    let nest = Nest { product: *product, out: *out, vector };
    let Part { rows, mut panels, step } = part;
    if const { V::Group::EXACT }
        && let Some(windows) = nest.product.windows
    {
        // SAFETY: the contract is the same.
        return unsafe {
            if windows.exact {
                nest.windows::<NV, MR, true>(windows, (rows, panels));
            } else {
                nest.windows::<NV, MR, false>(windows, (rows, panels));
            }
        };
    }
    let few = |first| panels.len() * nest.product.rhs.panel(first).weights.len() <= BY_TURNS;
    let by_turns = V::Group::EXACT && rows.len() == 1 && step.is_some();
    let by_turns = by_turns && panels.clone().next().is_some_and(few);
    let backwards = by_turns && step.is_some_and(|step| step % 2 == 1);
    let next = |panels: &mut Range<usize>| {
        if backwards { panels.next_back() } else { panels.next() }
    };
    while let Some(index) = next(&mut panels) {
        let panel = nest.product.rhs.panel(index);
        debug_assert!(panel.sums.len() <= NV * LANES, "panels of this instruction set");
        // After the last one a thread mostly goes on with the part beside this one.
        let next = if rows.len() > 1 && index + 1 < nest.product.rhs.panels() {
            nest.product.rhs.panel(index + 1).weights
        } else {
            panel.weights
        };
        if const { !V::Group::EXACT && V::Group::BLOCK == 0 }
            && rows.len() == 1
            && let Some((side, after)) = nest.alike(panel, panels.clone())
        {
            // SAFETY: the row and the panels are in the part that this thread alone computes.
            unsafe { nest.beside::<NV>(side, rows.start) };
            panels = after;
            continue;
        }
        let (all, near) = (rows.clone(), by_turns);
        // SAFETY: the rows and the panel are in the part that this thread alone computes.
        unsafe {
            match panel.sums.len() / LANES {
                4 if const { NV >= 4 } => nest.column::<4, MR>(panel, next, near, all),
                3 if const { NV >= 3 } => nest.column::<3, MR>(panel, next, near, all),
                2 => nest.column::<2, MR>(panel, next, near, all),
                _ => nest.column::<1, MR>(panel, next, near, all),
            }
        }
    }
}

/// The operands that all loops of the nest share.
#[derive(Clone, Copy)]
struct Nest<'a, const LANES: usize, const BYTES: usize, V: Vector<LANES, BYTES>> {
    product: Product<'a, V::Group>,
    out: Sink<'a>,
    vector: V,
}

/// Max bytes of weights that the steps of one row traverse in alternating directions: a few times
/// L1. Beyond that, too little survives in L1 to offset the hardware's prefetchers, which favour
/// ascending addresses.
const BY_TURNS: usize = 256 << 10;

/// Panels that one row of floats passes at once.
const ABREAST: usize = 4;

/// Rows that the activation function is applied to at once: they are still in L1, where all rows of
/// a panel would not even stay in L2.
const ACTIVATED: usize = 16;

/// Rows that a block of weights passes, from L1.
const ROWS: usize = 12;

impl<'a, const LANES: usize, const BYTES: usize, V: Vector<LANES, BYTES>>
    Nest<'a, LANES, BYTES, V>
{
    /// The panels that one row of floats passes at once, from `panel` on, and those after them;
    /// `None` if there are fewer, or some are narrower.
    #[inline(always)]
    fn alike(
        self,
        panel: Panel<'a>,
        mut after: Range<usize>,
    ) -> Option<([Panel<'a>; ABREAST], Range<usize>)> {
        if after.len() + 1 < ABREAST {
            return None;
        }
        let mut side = [panel; ABREAST];
        for (panel, index) in side[1..].iter_mut().zip(&mut after) {
            *panel = self.product.rhs.panel(index);
        }
        let is_alike = |other: &Panel<'_>| other.sums.len() == panel.sums.len();
        side.iter().all(is_alike).then_some((side, after))
    }

    /// Computes one row of several panels, which are equally wide. One row of floats has too few
    /// sums to hide the latency of an `fma`, and their order is set.
    ///
    /// # Safety
    /// No other thread writes the row of these panels.
    #[inline(always)]
    unsafe fn beside<const NV: usize>(self, side: [Panel<'_>; ABREAST], row: usize) {
        // SAFETY: the contract is the same.
        unsafe {
            match side[0].sums.len() / LANES {
                4 if const { NV >= 4 } => self.abreast::<4>(side, row),
                3 if const { NV >= 3 } => self.abreast::<3>(side, row),
                2 => self.abreast::<2>(side, row),
                _ => self.abreast::<1>(side, row),
            }
            for panel in side {
                self.activate(panel, row..row + 1);
            }
        }
    }

    /// Computes all tiles of one panel of `NV` registers; on the way the weights of the `next`
    /// panel are fetched, or for a single row the weights that come soon, unless all are `near`.
    ///
    /// # Safety
    /// No other thread writes these rows of this panel.
    #[inline(always)]
    unsafe fn column<const NV: usize, const MR: usize>(
        self,
        panel: Panel<'_>,
        next: &[u8],
        near: bool,
        rows: Range<usize>,
    ) {
        if const { V::Group::BLOCK > 0 } {
            // SAFETY: the rows and the panel are in the part that this thread alone computes.
            return unsafe { self.blocks::<NV>(panel, next, rows) };
        }
        // All about equally high: a low tile has too few sums to hide the latency of a dot product.
        let tiles = rows.len().div_ceil(MR);
        let (mut row, mut finished) = (rows.start, rows.start);
        let far = rows.len() > 1 && self.out.exceeds_l2();
        let line = self.product.groups * LINE;
        for left in (1..=tiles).rev() {
            let height = (rows.end - row).div_ceil(left);
            // Each tile prefetches one line per group, until all of the next panel is fetched: no
            // hardware prefetcher knows its address, and a large model's weights come from memory.
            let fetched = (tiles - left) * line;
            let ahead = next.get(fetched..).unwrap_or(panel.weights);
            // SAFETY: the rows of a tile are among these, and the panel is in the part that this
            // thread alone computes.
            unsafe {
                if far {
                    claim(&self.out, panel, row..row + height);
                }
                match height {
                    6 if const { MR >= 6 } => self.tile::<NV, 6, true>(panel, ahead, row),
                    5 if const { MR >= 5 } => self.tile::<NV, 5, true>(panel, ahead, row),
                    4 if const { MR >= 4 } => self.tile::<NV, 4, true>(panel, ahead, row),
                    3 if const { MR >= 3 } => self.tile::<NV, 3, true>(panel, ahead, row),
                    2 => self.tile::<NV, 2, true>(panel, ahead, row),
                    _ if const { V::Group::EXACT } && near => {
                        self.tile::<NV, 1, true>(panel, ahead, row)
                    }
                    _ => self.tile::<NV, 1, false>(panel, ahead, row),
                }
            }
            row += height;
            if left == 1 || row - finished >= ACTIVATED {
                // SAFETY: these rows of the panel are written, and in the part that this thread
                // alone computes.
                unsafe { self.activate(panel, finished..row) };
                finished = row;
            }
        }
    }

    /// Applies the activation function, if there is one.
    ///
    /// # Safety
    /// The rows of the panel are written, and no other thread reads or writes them.
    #[inline(always)]
    unsafe fn activate(self, panel: Panel<'_>, rows: Range<usize>) {
        let apply = |activation: Activation, xs: &mut [f32]| self.vector.activate(activation, xs);
        // SAFETY: as this function.
        unsafe { self.product.activate(&self.out, panel, &rows, apply) };
    }

    /// The distance from a row of activations to the next, in groups.
    #[inline(always)]
    fn stride(self) -> usize {
        if const { V::SPLIT } { split_width(self.product.groups) } else { self.product.groups }
    }

    /// The groups of a row of activations.
    #[inline(always)]
    fn row(self, row: usize) -> &'a [V::Group] {
        &self.product.lhs[row * self.stride()..][..self.product.groups]
    }

    /// Takes one group of inputs: `NV` loads, `MR` broadcasts, `MR * NV` dot products.
    ///
    /// # Safety
    /// `rows` and `weights` have that group.
    // Indices name the same place in several arrays.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    unsafe fn step<const NV: usize, const MR: usize>(
        self,
        acc: &mut [[V::Acc; NV]; MR],
        rows: &[&[V::Group]; MR],
        weights: &[[[u8; BYTES]; NV]],
        group: usize,
    ) {
        // With checks, each row would have a branch: the compiler does not always see that the
        // lengths are the loop's.
        // SAFETY: the panel has that group.
        let weights = unsafe { weights.get_unchecked(group) };
        let b: [_; NV] = std::array::from_fn(|v| self.vector.load(&weights[v]));
        for r in 0..MR {
            // SAFETY: each row has that group.
            let a = self.vector.splat(unsafe { *rows[r].get_unchecked(group) });
            for v in 0..NV {
                acc[r][v] = self.vector.dot(acc[r][v], a, b[v]);
            }
        }
    }

    /// Takes the extras of rows. A loop over extras that takes all rows would have sums on the stack.
    ///
    /// # Safety
    /// The rows are split for groups of these weights.
    #[inline(always)]
    unsafe fn extras<const NV: usize, const MR: usize>(
        self,
        acc: &mut [[V::Acc; NV]; MR],
        weights: &[[[u8; BYTES]; NV]],
        rows: [usize; MR],
    ) {
        let (stride, groups) = (self.stride(), self.product.groups);
        for r in 0..MR {
            let row = &self.product.lhs[rows[r] * stride + groups..][..stride - groups];
            for extra in 0..self.product.parameters(rows[r]).extras as usize {
                // SAFETY: the row has as many extras, of groups that the weights have.
                let (codes, weights) = unsafe {
                    let group = row.get_unchecked(2 * extra).of_extra();
                    (*row.get_unchecked(2 * extra + 1), weights.get_unchecked(group))
                };
                let a = self.vector.splat(codes);
                for v in 0..NV {
                    acc[r][v] = self.vector.dot(acc[r][v], a, self.vector.load(&weights[v]));
                }
            }
        }
    }

    /// Computes `MR` rows by `NV` registers; for a single row the weights that come soon are
    /// fetched unless they are `NEAR`.
    ///
    /// One row alone has too few sums to hide the latency of a dot product: even and odd groups of
    /// inputs are summed separately, where the order of a sum does not matter.
    ///
    /// # Safety
    /// No other thread writes these rows of this panel.
    // Indices name the same place in several arrays.
    #[allow(clippy::needless_range_loop)]
    // V8 allocates the registers of a function as a whole: with all tiles in one, a third of the
    // inner loops' instructions were accesses to the stack.
    #[cfg_attr(target_arch = "wasm32", inline(never))]
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    unsafe fn tile<const NV: usize, const MR: usize, const NEAR: bool>(
        self,
        panel: Panel<'_>,
        ahead: &[u8],
        first_row: usize,
    ) {
        let groups = self.product.groups;
        // Slices of one length, so that one check of a group holds for all rows.
        let rows: [_; MR] = std::array::from_fn(|r| self.row(first_row + r));
        let rows = two_bases(rows, self.product.lhs, first_row, [groups, self.stride()]);
        let weights = &panel.groups::<BYTES, NV>()[..groups];

        let channels = panel.channels::<LANES, NV>(0);
        let of_rows: [_; MR] = std::array::from_fn(|r| self.product.parameters(first_row + r));
        let mut acc = [[self.vector.start(Row::PLAIN, channels[0]); NV]; MR];
        for r in 0..MR {
            for v in 0..NV {
                acc[r][v] = self.vector.start(*of_rows[r], channels[v]);
            }
        }
        let mut group = 0;
        if const { MR == 1 && V::Group::EXACT } {
            let mut odd = [channels.map(|channels| self.vector.start(Row::PLAIN, channels)); MR];
            while group + 1 < groups {
                for (acc, group) in [(&mut acc, group), (&mut odd, group + 1)] {
                    if !NEAR {
                        fetch(weights, group);
                    }
                    // SAFETY: both are below `groups`.
                    unsafe { self.step(acc, &rows, weights, group) };
                }
                group += 2;
            }
            for r in 0..MR {
                for v in 0..NV {
                    acc[r][v] = self.vector.add(acc[r][v], odd[r][v]);
                }
            }
        }
        while group < groups {
            if MR > 1 {
                prefetch::<2>(ahead.as_ptr(), group * LINE);
            }
            // SAFETY: it is below `groups`.
            unsafe { self.step(&mut acc, &rows, weights, group) };
            group += 1;
        }
        if const { V::SPLIT } {
            // SAFETY: the rows are split for these weights.
            unsafe { self.extras(&mut acc, weights, std::array::from_fn(|r| first_row + r)) };
        }
        // SAFETY: the tile is in the part that this thread alone computes.
        unsafe { self.store(panel, first_row, acc, of_rows) };
    }

    /// Computes all rows of one panel of `NV` registers, a block of inputs of several rows after
    /// another; on the way the weights of the `next` panel are fetched.
    ///
    /// # Safety
    /// No other thread writes these rows of this panel.
    #[inline(always)]
    unsafe fn blocks<const NV: usize>(self, panel: Panel<'_>, next: &[u8], rows: Range<usize>) {
        let groups = self.product.groups;
        let weights = &panel.groups::<BYTES, NV>()[..groups];
        let channels = panel.channels::<LANES, NV>(0);
        let zeros = channels.map(|channels| self.vector.start(Row::PLAIN, channels));
        for (chunk, first) in rows.clone().step_by(ROWS).enumerate() {
            let count = ROWS.min(rows.end - first);
            let ahead = next.get(chunk * groups * LINE..).unwrap_or(panel.weights);
            if rows.len() > 1 && self.out.exceeds_l2() {
                // SAFETY: the rows of the panel are in the part that this thread alone computes.
                unsafe { claim(&self.out, panel, first..first + count) };
            }
            let mut totals = [zeros; ROWS];
            for start in (0..groups).step_by(V::Group::BLOCK) {
                let block = start..groups.min(start + V::Group::BLOCK);
                if count > 1 {
                    for group in block.clone() {
                        prefetch::<2>(ahead.as_ptr(), group * LINE);
                    }
                }
                let mut row = 0;
                while row < count {
                    let sums = (zeros, &mut totals[row..]);
                    let lhs = (first + row, block.clone());
                    // SAFETY: the panel and the rows have those groups.
                    row += unsafe {
                        match count - row {
                            1 => self.sum::<NV, 1>(sums, weights, lhs),
                            _ => self.sum::<NV, 2>(sums, weights, lhs),
                        }
                    };
                }
            }
            for (row, total) in totals.into_iter().enumerate().take(count) {
                // SAFETY: the row and the panel are in the part that this thread alone computes.
                unsafe { self.store(panel, first + row, [total], [&Row::PLAIN]) };
            }
            // SAFETY: the same; the rows are written.
            unsafe { self.activate(panel, first..first + count) };
        }
    }

    /// Adds the products of a block of inputs to the totals of `MR` rows, which it returns.
    ///
    /// # Safety
    /// The rows from the first of `lhs` on and `weights` have its groups.
    // Indices name the same place in several arrays.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    unsafe fn sum<const NV: usize, const MR: usize>(
        self,
        (zeros, totals): ([V::Acc; NV], &mut [[V::Acc; NV]]),
        weights: &[[[u8; BYTES]; NV]],
        lhs: (usize, Range<usize>),
    ) -> usize {
        let (first, block) = lhs;
        let rows: [_; MR] = std::array::from_fn(|r| self.row(first + r));
        let mut acc = [zeros; MR];
        for group in block {
            if MR == 1 {
                fetch(weights, group);
            }
            // SAFETY: each has that group.
            unsafe { self.step(&mut acc, &rows, weights, group) };
        }
        for r in 0..MR {
            for v in 0..NV {
                totals[r][v] = self.vector.fold(totals[r][v], acc[r][v]);
            }
        }
        MR
    }

    /// Computes one row by `NV` registers of each of several panels.
    ///
    /// Separate from `tile`: sums in arrays of arrays of arrays, with one panel or with several,
    /// would not stay in registers.
    ///
    /// # Safety
    /// No other thread writes this row of these panels.
    #[inline(always)]
    unsafe fn abreast<const NV: usize>(self, panels: [Panel<'_>; ABREAST], row: usize) {
        let groups = self.product.groups;
        let rows = [self.row(row)];
        let weights = panels.map(|panel| &panel.groups::<BYTES, NV>()[..groups]);
        let mut acc = panels.map(|panel| {
            let channels = panel.channels::<LANES, NV>(0);
            [channels.map(|channels| self.vector.start(Row::PLAIN, channels))]
        });
        for group in 0..groups {
            for (acc, weights) in acc.iter_mut().zip(weights) {
                fetch(weights, group);
                // SAFETY: it is below `groups`, which is the length of each.
                unsafe { self.step(acc, &rows, weights, group) };
            }
        }
        for (acc, panel) in acc.into_iter().zip(panels) {
            // SAFETY: the row and the panels are in the part that this thread alone computes.
            unsafe { self.store(panel, row, acc, [&Row::PLAIN]) };
        }
    }

    /// Finishes and stores the sums of a tile.
    ///
    /// # Safety
    /// No other thread writes these rows of this panel.
    // Indices name the same place in several arrays.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    unsafe fn store<const NV: usize, const MR: usize>(
        self,
        panel: Panel<'_>,
        first_row: usize,
        acc: [[V::Acc; NV]; MR],
        of_rows: [&Row; MR],
    ) {
        let channels = panel.channels::<LANES, NV>(0);
        let columns = self.out.columns(panel);
        let width = columns.len();
        // SAFETY: the tile is in the part that this thread alone computes.
        let mut out = unsafe { self.out.rows(first_row..first_row + MR, columns) };
        if width == NV * LANES {
            for r in 0..MR {
                // SAFETY: there are `MR` rows.
                let out = unsafe { out.row(r) };
                for (v, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(NV) {
                    self.vector.finish(acc[r][v], *of_rows[r], channels[v], out);
                }
            }
            return;
        }
        // Padding channels are computed like the others and not stored.
        let mut padded = [[[MaybeUninit::uninit(); LANES]; NV]; MR];
        for r in 0..MR {
            for v in 0..NV {
                self.vector.finish(acc[r][v], *of_rows[r], channels[v], &mut padded[r][v]);
            }
        }
        for (r, values) in padded.iter().enumerate() {
            // SAFETY: there are `MR` rows.
            let out = unsafe { out.row(r) };
            out.copy_from_slice(&values.as_flattened()[..out.len()]);
        }
    }

    /// Computes some windows by whole panels, one of each tap.
    ///
    /// # Safety
    /// No other thread writes these rows of these panels.
    #[inline(always)]
    unsafe fn windows<const NV: usize, const MR: usize, const EXACT: bool>(
        self,
        windows: Windows<'_>,
        (rows, panels): (Range<usize>, Range<usize>),
    ) {
        for panel in panels.step_by(windows.taps.len().max(1)) {
            let registers = self.product.rhs.panel(panel).sums.len() / LANES;
            let mut row = rows.start;
            while row < rows.end {
                let left = rows.end - row;
                // The last windows are computed twice, with the same bits, in a full tile.
                let (first, is_full) = if left >= MR || rows.len() < MR {
                    (row, left >= MR)
                } else {
                    (rows.end - MR, true)
                };
                // SAFETY: the rows and the panel are in the part that this thread alone computes.
                unsafe {
                    match (registers, is_full) {
                        (4, true) if const { NV >= 4 } => {
                            self.window_tile::<4, MR, EXACT>(windows, panel, first);
                        }
                        (4, false) if const { NV >= 4 } => {
                            self.window_tile::<4, 1, EXACT>(windows, panel, first);
                        }
                        (3, true) if const { NV >= 3 } => {
                            self.window_tile::<3, MR, EXACT>(windows, panel, first);
                        }
                        (3, false) if const { NV >= 3 } => {
                            self.window_tile::<3, 1, EXACT>(windows, panel, first);
                        }
                        (2, true) => self.window_tile::<2, MR, EXACT>(windows, panel, first),
                        (2, false) => self.window_tile::<2, 1, EXACT>(windows, panel, first),
                        (_, true) => self.window_tile::<1, MR, EXACT>(windows, panel, first),
                        (_, false) => self.window_tile::<1, 1, EXACT>(windows, panel, first),
                    }
                }
                row = first + if is_full { MR } else { 1 };
            }
            // SAFETY: as this function; the rows of the panel are written.
            unsafe { self.activate(self.product.rhs.panel(panel), rows.clone()) };
        }
    }

    /// Computes `MR` windows by `NV` registers.
    ///
    /// # Safety
    /// No other thread writes these rows of this panel.
    // Indices name the same place in several arrays.
    #[allow(clippy::needless_range_loop)]
    #[cfg_attr(target_arch = "wasm32", inline(never))]
    #[cfg_attr(not(target_arch = "wasm32"), inline(always))]
    unsafe fn window_tile<const NV: usize, const MR: usize, const EXACT: bool>(
        self,
        windows: Windows<'_>,
        first_panel: usize,
        first_row: usize,
    ) {
        let groups = self.product.groups;
        let starts: [_; MR] =
            std::array::from_fn(|r| windows.starts[first_row + r] - windows.first);
        // The panels of all taps lie one behind the other.
        let panels = (self.product.rhs).panels_from(first_panel, windows.taps.len());
        let weights = panels.groups::<BYTES, NV>();
        let bias = panels.channels::<LANES, NV>(0).map(|c| *c.bias);
        let mut results = [bias; MR];
        let channels = panels.channels::<LANES, NV>(0);
        let mut acc = [[self.vector.start(Row::PLAIN, channels[0]); NV]; MR];
        let mut scaled = [Row { scale: -0., ..Row::PLAIN }; MR];
        for (tap, offset) in windows.taps.iter().enumerate() {
            let channels = panels.channels::<LANES, NV>(tap * NV * LANES);
            let weights = &weights[tap * groups..][..groups];
            let rows: [_; MR] = std::array::from_fn(|r| self.row(starts[r] + offset));
            let of_rows: [_; MR] =
                std::array::from_fn(|r| *self.product.parameters(starts[r] + offset));
            for r in 0..MR {
                // A position of padding has the scale -0.
                let has_scale = !(of_rows[r].scale == 0. || scaled[r].scale.is_nan());
                if has_scale || !EXACT {
                    scaled[r] = of_rows[r];
                }
                for v in 0..NV {
                    let start = self.vector.start(of_rows[r], channels[v]);
                    acc[r][v] =
                        if EXACT && tap > 0 { self.vector.add(acc[r][v], start) } else { start };
                }
            }
            for group in 0..groups {
                // SAFETY: it is below `groups`.
                unsafe { self.step(&mut acc, &rows, weights, group) };
            }
            if const { V::SPLIT } {
                // SAFETY: the rows are split for these weights.
                unsafe { self.extras(&mut acc, weights, starts.map(|start| start + offset)) };
            }
            if EXACT && tap + 1 < windows.taps.len() {
                continue;
            }
            for r in 0..MR {
                for v in 0..NV {
                    let before = results[r][v];
                    let channels = Channels { bias: &before, ..channels[v] };
                    if let Some(out) = as_uninit(&mut results[r][v]).as_mut_array() {
                        self.vector.finish(acc[r][v], scaled[r], channels, out);
                    }
                }
            }
        }
        let columns = self.out.columns(self.product.rhs.panel(first_panel));
        // SAFETY: the tile is in the part that this thread alone computes.
        let mut out = unsafe { self.out.rows(first_row..first_row + MR, columns) };
        for (r, values) in results.iter_mut().enumerate() {
            // SAFETY: there are `MR` rows.
            let out = unsafe { out.row(r) };
            // Padding channels are computed like the others and not stored.
            out.copy_from_slice(&as_uninit(values.as_flattened_mut())[..out.len()]);
        }
    }
}
