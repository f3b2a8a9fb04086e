//! Activations on their way to the product: extents, parameters and codes of all rows.

use std::cell::Cell;
use std::ops::Range;

use crate::kernels::arch::op::Op;
use crate::kernels::isa::Isa;
use crate::kernels::loops::product::{Group, Lhs, Row};
use crate::kernels::loops::rows::{self, Extent};
use crate::kernels::packed::Packed;
use crate::kernels::threads::{Shared, TASKS_PER_THREAD, Threads};
use crate::qparams::QParams;
use crate::qparams::activation::{DynamicConfig, Granularity};

/// Room for rows of groups, which are codes unless they are floats. That of a thread is kept from
/// call to call: clearing new memory costs as much as filling it.
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
        CODES.take()
    }

    /// Gives it back for the next call.
    pub fn keep(self) {
        if self.groups.len() <= KEPT_GROUPS {
            CODES.set(self);
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

    /// The same in parts of `height` rows.
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

    /// The rows, quantized.
    fn into_lhs(self) -> Lhs<'a, G> {
        Lhs {
            m: self.rows.len(),
            groups: self.groups,
            rows: self.rows,
        }
    }
}

impl<'a, G> SharedCodes<'a, G> {
    /// Room of some rows, of `width` groups each, to write.
    ///
    /// # Safety
    /// No other part with one of these rows is alive.
    pub unsafe fn part(self, rows: Range<usize>, width: usize) -> CodesMut<'a, G> {
        // SAFETY: the contract is that of each of the three.
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
        // SAFETY: the contract is that of both.
        unsafe {
            Lhs {
                m: rows,
                groups: self.groups.read(0..rows * width),
                rows: self.rows.read(0..rows),
            }
        }
    }
}

/// Makes codes of rows, for products with some weights.
#[derive(Clone, Copy)]
pub struct Encoder {
    isa: Isa,
    config: DynamicConfig,
    /// Activations and groups of a row.
    k: usize,
    width: usize,
    sums: bool,
}

impl Encoder {
    /// Of rows for products with `rhs`, with sums of codes if asked.
    pub fn new(rhs: &Packed, config: DynamicConfig, sums: bool) -> Self {
        Self {
            isa: rhs.isa(),
            config,
            k: rhs.k(),
            width: rhs.groups(),
            sums,
        }
    }

    /// Quantizes the rows of `lhs`, on several threads if that is faster.
    pub fn quantize<'a>(
        &self,
        threads: &Threads,
        lhs: &[f32],
        mut room: CodesMut<'a>,
    ) -> Lhs<'a, [u8; 4]> {
        if lhs.len() < SERIAL_ELEMENTS || self.k == 0 {
            return self.quantize_alone(lhs, room);
        }
        let m = room.rows.len();
        let tasks = m.min(TASKS_PER_THREAD * threads.count());
        let height = m.div_ceil(tasks.max(1)).max(1);
        let chunks = || lhs.chunks(height * self.k);
        let common = match self.config.granularity {
            Granularity::PerRow => None,
            Granularity::PerTensor => {
                let parts = chunks().zip(room.extents.chunks_mut(height));
                threads.for_each_item(parts, |(lhs, extents)| self.measure(lhs, extents));
                Some(self.common(room.extents))
            }
        };
        let parts = chunks().zip(room.reborrow().chunks(height, self.width));
        threads.for_each_item(parts, |(lhs, room)| self.encode(lhs, room, common));
        room.into_lhs()
    }

    /// [`quantize`](Self::quantize) on this thread.
    pub fn quantize_alone<'a>(&self, lhs: &[f32], mut room: CodesMut<'a>) -> Lhs<'a, [u8; 4]> {
        if self.k == 0 {
            room.rows.fill(row(self.qparams(Extent::EMPTY)));
            return room.into_lhs();
        }
        let common = match self.config.granularity {
            Granularity::PerRow => None,
            Granularity::PerTensor => {
                self.measure(lhs, room.extents);
                Some(self.common(room.extents))
            }
        };
        self.encode(lhs, room.reborrow(), common);
        room.into_lhs()
    }

    fn measure(&self, lhs: &[f32], extents: &mut [Extent]) {
        let k = self.k;
        self.isa.run(Measure { k, lhs, extents });
    }

    fn encode(&self, lhs: &[f32], room: CodesMut<'_>, common: Option<QParams>) {
        self.isa.run(Encode {
            encoder: *self,
            lhs,
            room,
            common,
        });
    }

    #[inline(always)]
    fn qparams(&self, extent: Extent) -> QParams {
        self.config.qparams(extent.min, extent.max)
    }

    /// The parameters that rows of these extents share: those that are not finite have no part.
    fn common(&self, extents: &[Extent]) -> QParams {
        let finite = extents.iter().filter(|extent| extent.finite);
        self.qparams(finite.fold(Extent::EMPTY, |all, extent| all.union(*extent)))
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

/// The extent of each row of `k` elements.
struct Measure<'a> {
    k: usize,
    lhs: &'a [f32],
    extents: &'a mut [Extent],
}

impl Op for Measure<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        for (lhs, extent) in self.lhs.chunks_exact(self.k).zip(self.extents) {
            *extent = rows::extent(lhs);
        }
    }
}

/// The codes of each row, by the parameters that all have in common or by its own.
struct Encode<'a> {
    encoder: Encoder,
    lhs: &'a [f32],
    room: CodesMut<'a>,
    common: Option<QParams>,
}

impl Op for Encode<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Encoder { k, width, .. } = self.encoder;
        // Extents of several rows, then their codes: a row's divisions, one after the other, would
        // take as long as its codes if they had to wait for them.
        let block = (BLOCK / k).max(1);
        let blocks = self.lhs.chunks(block * k);
        for (lhs, room) in blocks.zip(self.room.chunks(block, width)) {
            if self.common.is_none() {
                let extents = &mut *room.extents;
                Measure { k, lhs, extents }.run();
            }
            for (extent, to) in room.extents.iter().zip(&mut *room.rows) {
                *to = match (extent.finite, self.common) {
                    (false, _) => NOT_FINITE,
                    (true, Some(common)) => row(common),
                    (true, None) => row(self.encoder.qparams(*extent)),
                };
            }
            let rows = lhs.chunks_exact(k).zip(room.rows);
            for ((lhs, row), groups) in rows.zip(room.groups.chunks_exact_mut(width)) {
                if !row.scale.is_nan() {
                    let codes = &mut groups.as_flattened_mut()[..k];
                    self.encoder.encode_row(lhs, row, codes);
                }
            }
        }
    }
}

impl Encoder {
    #[inline(always)]
    fn encode_row(&self, lhs: &[f32], row: &mut Row, codes: &mut [u8]) {
        let qparams = QParams {
            scale: row.scale,
            zero_point: row.zero_point,
        };
        rows::quantize(lhs, qparams, self.config.arithmetic, codes);
        if self.sums {
            row.sum = rows::sum(codes);
        }
    }
}
