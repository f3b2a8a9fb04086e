//! Activations on their way to the product: extents, parameters and codes of all rows, or their
//! rounding.

use std::cell::Cell;
use std::ops::Range;

use crate::arch::Group;
use crate::arch::op::{Extents, Op};
use crate::isa::{Isa, Pairs};
use crate::loops::blocks::{self, RowBlock};
use crate::loops::number::Number;
use crate::loops::product::{Lhs, Pair, Row};
use crate::loops::rows::{self, Extent};
use crate::loops::{buffer, convert};
use crate::packed::{Element, Packed};
use crate::qparams::QParams;
use crate::qparams::activation::{DynamicConfig, Granularity};
use crate::threads::{Shared, TASKS_PER_THREAD, Threads};

/// Room for rows of groups, which are codes unless they are floats or pairs. Each thread keeps its
/// room from call to call: clearing new memory costs as much as filling it.
#[derive(Debug)]
pub struct Codes<G = [u8; 4]> {
    groups: Vec<G>,
    rows: Vec<Row>,
    extents: Vec<Extent>,
}

/// The room of some rows.
pub struct CodesMut<'a, G = [u8; 4]> {
    pub groups: &'a mut [G],
    pub rows: &'a mut [Row],
    pub extents: &'a mut [Extent],
}

/// The room of rows of which several threads quantize different ones.
#[derive(Clone, Copy)]
pub struct SharedCodes<'a, G> {
    groups: Shared<'a, G>,
    rows: Shared<'a, Row>,
    extents: Shared<'a, Extent>,
}

/// A row that is not finite: its scale makes it NaN throughout.
const NOT_FINITE: Row = Row {
    scale: f32::NAN,
    zero_point: 0,
    sum: 0,
};

thread_local! {
    static CODES: Cell<Codes> = Cell::default();
}

/// Max groups that are kept: 16 MiB.
const KEPT_GROUPS: usize = 4 << 20;

/// Activations below which they are quantized on the caller's thread.
const SERIAL_ELEMENTS: usize = 16_384;

/// Activations of the rows whose extents are taken before their codes: half of a small L1.
const BLOCK: usize = 4_096;

impl<G> Default for Codes<G> {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            rows: Vec::new(),
            extents: Vec::new(),
        }
    }
}

impl Codes {
    /// This thread's. A nested call, as rayon can make one, finds an empty one and fills it.
    pub fn take() -> Self {
        buffer::take(&CODES)
    }

    /// Gives it back for the next call.
    pub fn keep(self) {
        if self.groups.len() <= KEPT_GROUPS {
            buffer::keep(&CODES, self);
        }
    }
}

impl<G: Group> Codes<G> {
    /// Room for that many rows and groups.
    pub fn room(&mut self, rows: usize, groups: usize) -> CodesMut<'_, G> {
        if self.groups.len() < groups {
            self.groups.resize(groups, G::ZERO);
        }
        if self.rows.len() < rows {
            self.rows.resize(rows, Row::PLAIN);
            self.extents.resize(rows, Extent::EMPTY);
        }
        CodesMut {
            groups: &mut self.groups[..groups],
            rows: &mut self.rows[..rows],
            extents: &mut self.extents[..rows],
        }
    }

    /// The first rows, of `width` groups each.
    pub fn lhs(&self, rows: usize, width: usize) -> Lhs<'_, G> {
        Lhs {
            m: rows,
            groups: &self.groups[..rows * width],
            rows: &self.rows[..rows],
        }
    }
}

