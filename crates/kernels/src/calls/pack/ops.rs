//! The loops of packing, as ops: values of a row to elements of a weight, and elements to their
//! places in a panel.

use std::marker::PhantomData;

use crate::arch::op::{Op, ops};
use crate::loops::convert;
use crate::loops::encode::{self, Coding, Half};
use crate::loops::number::Number;
use crate::packed::PanelMut;

/// Channels that are written side by side: their groups of int8 fill a cache line.
const LANES: usize = 16;

/// Bytes of each channel that are computed before they are written: all of them fit L1.
const BYTES: usize = 1024;

ops! {
    pub(super) fn distances(values: &'a [f32], coding: Coding) -> i64 {
        encode::distances(values, coding)
    }

    pub(super) fn encode_row(values: &'a [f32], coding: Coding, codes: &'a mut [u8]) {
        encode::encode(values, coding, codes);
    }
}

/// The elements of a packed weight from values of a row.
pub trait ElementSource<T> {
    /// Bytes of an element.
    const BYTES: usize;

    /// Writes the bytes of one element for each value.
    fn write(&self, row: usize, values: &[T], out: &mut [u8]) -> PackedRow;
}

/// Properties of a row's elements, found while they are packed.
#[derive(Clone, Copy, Default)]
pub struct PackedRow {
    /// The sum of codes less their zero point; 0 of halves.
    pub sum: i32,
    /// How many values were beyond the range of halves.
    pub saturated: usize,
}

/// Codes by the coding of each row.
pub(super) struct Codings(pub Vec<Coding>);

impl ElementSource<f32> for Codings {
    const BYTES: usize = 1;

    #[inline(always)]
    fn write(&self, row: usize, values: &[f32], out: &mut [u8]) -> PackedRow {
        PackedRow { sum: encode::encode(values, self.0[row], out), saturated: 0 }
    }
}

/// Codes with the shift of an instruction set.
pub(super) struct ShiftedCodes<'a> {
    pub shift: u8,
    pub zero_points: &'a [i32],
}

impl ElementSource<i8> for ShiftedCodes<'_> {
    const BYTES: usize = 1;

    #[inline(always)]
    fn write(&self, row: usize, values: &[i8], out: &mut [u8]) -> PackedRow {
        let zero_point = self.zero_points[row];
        let mut sum = 0i32;
        for (code, out) in values.iter().zip(out) {
            sum = sum.wrapping_add(i32::from(*code) - zero_point);
            *out = code.cast_unsigned().wrapping_add(self.shift);
        }
        PackedRow { sum, saturated: 0 }
    }
}

/// Floats as halves.
pub(super) struct Halved<H>(pub PhantomData<H>);

impl<H: Half> ElementSource<f32> for Halved<H> {
    const BYTES: usize = 2;

    #[inline(always)]
    fn write(&self, row: usize, values: &[f32], out: &mut [u8]) -> PackedRow {
        let mut halves = [H::default(); BYTES / 2];
        let halves = &mut halves[..values.len()];
        let saturated = encode::halve(values, halves);
        Unchanged.write(row, halves, out);
        PackedRow { sum: 0, saturated }
    }
}

/// Halves as they are.
pub(super) struct Unchanged;

impl<H: Half> ElementSource<H> for Unchanged {
    const BYTES: usize = 2;

    #[inline(always)]
    fn write(&self, _: usize, values: &[H], out: &mut [u8]) -> PackedRow {
        let (out, _) = out.as_chunks_mut();
        for (half, out) in values.iter().zip(out) {
            *out = half.bytes();
        }
        PackedRow::default()
    }
}

/// Writes the elements of a panel's channels, in groups of `GROUP` bytes; returns how many were
/// beyond the range. Eight bytes are two pairs of alternate inputs.
pub(super) struct Pack<'a, const GROUP: usize, T, S> {
    pub k: usize,
    pub values: &'a [T],
    pub source: S,
    pub panel: PanelMut<'a>,
}

impl<const GROUP: usize, T, S: ElementSource<T>> Op for Pack<'_, GROUP, T, S> {
    type Out = usize;

    #[inline(always)]
    fn run<N: Number>(self) -> usize {
        let (k, mut panel) = (self.k, self.panel);
        if k == 0 {
            return 0;
        }
        let elements = BYTES / S::BYTES;
        let mut saturated = 0;
        let mut bytes = [[0; BYTES]; LANES];
        for (block, rows) in self.values.chunks(LANES * k).enumerate() {
            let lane = block * LANES;
            for first in (0..k).step_by(elements) {
                let values = elements.min(k - first);
                let (len, groups) = (values * S::BYTES, (values * S::BYTES).div_ceil(GROUP));
                for (i, (row, bytes)) in rows.chunks_exact(k).zip(&mut bytes).enumerate() {
                    let values = &row[first..][..values];
                    let written = self.source.write(lane + i, values, &mut bytes[..len]);
                    // Inputs that fill up the last group are zero.
                    bytes[len..groups * GROUP].fill(0);
                    if const { GROUP == 8 } {
                        let (halves, _) = bytes[..groups * GROUP].as_chunks_mut::<2>();
                        convert::alternate(halves.as_chunks_mut().0);
                    }
                    let sums = &mut panel.sums[lane + i];
                    *sums = sums.wrapping_add(written.sum);
                    saturated += written.saturated;
                }
                let rows = bytes.each_ref().map(|bytes| &bytes.as_chunks::<GROUP>().0[..groups]);
                panel.put(lane, first * S::BYTES / GROUP, rows);
            }
        }
        saturated
    }
}
