//! Back to f32: rows of codes and of halves, for tables that are looked up.
//!
//! A row is handed out a chunk at a time, so that whoever reads it into another dtype needs no
//! buffer of its own.

use half::f16;

use super::parallel::Threads;
use super::{Isa, TASKS_PER_THREAD};
use crate::sizes;

/// What the codes of a row stand for: `fma(code - shift, scale, offset)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Taken from every code, exactly.
    pub shift: i32,
    /// What one step of a code is worth.
    pub scale: f32,
    /// Added to every product, in one rounding with it.
    pub offset: f32,
}

/// Elements of a chunk: what fits the cache beside what it is made of.
pub(super) const CHUNK: usize = 256;

/// Calls `sink` with what the codes of a row stand for, chunk by chunk, as
/// [`reference::dequantize_row`](super::reference::dequantize_row) says.
pub fn dequantize_row(isa: Isa, codes: &[u8], affine: Affine, mut sink: impl FnMut(&[f32])) {
    let dequantize = isa.instance().dequantize;
    let mut values = [0.; CHUNK];
    for codes in codes.chunks(CHUNK) {
        let values = &mut values[..codes.len()];
        dequantize(codes, affine, values);
        sink(values);
    }
}

/// Calls `sink` with the halves of a row as f32, chunk by chunk.
pub fn widen_row(isa: Isa, halves: &[f16], mut sink: impl FnMut(&[f32])) {
    let widen = isa.instance().widen;
    let mut values = [0.; CHUNK];
    for halves in halves.chunks(CHUNK) {
        let values = &mut values[..halves.len()];
        widen(halves, values);
        sink(values);
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
    let tasks = match out.len() < SERIAL_ELEMENTS {
        true => 1,
        false => rows.min(TASKS_PER_THREAD * threads.count()),
    };
    let height = rows.div_ceil(tasks.max(1)).max(1);
    let parts = out.chunks_mut(height * k).enumerate();
    threads.for_each_item(parts, |(part, rows)| {
        for (row, out) in rows.chunks_mut(k).enumerate() {
            write(part * height + row, out);
        }
    });
}

/// Elements below which rows stay on the caller's thread.
const SERIAL_ELEMENTS: usize = 65_536;

/// Elements taken at a time: two of the widest registers.
const LANES: usize = 32;

/// Writes what each code stands for.
#[inline(always)]
pub(super) fn dequantize(codes: &[u8], affine: Affine, out: &mut [f32]) {
    let shift = affine.shift as f32;
    let value = |code: u8| (f32::from(code) - shift).mul_add(affine.scale, affine.offset);
    let (codes, codes_rest) = codes.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for (codes, out) in codes.iter().zip(out) {
        for (code, out) in codes.iter().zip(out) {
            *out = value(*code);
        }
    }
    for (code, out) in codes_rest.iter().zip(out_rest) {
        *out = value(*code);
    }
}

/// Writes each half as f32, which is exact.
#[inline(always)]
pub(super) fn widen(halves: &[f16], out: &mut [f32]) {
    for (half, out) in halves.iter().zip(out) {
        *out = half.to_f32();
    }
}
