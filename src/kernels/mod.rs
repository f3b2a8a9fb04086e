//! The kernels: slices in, slices out, and the only place with `unsafe`.
//!
//! [`mod@reference`] says in plain loops what they compute; every instruction set gives the same
//! bits. [`linear`] is the one entry: it finds the range of the activations, quantizes them,
//! multiplies, dequantizes and adds the bias.

mod activation;
mod buffer;
mod float;
mod gates;
mod isa;
mod packed;
mod parallel;
mod pool;
mod portable;
pub mod reference;
mod rows;
mod split;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::cell::Cell;
use std::mem::MaybeUninit;

pub use activation::{Activation, activate};
pub use float::linear_f32;
pub use gates::{Gates, Step};
pub use isa::Isa;
pub use packed::{Int8, Packed};
pub use rows::{Range, Rounding, RowParams};

use isa::Kind;
use tile::{Group, Lhs, Output, Part, Product, Row};

/// Which rows share a range, and so a scale and zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// All rows of a call; rows that are not finite have no part in it.
    Together,
    /// None: each row has its own.
    Apart,
}

/// An instruction set's instance of the inner loops.
#[derive(Clone, Copy)]
struct Instance {
    range: fn(&[f32]) -> Range,
    quantize: fn(&[f32], RowParams, Rounding, &mut [u8]),
    sum: fn(&[u8]) -> i32,
    update: fn(Gates, Step<'_>),
    activate: fn(Activation, &mut [f32]),
    /// # Safety
    /// No other thread computes a part that overlaps.
    multiply: unsafe fn(&Product<'_, [u8; 4]>, Part),
    /// # Safety
    /// As of `multiply`.
    multiply_f16: unsafe fn(&Product<'_, f32>, Part),
}

impl Isa {
    fn instance(self) -> Instance {
        match self.0 {
            Kind::Portable => portable::INSTANCE,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => x86_64::AVX2,
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => x86_64::AVX_VNNI,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => x86_64::AVX512_VNNI,
        }
    }
}

/// The operands of a product: `lhs` is `[m, k]`, `rhs` is `[n, k]`.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Activations.
    pub lhs: &'a [f32],
    /// Rows of `lhs`.
    pub m: usize,
    /// Weights.
    pub rhs: &'a Packed,
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

/// `lhs`, quantized, times int8 `rhs`: `[m, n]`, dequantized, with bias.
///
/// A row that holds a NaN or an infinity is NaN throughout, and changes no other row. The result
/// does not depend on the instruction set or on the number of threads: it is that of
/// [`reference::linear`].
///
/// # Panics
/// If `lhs` does not have `m * k` elements.
pub fn linear(operands: Operands<'_>, quantizer: Quantizer<'_>) -> Vec<f32> {
    let [out] = linear_each([operands], quantizer);
    out
}

/// [`linear`] of several independent products, on all threads at once.
///
/// # Panics
/// As [`linear`].
pub fn linear_each<const N: usize>(
    operands: [Operands<'_>; N],
    quantizer: Quantizer<'_>,
) -> [Vec<f32>; N] {
    let mut scratch = Scratch::take();
    // SAFETY: `linear_uninit` writes every element.
    let outs = unsafe {
        filled(operands, |outs| {
            linear_uninit(operands, quantizer, &mut scratch, outs);
        })
    };
    scratch.keep();
    outs
}

/// [`linear`] into a buffer of `m * n` elements, without allocating anything but what `scratch`
/// lacks.
///
/// # Panics
/// If `lhs` does not have `m * k` elements, or `out` not `m * n`.
pub fn linear_into(
    operands: Operands<'_>,
    quantizer: Quantizer<'_>,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    linear_uninit([operands], quantizer, scratch, [as_uninit(out)]);
}

/// `lhs` times float16 `rhs`: `[m, n]`, with bias.
///
/// The result does not depend on the instruction set or on the number of threads: it is that of
/// [`reference::linear_f16`].
///
/// # Panics
/// If `lhs` does not have `m * k` elements.
pub fn linear_f16(operands: Operands<'_>) -> Vec<f32> {
    // SAFETY: `linear_f16_uninit` writes every element.
    let [out] = unsafe { filled([operands], |[out]| linear_f16_uninit(operands, out)) };
    out
}

/// [`linear_f16`] into a buffer of `m * n` elements.
///
/// # Panics
/// If `lhs` does not have `m * k` elements, or `out` not `m * n`.
pub fn linear_f16_into(operands: Operands<'_>, out: &mut [f32]) {
    linear_f16_uninit(operands, as_uninit(out));
}

/// Vectors of `m * n` elements that `fill` has written.
///
/// # Safety
/// `fill` writes every element.
unsafe fn filled<const N: usize>(
    operands: [Operands<'_>; N],
    fill: impl FnOnce([&mut [MaybeUninit<f32>]; N]),
) -> [Vec<f32>; N] {
    let mut outs = operands.map(|o| Vec::with_capacity(o.m * o.rhs.n()));
    let mut rooms = outs.each_mut().map(|out| out.spare_capacity_mut());
    for (room, o) in rooms.iter_mut().zip(&operands) {
        // A vector may have more capacity than was asked for.
        *room = &mut std::mem::take(room)[..o.m * o.rhs.n()];
    }
    fill(rooms);
    for (out, o) in outs.iter_mut().zip(&operands) {
        // SAFETY: the caller's promise.
        unsafe { out.set_len(o.m * o.rhs.n()) };
    }
    outs
}

fn as_uninit(out: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: initialised floats may be seen as such that may not be; only floats are written.
    unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<f32>]) }
}

/// A product of rows that are ready for it.
fn product<'a, G: Group>(
    operands: Operands<'a>,
    groups: &'a [G],
    rows: &'a [Row],
    out: &'a mut [MaybeUninit<f32>],
) -> Product<'a, G> {
    let Operands { lhs, m, rhs } = operands;
    assert_eq!(lhs.len(), m * rhs.k(), "lhs is [m, k]");
    assert_eq!(out.len(), m * rhs.n(), "out is [m, n]");
    Product {
        lhs: Lhs { m, groups, rows },
        rhs,
        out: Output::new(out, rhs.n()),
    }
}