impl<'a, G> CodesMut<'a, G> {
    pub fn shared(self) -> SharedCodes<'a, G> {
        SharedCodes {
            groups: Shared::new(self.groups),
            rows: Shared::new(self.rows),
            extents: Shared::new(self.extents),
        }
    }

    fn reborrow(&mut self) -> CodesMut<'_, G> {
        CodesMut {
            groups: &mut *self.groups,
            rows: &mut *self.rows,
            extents: &mut *self.extents,
        }
    }

    /// The room of the first `rows`, which is no longer in `self`.
    pub fn split_off(&mut self, rows: usize, width: usize) -> Self {
        fn first<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
            let (first, rest) = std::mem::take(slice).split_at_mut(count);
            *slice = rest;
            first
        }
        Self {
            groups: first(&mut self.groups, rows * width),
            rows: first(&mut self.rows, rows),
            extents: first(&mut self.extents, rows),
        }
    }

    /// Itself in parts of `height` rows.
    #[inline(always)]
    fn chunks(self, height: usize, width: usize) -> impl Iterator<Item = Self> {
        let groups = self.groups.chunks_mut(height * width);
        let rows = self.rows.chunks_mut(height);
        let extents = self.extents.chunks_mut(height);
        let all = groups.zip(rows).zip(extents);
        all.map(|((groups, rows), extents)| Self {
            groups,
            rows,
            extents,
        })
    }

    /// The rows, all of whose groups are written.
    fn into_lhs(self) -> Lhs<'a, G> {
        Lhs {
            m: self.rows.len(),
            groups: self.groups,
            rows: self.rows,
        }
    }
}

impl<'a> CodesMut<'a> {
    /// This room, for pairs.
    pub fn pairs(self) -> CodesMut<'a, Pair> {
        let (bytes, _) = self.groups.as_flattened_mut().as_chunks_mut();
        let (groups, _) = bytes.as_chunks_mut();
        CodesMut {
            groups,
            rows: self.rows,
            extents: self.extents,
        }
    }

    /// This room, for blocks, each in the place of [`BLOCK_GROUPS`] groups.
    pub fn blocks(self) -> CodesMut<'a, RowBlock> {
        let (groups, _) = self.groups.as_chunks_mut();
        CodesMut {
            groups,
            rows: self.rows,
            extents: self.extents,
        }
    }
}

/// Groups in whose place a block is.
pub const BLOCK_GROUPS: usize = size_of::<RowBlock>() / size_of::<[u8; 4]>();

impl<'a, G> SharedCodes<'a, G> {
    /// Room of some rows, of `width` groups each, to write.
    ///
    /// # Safety
    /// No other part with one of these rows is alive.
    pub unsafe fn part(self, rows: Range<usize>, width: usize) -> CodesMut<'a, G> {
        // SAFETY: a row has equally many elements in each of the three, so parts that are disjoint
        // by rows are disjoint in each.
        unsafe {
            CodesMut {
                groups: self.groups.part(rows.start * width..rows.end * width),
                rows: self.rows.part(rows.clone()),
                extents: self.extents.part(rows),
            }
        }
    }

    /// The first rows, of `width` groups each, to read.
    ///
    /// # Safety
    /// No part to write with one of these rows is alive.
    pub unsafe fn lhs(self, rows: usize, width: usize) -> Lhs<'a, G> {
        // SAFETY: a row has equally many elements in both, and no part to write with one of these
        // rows is alive.
        unsafe {
            Lhs {
                m: rows,
                groups: self.groups.read(0..rows * width),
                rows: self.rows.read(0..rows),
            }
        }
    }
}

/// Rows to quantize for products with some weights, and the room for their codes.
pub struct Encode<'a> {
    isa: Isa,
    config: DynamicConfig,
    /// Activations and groups of a row.
    k: usize,
    width: usize,
    sums: bool,
    lhs: &'a [f32],
    room: CodesMut<'a>,
    /// The parameters that all rows share, if they do.
    common: Option<QParams>,
}

impl<'a> Encode<'a> {
    /// The rows of `lhs` for products with `rhs`, with `sums` of codes or without.
    pub fn new(
        rhs: &Packed,
        config: DynamicConfig,
        sums: bool,
        lhs: &'a [f32],
        room: CodesMut<'a>,
    ) -> Self {
        Self {
            isa: rhs.isa(),
            config,
            k: rhs.k(),
            width: rhs.groups(),
            sums,
            lhs,
            room,
            common: None,
        }
    }

