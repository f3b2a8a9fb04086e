//! The kernels: slices in, slices out, and the only place with `unsafe`.
//!
//! [`mod@reference`] says in plain loops what they compute; every instruction set gives the same
//! bits. [`linear`] is the one entry: it finds the range of the activations, quantizes them,
//! multiplies, dequantizes and adds the bias.

mod activation;
mod attention;
mod buffer;
mod float;
mod float_tile;
mod gates;
mod isa;
mod norm;
mod packed;
mod parallel;
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
pub use attention::{Attention, Heads, attention};
pub use float::linear_f32;
pub use gates::{Gates, Step};
pub use isa::Isa;
pub use norm::{Norm, layer_norm, softmax};
pub use packed::Packed;
pub use rows::Range;
pub use tile::RowParams;

use attention::Block;
use isa::Kind;
use tile::{Lhs, Output, Part, Product};

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
    quantize: fn(&[f32], f32, i32, &mut [u8]),
    update: fn(Gates, Step<'_>),
    activate: fn(Activation, &mut [f32]),
    softmax: fn(&mut [f32]),
    normalize: fn(&mut [f32], Option<&[f32]>, Norm<'_>),
    /// # Safety
    /// No other thread computes a block that overlaps.
    attend: unsafe fn(&Attention<'_>, Block, &Output<'_>),
    /// # Safety
    /// No other thread computes a part that overlaps.
    multiply: unsafe fn(&Product<'_>, Part),
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

/// `lhs` times `rhs`: `[m, n]`, dequantized, with bias.
///
/// `calculate_qparams` gives the parameters for a range. A row that holds a NaN or an infinity
/// is NaN throughout, and changes no other row. The result does not depend on the instruction
/// set or on the number of threads: it is that of [`reference::linear`].
///
/// # Panics
/// If `lhs` does not have `m * k` elements.
pub fn linear(
    operands: Operands<'_>,
    rows: Rows,
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
) -> Vec<f32> {
    let [out] = linear_each([operands], rows, calculate_qparams);
    out
}

/// [`linear`] of several independent products, on all threads at once.
///
/// # Panics
/// As [`linear`].
pub fn linear_each<const N: usize>(
    operands: [Operands<'_>; N],
    rows: Rows,
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
) -> [Vec<f32>; N] {
    let mut scratch = Scratch::take();
    let mut outs = operands.map(|o| Vec::with_capacity(o.m * o.rhs.n()));
    let mut rooms = outs.each_mut().map(|out| out.spare_capacity_mut());
    for (room, o) in rooms.iter_mut().zip(&operands) {
        // A vector may have more capacity than was asked for.
        *room = &mut std::mem::take(room)[..o.m * o.rhs.n()];
    }
    linear_uninit(operands, rows, calculate_qparams, &mut scratch, rooms);
    for (out, o) in outs.iter_mut().zip(&operands) {
        // SAFETY: `linear_uninit` has written every element.
        unsafe { out.set_len(o.m * o.rhs.n()) };
    }
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
    rows: Rows,
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    // SAFETY: initialised floats may be seen as such that may not be; only floats are written.
    let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<f32>]) };
    linear_uninit([operands], rows, calculate_qparams, scratch, [out]);
}

/// Writes every element of `outs`.
fn linear_uninit<const N: usize>(
    operands: [Operands<'_>; N],
    rows: Rows,
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
    scratch: &mut Scratch,
    outs: [&mut [MaybeUninit<f32>]; N],
) {
    scratch.reserve(
        operands.iter().map(|o| o.m).sum(),
        operands.iter().map(|o| o.m * o.rhs.row_bytes()).sum(),
    );
    let mut room = QuantizedRows {
        codes: &mut scratch.codes,
        params: &mut scratch.params,
        ranges: &mut scratch.ranges,
    };
    let mut products = [const { None }; N];
    for ((product, o), out) in products.iter_mut().zip(operands).zip(outs) {
        assert_eq!(o.lhs.len(), o.m * o.rhs.k(), "lhs is [m, k]");
        assert_eq!(out.len(), o.m * o.rhs.n(), "out is [m, n]");
        let mut own = room.split_off(o.m, o.rhs.row_bytes());
        quantize_rows(o, rows, &mut own, &calculate_qparams);
        *product = Some(Product {
            lhs: Lhs {
                codes: own.codes,
                params: own.params,
                row_bytes: o.rhs.row_bytes(),
            },
            rhs: o.rhs,
            out: Output::new(out, o.rhs.n()),
        });
    }
    split::multiply(&products.each_ref().map(Option::as_ref));
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
    codes: Vec<u8>,
    params: Vec<RowParams>,
    ranges: Vec<Range>,
}

impl Scratch {
    /// This thread's. A nested call, as rayon can make one, finds an empty one and fills it.
    pub fn take() -> Self {
        SCRATCH.take()
    }

    /// Gives it back for the next call.
    pub fn keep(self) {
        if self.codes.len() <= KEPT_CODES {
            SCRATCH.set(self);
        }
    }

    fn reserve(&mut self, rows: usize, bytes: usize) {
        if self.codes.len() < bytes {
            self.codes.resize(bytes, 0);
        }
        if self.params.len() < rows {
            self.params.resize(rows, NOT_FINITE);
            self.ranges.resize(rows, Range::EMPTY);
        }
    }
}

/// Room for quantized rows.
struct QuantizedRows<'a> {
    codes: &'a mut [u8],
    params: &'a mut [RowParams],
    ranges: &'a mut [Range],
}

impl<'a> QuantizedRows<'a> {
    /// The room of the first `rows`, which is no longer in `self`.
    fn split_off(&mut self, rows: usize, row_bytes: usize) -> Self {
        fn first<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
            let (first, rest) = std::mem::take(slice).split_at_mut(count);
            *slice = rest;
            first
        }
        Self {
            codes: first(&mut self.codes, rows * row_bytes),
            params: first(&mut self.params, rows),
            ranges: first(&mut self.ranges, rows),
        }
    }
}

