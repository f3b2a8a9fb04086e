//! The kernels: slices in, slices out, and the only place with `unsafe`.
//!
//! [`mod@reference`] says in plain loops what they compute; every instruction set gives the same
//! bits. [`linear`] is the one entry: it finds the range of the activations, quantizes them,
//! multiplies, dequantizes and adds the bias.

mod activation;
mod float;
mod gates;
mod isa;
mod packed;
mod parallel;
mod portable;
pub mod reference;
mod rows;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::cell::Cell;
use std::mem::MaybeUninit;

pub use float::linear_f32;
pub use gates::{Gates, Step};
pub use isa::Isa;
pub use packed::Packed;
pub use rows::Range;
pub use tile::RowParams;

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
    /// # Safety
    /// No other thread computes a part that overlaps.
    multiply: unsafe fn(Product<'_>, Part),
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

/// `lhs` (`[m, k]`) times `rhs` (`[n, k]`, packed): `[m, n]`, dequantized, with bias.
///
/// `calculate_qparams` gives the parameters for a range. A row that holds a NaN or an infinity
/// is NaN throughout, and changes no other row. The result does not depend on the instruction
/// set or on the number of threads: it is that of [`reference::linear`].
///
/// # Panics
/// If `lhs` does not have `m * k` elements.
pub fn linear(
    lhs: &[f32],
    m: usize,
    rhs: &Packed,
    rows: Rows,
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
) -> Vec<f32> {
    let mut scratch = Scratch::take();
    let len = m * rhs.n();
    let mut out = Vec::with_capacity(len);
    let spare = &mut out.spare_capacity_mut()[..len];
    linear_uninit(lhs, m, rhs, rows, calculate_qparams, &mut scratch, spare);
    // SAFETY: `linear_uninit` has written every element.
    unsafe { out.set_len(len) };
    scratch.keep();
    out
}

/// [`linear`] into a buffer of `m * n` elements, without allocating anything but what `scratch`
/// lacks.
///
/// # Panics
/// If `lhs` does not have `m * k` elements, or `out` not `m * n`.
pub fn linear_into(
    lhs: &[f32],
    m: usize,
    rhs: &Packed,
    rows: Rows,
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    // SAFETY: initialised floats may be seen as such that may not be; only floats are written.
    let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<f32>]) };
    linear_uninit(lhs, m, rhs, rows, calculate_qparams, scratch, out);
}

/// Writes every element of `out`.
fn linear_uninit(
    lhs: &[f32],
    m: usize,
    rhs: &Packed,
    rows: Rows,
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
    scratch: &mut Scratch,
    out: &mut [MaybeUninit<f32>],
) {
    assert_eq!(lhs.len(), m * rhs.k(), "lhs is [m, k]");
    assert_eq!(out.len(), m * rhs.n(), "out is [m, n]");
    scratch.reserve(m, rhs.row_bytes());
    quantize_rows(lhs, m, rhs, rows, scratch, calculate_qparams);
    let lhs = Lhs {
        codes: &scratch.codes[..m * rhs.row_bytes()],
        params: &scratch.params[..m],
        row_bytes: rhs.row_bytes(),
    };
    multiply(rhs.isa().instance(), lhs, rhs, out);
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

    fn reserve(&mut self, m: usize, row_bytes: usize) {
        if self.codes.len() < m * row_bytes {
            self.codes.resize(m * row_bytes, 0);
        }
        if self.params.len() < m {
            self.params.resize(m, NOT_FINITE);
            self.ranges.resize(m, Range::EMPTY);
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

/// Quantizes the rows of `lhs`: fills the codes and parameters of `scratch`.
fn quantize_rows(
    lhs: &[f32],
    m: usize,
    rhs: &Packed,
    rows: Rows,
    scratch: &mut Scratch,
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
) {
    let (k, row_bytes) = (rhs.k(), rhs.row_bytes());
    let instance = rhs.isa().instance();
    let codes = &mut scratch.codes[..m * row_bytes];
    let params = &mut scratch.params[..m];
    let ranges = &mut scratch.ranges[..m];
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

/// Multiply-adds below which a product stays on the caller's thread.
const SERIAL_PRODUCT: usize = 400_000;

/// Tasks a thread can expect: enough that one which is delayed leaves work to the others.
const TASKS_PER_THREAD: usize = 4;

/// Activation bytes of a block of rows: half of a common L2.
const ROW_BLOCK_BYTES: usize = 512 << 10;

/// Cuts the product into parts and computes them all.
fn multiply(instance: Instance, lhs: Lhs<'_>, rhs: &Packed, out: &mut [MaybeUninit<f32>]) {
    let m = lhs.params.len();
    if m == 0 || rhs.n() == 0 {
        return;
    }
    let threads = match m * rhs.n() * rhs.k() < SERIAL_PRODUCT {
        true => 1,
        false => parallel::threads(),
    };
    let wanted = if threads == 1 {
        1
    } else {
        TASKS_PER_THREAD * threads
    };

    // Rows in blocks that fit in L2; then panels apart, until there are tasks enough; then
    // shorter blocks, of whole tiles.
    let in_l2 = (ROW_BLOCK_BYTES / lhs.row_bytes.max(1)).max(tile::MAX_ROWS);
    let blocks = m.div_ceil(in_l2);
    let columns = wanted.div_ceil(blocks).clamp(1, rhs.panels());
    let blocks = blocks.max(wanted.div_ceil(columns));
    let height = m.div_ceil(blocks).next_multiple_of(tile::MAX_ROWS);
    let width = rhs.panels().div_ceil(columns);
    let (blocks, columns) = (m.div_ceil(height), rhs.panels().div_ceil(width));

    let output = Output::new(out, rhs.n());
    let product = Product {
        lhs,
        rhs,
        out: &output,
    };
    let backwards = blocks == 1 && rhs.turn();
    let part = |index: usize| {
        let (row, panel) = (index / columns * height, index % columns * width);
        Part {
            rows: row..m.min(row + height),
            panels: panel..rhs.panels().min(panel + width),
        }
    };
    // SAFETY: parts of different indices do not overlap, and each index is used once.
    let compute = |index: usize| unsafe { (instance.multiply)(product, part(index)) };
    match threads {
        1 if backwards => (0..blocks * columns).rev().for_each(compute),
        1 => (0..blocks * columns).for_each(compute),
        _ => parallel::for_each(blocks * columns, backwards, compute),
    }
}

#[cfg(test)]
mod tests;
