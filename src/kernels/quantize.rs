//! Activations on their way to the product: ranges, parameters and codes of all rows.

use std::cell::Cell;

use super::buffer::Shared;
use super::parallel::Threads;
use super::product::Row;
use super::rows::{Range, Rounding, RowParams};
use super::{Instance, Operands, TASKS_PER_THREAD};

/// Which rows share a range, and so a scale and zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// All rows of a call; rows that are not finite have no part in it.
    Together,
    /// None: each row has its own.
    Apart,
}

/// How activations become u8 codes.
#[derive(Clone, Copy)]
pub struct Quantizer<'a> {
    /// Which rows share their parameters.
    pub rows: Rows,
    /// How a code is rounded.
    pub rounding: Rounding,
    /// The parameters for a range.
    pub calculate_qparams: &'a (dyn Fn(Range) -> RowParams + Sync),
}

/// What a product needs beside its operands, kept from call to call: clearing new memory costs
/// as much as filling it.
#[derive(Debug, Default)]
pub struct Scratch {
    groups: Vec<[u8; 4]>,
    rows: Vec<Row>,
    ranges: Vec<Range>,
}

impl Scratch {
    /// This thread's. A nested call, as rayon can make one, finds an empty one and fills it.
    pub fn take() -> Self {
        SCRATCH.take()
    }

    /// Gives it back for the next call.
    pub fn keep(self) {
        if self.groups.len() <= KEPT_GROUPS {
            SCRATCH.set(self);
        }
    }

    /// Room for that many rows and groups.
    pub(super) fn room(&mut self, rows: usize, groups: usize) -> QuantizedRows<'_> {
        if self.groups.len() < groups {
            self.groups.resize(groups, [0; 4]);
        }
        if self.rows.len() < rows {
            self.rows.resize(rows, NOT_FINITE);
            self.ranges.resize(rows, Range::EMPTY);
        }
        QuantizedRows {
            groups: &mut self.groups[..groups],
            rows: &mut self.rows[..rows],
            ranges: &mut self.ranges[..rows],
        }
    }
}

/// Room for rows of groups, which are codes unless they are floats.
pub(super) struct QuantizedRows<'a, G = [u8; 4]> {
    pub groups: &'a mut [G],
    pub rows: &'a mut [Row],
    pub ranges: &'a mut [Range],
}

impl<'a, G> QuantizedRows<'a, G> {
    /// The same for several threads: groups, rows and ranges.
    pub fn shared(self) -> (Shared<'a, G>, Shared<'a, Row>, Shared<'a, Range>) {
        let Self {
            groups,
            rows,
            ranges,
        } = self;
        (Shared::new(groups), Shared::new(rows), Shared::new(ranges))
    }

    /// The room of the first `rows`, which is no longer in `self`.
    pub fn split_off(&mut self, rows: usize, groups_of_row: usize) -> Self {
        fn first<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
            let (first, rest) = std::mem::take(slice).split_at_mut(count);
            *slice = rest;
            first
        }
        Self {
            groups: first(&mut self.groups, rows * groups_of_row),
            rows: first(&mut self.rows, rows),
            ranges: first(&mut self.ranges, rows),
        }
    }
}

/// A row that is not finite: its scale makes it NaN throughout.
const NOT_FINITE: Row = Row {
    scale: f32::NAN,
    zero_point: 0,
    sum: 0,
};

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// Greatest buffer of groups that is kept: 16 MiB.
const KEPT_GROUPS: usize = 4 << 20;

/// Activations below which their quantization stays on the caller's thread.
const SERIAL_ACTIVATIONS: usize = 16_384;

/// Activations whose ranges are taken before their codes: half of a small L1.
const BLOCK: usize = 4_096;

/// Quantizes the rows of `operands.lhs` to `room`, with sums of codes if asked.
pub(super) fn quantize_rows<'a>(
    threads: &Threads,
    operands: Operands<'_>,
    quantizer: Quantizer<'_>,
    sums: bool,
    room: QuantizedRows<'a>,
) -> (&'a [[u8; 4]], &'a [Row]) {
    let Operands { lhs, m, .. } = operands;
    let work = Work::new(operands, quantizer, sums);
    if lhs.len() < SERIAL_ACTIVATIONS || work.k == 0 {
        return work.alone(lhs, room);
    }
    let tasks = m.min(TASKS_PER_THREAD * threads.count());
    let height = m.div_ceil(tasks.max(1)).max(1);
    let together = match quantizer.rows {
        Rows::Apart => None,
        Rows::Together => {
            let ranges = room.ranges.chunks_mut(height);
            let chunks = lhs.chunks(height * work.k).zip(ranges);
            threads.for_each_item(chunks, |(lhs, ranges)| work.measure(lhs, ranges));
            Some(work.together(room.ranges))
        }
    };
    let chunks = lhs.chunks(height * work.k);
    let chunks = chunks.zip(room.ranges.chunks_mut(height));
    let chunks = chunks.zip(room.groups.chunks_mut(height * work.groups));
    let chunks = chunks.zip(room.rows.chunks_mut(height));
    threads.for_each_item(chunks, |(((lhs, ranges), groups), rows)| {
        work.encode(lhs, (groups, rows, ranges), together);
    });
    (room.groups, room.rows)
}