/// Writes every element of `outs`.
fn linear_uninit<const N: usize>(
    operands: [Operands<'_>; N],
    quantizer: Quantizer<'_>,
    scratch: &mut Scratch,
    outs: [&mut [MaybeUninit<f32>]; N],
) {
    scratch.reserve(
        operands.iter().map(|o| o.m).sum(),
        operands.iter().map(|o| o.m * o.rhs.groups()).sum(),
    );
    let mut room = QuantizedRows {
        groups: &mut scratch.groups,
        rows: &mut scratch.rows,
        ranges: &mut scratch.ranges,
    };
    let mut products = [const { None }; N];
    for ((slot, o), out) in products.iter_mut().zip(operands).zip(outs) {
        let mut own = room.split_off(o.m, o.rhs.groups());
        quantize_rows(o, quantizer, &mut own);
        *slot = Some(product(o, own.groups, own.rows, out));
    }
    split::multiply(&products.each_ref().map(Option::as_ref));
}

/// Writes every element of `out`.
fn linear_f16_uninit(operands: Operands<'_>, out: &mut [MaybeUninit<f32>]) {
    let product = product(operands, operands.lhs, &[], out);
    split::multiply(&[Some(&product)]);
}

/// Updates the state of all rows of a recurrent step with `hidden` elements a row.
pub fn update_state(isa: Isa, gates: Gates, hidden: usize, step: Step<'_>) {
    if hidden == 0 {
        return;
    }
    let update = isa.instance().update;
    let rows = step.h.len() / hidden;
    if step.h.len() < SERIAL_STATE || rows == 1 {
        step.parts(gates, hidden, 1)
            .for_each(|row| update(gates, row));
        return;
    }
    let height = rows.div_ceil(parallel::threads());
    parallel::for_each_item(step.parts(gates, hidden, height), |part| {
        part.parts(gates, hidden, 1)
            .for_each(|row| update(gates, row));
    });
}

/// Elements of a state below which its update stays on the caller's thread.
const SERIAL_STATE: usize = 4_096;

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

    fn reserve(&mut self, rows: usize, groups: usize) {
        if self.groups.len() < groups {
            self.groups.resize(groups, [0; 4]);
        }
        if self.rows.len() < rows {
            self.rows.resize(rows, NOT_FINITE);
            self.ranges.resize(rows, Range::EMPTY);
        }
    }
}

