//! Activations on their way to the product: extents, parameters and codes of all rows, or their
//! rounding.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crate::arch;
use crate::arch::op::{ops, take_extents};
use crate::isa::Isa;
use crate::loops::blocks::{self, RowBlock};
use crate::loops::product::{Group, Pair, Part, Product, Row, Sink};
use crate::loops::rows::{self, Extent};
use crate::loops::{buffer, convert, split};
use crate::packed::{Element, Packed, split_width};
use crate::qparams::QParams;
use crate::qparams::activation::DynamicConfig;
use crate::threads::{TASKS_PER_THREAD, Threads};

/// Room for rows of groups, which are codes unless they are floats or pairs, and for the parameters
/// of each row. Each thread keeps its room from call to call: clearing new memory costs as much as
/// filling it.
#[derive(Debug, Default)]
pub struct Codes<G = [u8; 4]> {
    groups: Vec<G>,
    rows: Vec<Row>,
}

/// A row that is not finite: its scale makes it NaN throughout.
const NOT_FINITE: Row = Row { scale: f32::NAN, ..Row::PLAIN };

thread_local! {
    static CODES: Cell<Codes> = Cell::default();
}

/// Max groups that are kept, without the room behind them: 16 MiB.
const KEPT_GROUPS: usize = 4 << 20;

/// Activations below which they are quantized on the caller's thread.
const SERIAL_ELEMENTS: usize = 16_384;

/// Activations of the rows whose extents are taken before their codes: half of a small L1.
const BLOCK: usize = 4_096;

/// Max rows whose extents are taken together.
const ROWS: usize = 32;

impl Codes {
    /// The memory of this thread. A nested call, as rayon can make one, finds it empty and fills
    /// it.
    pub fn take() -> Self {
        buffer::take(&CODES)
    }

    /// Keeps the memory for the next call of this thread.
    pub fn keep(self) {
        let has_room = Isa::active().is_ok_and(|isa| isa.registers().saturates);
        let max = if has_room { split_width(KEPT_GROUPS) } else { KEPT_GROUPS };
        if self.groups.len() <= max {
            buffer::keep(&CODES, self);
        }
    }

    /// Room for that many rows and groups of another kind.
    pub fn room_of<A: Activations>(
        &mut self,
        rows: usize,
        groups: usize,
    ) -> (&mut [A], &mut [Row]) {
        let (codes, rows) = self.room(rows, groups * size_of::<A>() / size_of::<[u8; 4]>());
        (A::of_codes(codes), rows)
    }
}

impl<G: Group> Codes<G> {
    /// Room for that many rows and groups.
    pub fn room(&mut self, rows: usize, groups: usize) -> (&mut [G], &mut [Row]) {
        let groups = buffer::grown(&mut self.groups, groups, G::default());
        (groups, buffer::grown(&mut self.rows, rows, Row::PLAIN))
    }
}

/// Groups that activations become for a product.
pub trait Activations: Group {
    /// Computes a part of a product of them.
    const KERNEL: unsafe fn(&Product<'_, Self>, &Sink<'_>, Part);

    /// Room of codes as room for these groups.
    fn of_codes(codes: &mut [[u8; 4]]) -> &mut [Self];

    /// Writes the rows of activations.
    fn write(from: Unencoded<'_>, room: (&mut [Self], &mut [Row]));
}

/// Activations that become groups for products with a weight.
#[derive(Clone, Copy)]
pub struct Unencoded<'a> {
    /// Threads that may share the rows.
    pub threads: Option<&'a Threads>,
    pub rhs: &'a Packed,
    /// Whether sums of codes are asked for.
    pub sums: bool,
    pub lhs: &'a [f32],
}