/// [`quantize_rows`] on this thread.
pub(super) fn quantize_alone<'a>(
    operands: Operands<'_>,
    quantizer: Quantizer<'_>,
    sums: bool,
    room: QuantizedRows<'a>,
) -> (&'a [[u8; 4]], &'a [Row]) {
    Work::new(operands, quantizer, sums).alone(operands.lhs, room)
}

/// What is done to rows, some at a time.
struct Work<'a> {
    quantizer: Quantizer<'a>,
    instance: Instance,
    /// Activations and groups of a row.
    k: usize,
    groups: usize,
    sums: bool,
}

impl<'a> Work<'a> {
    fn new(operands: Operands<'_>, quantizer: Quantizer<'a>, sums: bool) -> Self {
        Self {
            quantizer,
            instance: operands.rhs.isa().instance(),
            k: operands.rhs.k(),
            groups: operands.rhs.groups(),
            sums,
        }
    }

    /// All of it on this thread.
    fn alone<'r>(&self, lhs: &[f32], room: QuantizedRows<'r>) -> (&'r [[u8; 4]], &'r [Row]) {
        let QuantizedRows {
            groups,
            rows,
            ranges,
        } = room;
        if self.k == 0 {
            rows.fill(self.row(self.params(Range::EMPTY)));
            return (groups, rows);
        }
        let together = match self.quantizer.rows {
            Rows::Apart => None,
            Rows::Together => {
                self.measure(lhs, ranges);
                Some(self.together(ranges))
            }
        };
        self.encode(lhs, (groups, rows, ranges), together);
        (groups, rows)
    }

    fn params(&self, range: Range) -> RowParams {
        (self.quantizer.calculate_qparams)(range)
    }

    fn row(&self, params: RowParams) -> Row {
        Row {
            scale: params.scale,
            zero_point: params.zero_point,
            sum: 0,
        }
    }

    /// The range of each row.
    fn measure(&self, lhs: &[f32], ranges: &mut [Range]) {
        for (lhs, range) in lhs.chunks_exact(self.k).zip(ranges) {
            *range = (self.instance.range)(lhs);
        }
    }

    /// The parameters that rows of these ranges share.
    fn together(&self, ranges: &[Range]) -> RowParams {
        let finite = ranges.iter().filter(|range| range.finite);
        self.params(finite.fold(Range::EMPTY, |all, range| all.union(*range)))
    }

    /// The codes of each row, by the parameters that all share or its own.
    fn encode(
        &self,
        lhs: &[f32],
        (groups, rows, ranges): (&mut [[u8; 4]], &mut [Row], &mut [Range]),
        together: Option<RowParams>,
    ) {
        // Ranges of several rows, then their codes: a row's divisions, one after the other, would
        // take as long as its codes if they had to wait for them.
        let block = (BLOCK / self.k).max(1);
        let blocks = lhs.chunks(block * self.k);
        let blocks = blocks.zip(ranges.chunks_mut(block));
        let blocks = blocks.zip(groups.chunks_mut(block * self.groups));
        for (((lhs, ranges), groups), rows) in blocks.zip(rows.chunks_mut(block)) {
            if together.is_none() {
                self.measure(lhs, ranges);
            }
            for (range, row) in ranges.iter().zip(&mut *rows) {
                *row = match range.finite {
                    true => self.row(together.unwrap_or_else(|| self.params(*range))),
                    false => NOT_FINITE,
                };
            }
            let rows = lhs.chunks_exact(self.k).zip(rows);
            for ((lhs, row), groups) in rows.zip(groups.chunks_exact_mut(self.groups)) {
                if row.scale.is_nan() {
                    continue;
                }
                let codes = &mut groups.as_flattened_mut()[..self.k];
                let params = RowParams {
                    scale: row.scale,
                    zero_point: row.zero_point,
                };
                (self.instance.quantize)(lhs, params, self.quantizer.rounding, codes);
                if self.sums {
                    row.sum = (self.instance.sum)(codes);
                }
            }
        }
    }
}