    /// Quantizes the rows, on several threads if that is faster.
    pub fn quantize(mut self, threads: &Threads) -> Lhs<'a, [u8; 4]> {
        if self.lhs.len() < SERIAL_ELEMENTS || self.k == 0 {
            return self.quantize_alone();
        }
        let m = self.room.rows.len();
        let tasks = m.min(TASKS_PER_THREAD * threads.count());
        let height = m.div_ceil(tasks.max(1)).max(1);
        let (isa, k) = (self.isa, self.k);
        if self.config.granularity == Granularity::PerTensor {
            let parts = self.lhs.chunks(height * k);
            let parts = parts.zip(self.room.extents.chunks_mut(height));
            threads.for_each_item(parts, |(values, extents)| {
                isa.run(Extents { k, values, extents });
            });
            self.common = Some(self.common());
        }
        threads.for_each_item(self.parts(height), |part| isa.run(part));
        self.room.into_lhs()
    }

    /// [`quantize`](Self::quantize) on this thread.
    pub fn quantize_alone(mut self) -> Lhs<'a, [u8; 4]> {
        let (isa, k) = (self.isa, self.k);
        if k == 0 {
            let Extent { min, max, .. } = Extent::EMPTY;
            self.room.rows.fill(row(self.config.qparams(min, max)));
            return self.room.into_lhs();
        }
        if self.config.granularity == Granularity::PerTensor {
            let (values, extents) = (self.lhs, &mut *self.room.extents);
            isa.run(Extents { k, values, extents });
            self.common = Some(self.common());
        }
        let all = self.room.rows.len().max(1);
        self.parts(all).for_each(|part| isa.run(part));
        self.room.into_lhs()
    }

    /// The parameters that all rows share, by their extents: rows that are not finite have no part.
    fn common(&self) -> QParams {
        let finite = self.room.extents.iter().filter(|extent| extent.finite);
        let all = finite.fold(Extent::EMPTY, |all, extent| all.union(*extent));
        self.config.qparams(all.min, all.max)
    }

    /// Itself in parts of `height` rows.
    fn parts(&mut self, height: usize) -> impl Iterator<Item = Encode<'_>> {
        let Self { k, width, .. } = *self;
        let (isa, config, sums, common) = (self.isa, self.config, self.sums, self.common);
        let lhs = self.lhs.chunks(height * k);
        let parts = lhs.zip(self.room.reborrow().chunks(height, width));
        parts.map(move |(lhs, room)| Encode {
            isa,
            config,
            k,
            width,
            sums,
            lhs,
            room,
            common,
        })
    }
}

/// The codes of each row, by the parameters that all rows share or by its own.
impl Op for Encode<'_> {
    type Out = ();

    #[inline(always)]
    fn run<N: Number>(self) {
        let Self {
            config,
            k,
            width,
            sums,
            common,
            ..
        } = self;
        // Extents of several rows, then their codes: a row's divisions, one after the other, would
        // take as long as its codes if they had to wait for them.
        let block = (BLOCK / k).max(1);
        let blocks = self.lhs.chunks(block * k);
        for (lhs, room) in blocks.zip(self.room.chunks(block, width)) {
            if common.is_none() {
                let (values, extents) = (lhs, &mut *room.extents);
                Extents { k, values, extents }.run::<N>();
            }
            for (extent, to) in room.extents.iter().zip(&mut *room.rows) {
                *to = match (extent.finite, common) {
                    (false, _) => NOT_FINITE,
                    (true, Some(common)) => row(common),
                    (true, None) => row(config.qparams(extent.min, extent.max)),
                };
            }
            let rows = lhs.chunks_exact(k).zip(room.rows);
            for ((lhs, row), groups) in rows.zip(room.groups.chunks_exact_mut(width)) {
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

#[inline(always)]
fn row(qparams: QParams) -> Row {
    Row {
        scale: qparams.scale,
        zero_point: qparams.zero_point,
        sum: 0,
    }
}

/// Rows of `k` activations to round for products with some weights, and the room for their pairs.
pub struct Round<'a> {
    isa: Isa,
    k: usize,
    width: usize,
    pairs: Pairs,
    lhs: &'a [f32],
    room: CodesMut<'a, Pair>,
}

impl<'a> Round<'a> {
    pub fn new(rhs: &Packed, lhs: &'a [f32], room: CodesMut<'a, Pair>) -> Self {
        Self {
            isa: rhs.isa(),
            k: rhs.k(),
            width: rhs.groups(),
            pairs: rhs.pairs(),
            lhs,
            room,
        }
    }

    /// Rounds the rows, on several threads if that is faster.
    pub fn round(self, threads: &Threads) -> Lhs<'a, Pair> {
        if self.lhs.len() < SERIAL_ELEMENTS || self.k == 0 {
            return self.round_alone();
        }
        let (isa, k, width) = (self.isa, self.k, self.width);
        let m = self.room.rows.len();
        let tasks = m.min(TASKS_PER_THREAD * threads.count());
        let height = m.div_ceil(tasks.max(1)).max(1);
        let CodesMut { groups, rows, .. } = self.room;
        let pairs = self.pairs;
        let parts = self.lhs.chunks(height * k);
        let parts = parts.zip(groups.chunks_mut(height * width));
        threads.for_each_item(parts, |(lhs, groups)| {
            isa.run(RoundRows {
                k,
                width,
                pairs,
                lhs,
                groups,
            });
        });
        rows.fill(Row::PLAIN);
        Lhs { m, groups, rows }
    }

    /// [`round`](Self::round) on this thread.
    pub fn round_alone(self) -> Lhs<'a, Pair> {
        let Self {
            isa,
            k,
            width,
            pairs,
            lhs,
            room,
        } = self;
        isa.run(RoundRows {
            k,
            width,
            pairs,
            lhs,
            groups: &mut *room.groups,
        });
        room.rows.fill(Row::PLAIN);
        room.into_lhs()
    }
}