impl Unencoded<'_> {
    /// Calls `write` with rows of activations and the room for what they become: all on this
    /// thread, or parts on several threads if that is faster.
    fn each_part<G: Send>(
        self,
        (groups, rows): (&mut [G], &mut [Row]),
        write: impl Fn(&[f32], &mut [G], &mut [Row]) + Sync,
    ) {
        let Self { rhs, lhs, .. } = self;
        let Some(threads) = self.threads.filter(|_| lhs.len() >= SERIAL_ELEMENTS) else {
            return write(lhs, groups, rows);
        };
        let tasks = rows.len().min(TASKS_PER_THREAD * threads.count());
        let height = rows.len().div_ceil(tasks);
        let parts = lhs.chunks(height * rhs.k()).zip(rows.chunks_mut(height));
        let parts = parts.zip(groups.chunks_mut(height * rhs.row_groups()));
        threads.for_each_item(parts, |((lhs, rows), groups)| write(lhs, groups, rows));
    }
}

/// Codes.
impl Activations for [u8; 4] {
    const KERNEL: unsafe fn(&Product<'_, Self>, &Sink<'_>, Part) = arch::multiply;

    fn of_codes(codes: &mut [[u8; 4]]) -> &mut [Self] {
        codes
    }

    fn write(from: Unencoded<'_>, (groups, rows): (&mut [Self], &mut [Row])) {
        let Unencoded { rhs, sums, .. } = from;
        let Element::Int8(config) = rhs.element() else {
            unreachable!("codes of activations are for weights of int8");
        };
        let (isa, k) = (rhs.isa(), rhs.k());
        if k == 0 {
            return rows.fill(row_of(config, Extent::EMPTY));
        }
        let mut common = None;
        if !config.per_row {
            let all = Mutex::new(Extent::EMPTY);
            from.each_part((&mut *groups, &mut *rows), |lhs, _, rows| {
                let extent = extent_of_finite(isa, k, lhs, rows);
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                *all = all.union(extent);
            });
            let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
            common = Some(row_of(config, all));
        }
        from.each_part((groups, rows), |lhs, groups, rows| {
            encode(rhs, (config, sums, common), lhs, (groups, rows));
        });
    }
}

/// Writes the parameters and the codes of rows of activations, with `sums` or without; `common` are
/// the parameters that all rows share, if they do: rows that are not finite are marked.
pub fn encode(
    rhs: &Packed,
    (config, sums, common): (DynamicConfig, bool, Option<Row>),
    lhs: &[f32],
    (groups, rows): (&mut [[u8; 4]], &mut [Row]),
) {
    let (isa, k, width) = (rhs.isa(), rhs.k(), rhs.row_groups());
    isa.run(encode_rows(config, [k, width], sums, common, lhs, groups, rows));
    if rhs.splits() {
        isa.run(split_rows([k, rhs.groups(), width], groups, rows));
    }
}

/// The extent of the rows of `k` values that are finite; marks the others in `rows`.
pub fn extent_of_finite(isa: Isa, k: usize, values: &[f32], rows: &mut [Row]) -> Extent {
    let (mut all, mut extents) = (Extent::EMPTY, [Extent::EMPTY; ROWS]);
    for (values, rows) in values.chunks(ROWS * k).zip(rows.chunks_mut(ROWS)) {
        let extents = &mut extents[..rows.len()];
        isa.run(take_extents(k, values, extents));
        for (extent, row) in extents.iter().zip(rows) {
            *row = NOT_FINITE;
            if extent.finite {
                *row = Row::PLAIN;
                all = all.union(*extent);
            }
        }
    }
    all
}

ops! {
    /// Writes the parameters and the codes of each row of activations, in so many groups with the
    /// room behind them; `common` are the parameters that all rows share, if they do: rows that are
    /// not finite are marked.
    fn encode_rows(
        config: DynamicConfig,
        sizes: [usize; 2],
        sums: bool,
        common: Option<Row>,
        lhs: &'a [f32],
        groups: &'a mut [[u8; 4]],
        rows: &'a mut [Row],
    ) {
        let [k, width] = sizes;
        let mut extents = [Extent::EMPTY; ROWS];
        // Extents of several rows, then their codes: a row's divisions, one after the other, would
        // take as long as its codes if they had to wait for them.
        let block = (BLOCK / k).clamp(1, ROWS);
        let blocks = lhs.chunks(block * k).zip(rows.chunks_mut(block));
        for ((lhs, rows), groups) in blocks.zip(groups.chunks_mut(block * width)) {
            if let Some(common) = common {
                let finite = rows.iter_mut().filter(|row| !row.scale.is_nan());
                finite.for_each(|row| *row = common);
            } else {
                for (values, extent) in lhs.chunks_exact(k).zip(&mut extents) {
                    *extent = rows::extent(values);
                }
                for (extent, to) in extents.iter().zip(&mut *rows) {
                    *to = if extent.finite { row_of(config, *extent) } else { NOT_FINITE };
                }
            }
            let rows = lhs.chunks_exact(k).zip(rows);
            for ((lhs, row), groups) in rows.zip(groups.chunks_exact_mut(width)) {
                if row.scale.is_nan() {
                    continue;
                }
                let codes = &mut groups.as_flattened_mut()[..k];
                let qparams = QParams {
                    scale: row.scale,
                    zero_point: row.zero_point,
                };
                rows::quantize::<N>(lhs, qparams, config.arithmetic, codes);
                if sums {
                    row.sum = rows::sum(codes);
                }
            }
        }
    }
}