/// Parameters of a row that is not finite: its scale makes it NaN throughout.
const NOT_FINITE: RowParams = RowParams {
    scale: f32::NAN,
    zero_point: 0,
};

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// Greatest buffer of codes that is kept.
const KEPT_CODES: usize = 16 << 20;

/// Rows that one task quantizes.
struct RowChunk<'a> {
    lhs: &'a [f32],
    ranges: &'a [Range],
    codes: &'a mut [u8],
    params: &'a mut [RowParams],
}

/// Activations below which their quantization stays on the caller's thread.
const SERIAL_ACTIVATIONS: usize = 32_768;

/// Quantizes the rows of `operands.lhs` to `room`.
fn quantize_rows(
    operands: Operands<'_>,
    rows: Rows,
    room: &mut QuantizedRows<'_>,
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
) {
    let Operands { lhs, m, rhs } = operands;
    let (k, row_bytes) = (rhs.k(), rhs.row_bytes());
    let instance = rhs.isa().instance();
    let QuantizedRows {
        codes,
        params,
        ranges,
    } = room;
    if k == 0 {
        params.fill(calculate_qparams(Range::EMPTY));
        return;
    }
    let tasks = match lhs.len() < SERIAL_ACTIVATIONS {
        true => 1,
        false => m.min(TASKS_PER_THREAD * parallel::threads()),
    };
    let height = m.div_ceil(tasks.max(1)).max(1);

    let together = match rows {
        Rows::Apart => None,
        Rows::Together => {
            let chunks = lhs.chunks(height * k).zip(ranges.chunks_mut(height));
            parallel::for_each_item(chunks, |(lhs, ranges)| {
                for (row, range) in lhs.chunks_exact(k).zip(ranges) {
                    *range = (instance.range)(row);
                }
            });
            let finite = ranges.iter().filter(|range| range.finite);
            let all = finite.fold(Range::EMPTY, |all, range| all.union(*range));
            Some(calculate_qparams(all))
        }
    };

    let chunks = lhs.chunks(height * k).zip(ranges.chunks(height));
    let chunks = chunks.zip(codes.chunks_mut(height * row_bytes));
    let chunks = chunks.zip(params.chunks_mut(height));
    let chunks = chunks.map(|(((lhs, ranges), codes), params)| RowChunk {
        lhs,
        ranges,
        codes,
        params,
    });
    parallel::for_each_item(chunks, |chunk| {
        let rows = chunk.lhs.chunks_exact(k).zip(chunk.ranges);
        let rows = rows.zip(chunk.codes.chunks_exact_mut(row_bytes));
        for (((row, range), codes), params) in rows.zip(chunk.params) {
            let range = match together {
                Some(_) => *range,
                None => (instance.range)(row),
            };
            *params = NOT_FINITE;
            if range.finite {
                *params = together.unwrap_or_else(|| calculate_qparams(range));
                (instance.quantize)(row, params.scale, params.zero_point, &mut codes[..k]);
            }
        }
    });
}

/// Tasks a thread can expect: enough that one which is delayed leaves work to the others.
const TASKS_PER_THREAD: usize = 4;

#[cfg(test)]
mod tests;