/// The rows of `lhs` as blocks for products with some weights, made on several threads if that is
/// faster.
pub fn blocks<'a>(
    threads: &Threads,
    rhs: &Packed,
    lhs: &[f32],
    room: CodesMut<'a, RowBlock>,
) -> Lhs<'a, RowBlock> {
    let (isa, k, width, m) = (rhs.isa(), rhs.k(), rhs.groups(), room.rows.len());
    if lhs.len() < SERIAL_ELEMENTS || k == 0 {
        return blocks_alone(rhs, lhs, room);
    }
    let tasks = m.min(TASKS_PER_THREAD * threads.count());
    let height = m.div_ceil(tasks.max(1)).max(1);
    let parts = lhs.chunks(height * k);
    let parts = parts.zip(room.groups.chunks_mut(height * width));
    let per_row = has_one_scale_a_row(rhs);
    threads.for_each_item(parts, |(rows, blocks)| {
        isa.run(EncodeBlocks {
            k,
            per_row,
            rows,
            blocks,
        });
    });
    room.into_lhs()
}

/// [`blocks`] on this thread.
pub fn blocks_alone<'a>(
    rhs: &Packed,
    rows: &[f32],
    room: CodesMut<'a, RowBlock>,
) -> Lhs<'a, RowBlock> {
    rhs.isa().run(EncodeBlocks {
        k: rhs.k(),
        per_row: has_one_scale_a_row(rhs),
        rows,
        blocks: &mut *room.groups,
    });
    room.into_lhs()
}

fn has_one_scale_a_row(rhs: &Packed) -> bool {
    matches!(rhs.element(), Element::Blocks { per_row: true, .. })
}

/// Codes with a scale for each block of a row, or for the whole row.
struct EncodeBlocks<'a> {
    k: usize,
    per_row: bool,
    rows: &'a [f32],
    blocks: &'a mut [RowBlock],
}

impl Op for EncodeBlocks<'_> {
    type Out = ();

    #[inline(always)]
    fn run<N: Number>(self) {
        blocks::encode_rows::<N>(self.k, self.rows, self.per_row, self.blocks);
    }
}

struct RoundRows<'a> {
    k: usize,
    width: usize,
    pairs: Pairs,
    lhs: &'a [f32],
    groups: &'a mut [Pair],
}

impl Op for RoundRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<N: Number>(self) {
        let k = self.k.max(1);
        let groups = self.groups.chunks_exact_mut(self.width.max(1));
        for (lhs, groups) in self.lhs.chunks_exact(k).zip(groups) {
            let (to, rest) = groups.as_flattened_mut().split_at_mut(k);
            convert::round_bf16(lhs, to);
            // The last pairs are filled up: any number may have been there.
            rest.fill([0; 2]);
            if self.pairs == Pairs::Alternate {
                convert::alternate(groups);
            }
        }
    }
}