ops! {
    /// [Splits](split::split) rows of codes that are finite.
    fn split_rows(sizes: [usize; 3], groups: &'a mut [[u8; 4]], rows: &'a mut [Row]) {
        let [k, used, width] = sizes;
        for (row, codes) in rows.iter_mut().zip(groups.chunks_exact_mut(width)) {
            if !row.scale.is_nan() {
                split::split(codes, used, k, row);
            }
        }
    }
}

/// The parameters of rows of that extent, whose codes are not yet summed.
#[inline(always)]
pub fn row_of(config: DynamicConfig, extent: Extent) -> Row {
    let QParams { scale, zero_point } = config.qparams(extent.min, extent.max);
    Row { scale, zero_point, ..Row::PLAIN }
}

/// Factors in bfloat16.
impl Activations for Pair {
    const KERNEL: unsafe fn(&Product<'_, Self>, &Sink<'_>, Part) = arch::multiply_bf16;

    fn of_codes(codes: &mut [[u8; 4]]) -> &mut [Self] {
        let (bytes, _) = codes.as_flattened_mut().as_chunks_mut();
        bytes.as_chunks_mut().0
    }

    fn write(from: Unencoded<'_>, room: (&mut [Self], &mut [Row])) {
        let rhs = from.rhs;
        let (sizes, alternate) = ([rhs.k(), rhs.groups()], rhs.alternates());
        from.each_part(room, |lhs, groups, rows| {
            rhs.isa().run(round_rows(sizes, alternate, lhs, groups));
            rows.fill(Row::PLAIN);
        });
    }
}

/// Blocks, with a scale each or with one a row.
impl Activations for RowBlock {
    const KERNEL: unsafe fn(&Product<'_, Self>, &Sink<'_>, Part) = arch::multiply_blocks;

    fn of_codes(codes: &mut [[u8; 4]]) -> &mut [Self] {
        codes.as_chunks_mut().0
    }

    fn write(from: Unencoded<'_>, room: (&mut [Self], &mut [Row])) {
        let rhs = from.rhs;
        let per_row = matches!(rhs.element(), Element::Blocks { per_row: true, .. });
        from.each_part(room, |rows, blocks, _| {
            rhs.isa().run(encode_blocks(rhs.k(), per_row, rows, blocks));
        });
    }
}

ops! {
    /// Codes with a scale for each block of a row, or for the whole row.
    fn encode_blocks(k: usize, per_row: bool, rows: &'a [f32], blocks: &'a mut [RowBlock]) {
        blocks::encode_rows::<N>(k, rows, per_row, blocks);
    }

    /// Rounds rows of `[inputs, pairs]`.
    fn round_rows(sizes: [usize; 2], alternate: bool, lhs: &'a [f32], groups: &'a mut [Pair]) {
        let [k, width] = sizes.map(|size| size.max(1));
        for (lhs, groups) in lhs.chunks_exact(k).zip(groups.chunks_exact_mut(width)) {
            let (to, rest) = groups.as_flattened_mut().split_at_mut(k);
            convert::round_bf16(lhs, to);
            // The last pairs are filled up: any number may have been there.
            rest.fill([0; 2]);
            if alternate {
                convert::alternate(groups);
            }
        }
    }
}