/// Room for quantized rows.
struct QuantizedRows<'a> {
    groups: &'a mut [[u8; 4]],
    rows: &'a mut [Row],
    ranges: &'a mut [Range],
}

impl<'a> QuantizedRows<'a> {
    /// The room of the first `rows`, which is no longer in `self`.
    fn split_off(&mut self, rows: usize, groups_of_row: usize) -> Self {
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

/// Rows that one task quantizes.
struct RowChunk<'a> {
    lhs: &'a [f32],
    ranges: &'a [Range],
    groups: &'a mut [[u8; 4]],
    rows: &'a mut [Row],
}

/// Activations below which their quantization stays on the caller's thread.
const SERIAL_ACTIVATIONS: usize = 32_768;

/// Quantizes the rows of `operands.lhs` to `room`.
fn quantize_rows(operands: Operands<'_>, quantizer: Quantizer<'_>, room: &mut QuantizedRows<'_>) {
    let Operands { lhs, m, rhs } = operands;
    let k = rhs.k();
    let instance = rhs.isa().instance();
    let row_of = |params: RowParams| Row {
        scale: params.scale,
        zero_point: params.zero_point,
        sum: 0,
    };
    let calculate = quantizer.calculate_qparams;
    if k == 0 {
        room.rows.fill(row_of(calculate(Range::EMPTY)));
        return;
    }
    let tasks = match lhs.len() < SERIAL_ACTIVATIONS {
        true => 1,
        false => m.min(TASKS_PER_THREAD * parallel::threads()),
    };
    let height = m.div_ceil(tasks.max(1)).max(1);

    let together = match quantizer.rows {
        Rows::Apart => None,
        Rows::Together => {
            let chunks = lhs.chunks(height * k).zip(room.ranges.chunks_mut(height));
            parallel::for_each_item(chunks, |(lhs, ranges)| {
                for (row, range) in lhs.chunks_exact(k).zip(ranges) {
                    *range = (instance.range)(row);
                }
            });
            let finite = room.ranges.iter().filter(|range| range.finite);
            let all = finite.fold(Range::EMPTY, |all, range| all.union(*range));
            Some(calculate(all))
        }
    };

    let chunks = lhs.chunks(height * k).zip(room.ranges.chunks(height));
    let chunks = chunks.zip(room.groups.chunks_mut(height * rhs.groups()));
    let chunks = chunks.zip(room.rows.chunks_mut(height));
    let chunks = chunks.map(|(((lhs, ranges), groups), rows)| RowChunk {
        lhs,
        ranges,
        groups,
        rows,
    });
    parallel::for_each_item(chunks, |chunk| {
        let rows = chunk.lhs.chunks_exact(k).zip(chunk.ranges);
        let rows = rows.zip(chunk.groups.chunks_exact_mut(rhs.groups()));
        for (((values, range), groups), row) in rows.zip(chunk.rows) {
            let range = match together {
                Some(_) => *range,
                None => (instance.range)(values),
            };
            *row = NOT_FINITE;
            if range.finite {
                let params = together.unwrap_or_else(|| calculate(range));
                let codes = &mut groups.as_flattened_mut()[..k];
                (instance.quantize)(values, params, quantizer.rounding, codes);
                *row = row_of(params);
                if rhs.has_zero_points() {
                    row.sum = (instance.sum)(codes);
                }
            }
        }
    });
}

/// Tasks a thread can expect: enough that one which is delayed leaves work to the others.
const TASKS_PER_THREAD: usize = 4;

#[cfg(test)]
mod tests;
