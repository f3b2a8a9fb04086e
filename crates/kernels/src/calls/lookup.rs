//! Rows of tables: codes and halves back to f32.
//!
//! A row is given a chunk at a time, so that a reader into another dtype needs no buffer.

use half::{bf16, f16};

use super::convert::widened;
use crate::arch::op::ops;
use crate::isa::Isa;
use crate::loops::dequantize;
use crate::packed::{Element, Packed};
use crate::reference::Affine;
use crate::sizes;
use crate::threads::Threads;

/// Elements of a chunk: it fits in L1 beside its codes.
const CHUNK: usize = 256;

/// Calls `sink` with the values of the codes of a row, chunk by chunk, as
/// [`reference::dequantize_row`](crate::reference::dequantize_row) says.
pub fn dequantize_row(isa: Isa, codes: &[u8], affine: Affine, mut sink: impl FnMut(&[f32])) {
    let mut values = [0.; CHUNK];
    for codes in codes.chunks(CHUNK) {
        let out = &mut values[..codes.len()];
        isa.run(dequantized(codes, affine, out));
        sink(&values[..codes.len()]);
    }
}

/// Calls `sink` with the halves of a row as f32, chunk by chunk.
pub fn widen_row<H: Widen>(isa: Isa, halves: &[H], mut sink: impl FnMut(&[f32])) {
    let mut values = [0.; CHUNK];
    for halves in halves.chunks(CHUNK) {
        let out = &mut values[..halves.len()];
        H::widen(isa, halves, out);
        sink(out);
    }
}

/// A half that becomes f32, which is exact.
pub trait Widen: Sized {
    fn widen(isa: Isa, halves: &[Self], out: &mut [f32]);
}

impl Widen for f16 {
    fn widen(isa: Isa, halves: &[Self], out: &mut [f32]) {
        isa.widen(halves, out);
    }
}

impl Widen for bf16 {
    fn widen(isa: Isa, values: &[Self], out: &mut [f32]) {
        isa.run(widened(values, out));
    }
}

/// Calls `sink` with the values of the weights of an output channel, chunk by chunk: a row of the
/// table where an embedding shares them.
///
/// # Panics
/// If `index` is out of range.
pub fn read_channel(weight: &Packed, index: usize, mut sink: impl FnMut(&[f32])) {
    let channel = weight.channel(index);
    let affine = channel.affine();
    for first in (0..weight.k()).step_by(CHUNK) {
        let len = CHUNK.min(weight.k() - first);
        match channel.element {
            Element::Int8(_) => {
                let mut codes = [[0; 4]; CHUNK / 4];
                channel.codes(first, &mut codes[..len.div_ceil(4)]);
                let codes = &codes.as_flattened()[..len];
                dequantize_row(weight.isa(), codes, affine, &mut sink);
            }
            Element::Float16 => {
                let halves = channel.halves(first..first + len).map(f16::from_le_bytes);
                widen_chunk(weight.isa(), halves, &mut sink);
            }
            Element::BFloat16 => {
                let halves = channel.halves(first..first + len).map(bf16::from_le_bytes);
                widen_chunk(weight.isa(), halves, &mut sink);
            }
            Element::Blocks { format, .. } => {
                let mut values = [0.; CHUNK];
                channel.values(format, first, &mut values[..len]);
                sink(&values[..len]);
            }
        }
    }
}

/// Calls `sink` with halves of up to a chunk as f32.
fn widen_chunk<H: Widen + Copy + Default>(
    isa: Isa,
    halves: impl ExactSizeIterator<Item = H>,
    sink: impl FnMut(&[f32]),
) {
    let (len, mut chunk) = (halves.len(), [H::default(); CHUNK]);
    for (to, half) in chunk.iter_mut().zip(halves) {
        *to = half;
    }
    widen_row(isa, &chunk[..len], sink);
}

ops! {
    fn dequantized(codes: &'a [u8], affine: Affine, out: &'a mut [f32]) {
        dequantize::dequantize(codes, affine, out);
    }
}

/// Calls `write` with the index of each row of `out`, `[rows, k]`, and the row; large ones on
/// all threads.
///
/// # Panics
/// If `out` has no whole rows.
pub fn for_each_row<T: Send>(out: &mut [T], k: usize, write: impl Fn(usize, &mut [T]) + Sync) {
    let rows = out.len().checked_div(k).unwrap_or(0);
    sizes::check("out, [rows, k]", out, &[rows, k]);
    if rows == 0 {
        return;
    }
    let threads = Threads::of_caller();
    let height = rows.div_ceil(threads.tasks(out.len(), SERIAL_ELEMENTS));
    let parts = out.chunks_mut(height * k).enumerate();
    threads.for_each_item(parts, |(part, rows)| {
        for (row, out) in rows.chunks_mut(k).enumerate() {
            write(part * height + row, out);
        }
    });
}

/// Elements below which rows stay on the caller's thread.
const SERIAL_ELEMENTS: usize = 65_536;
