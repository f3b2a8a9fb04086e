//! The kernels: slices in, slices out, and the only place with `unsafe`.
//!
//! [`reference`] says in plain loops what they compute; every instruction set gives the same
//! bits. [`linear`] is the one entry: it finds the range of the activations, quantizes them,
//! multiplies, dequantizes and adds the bias.

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

/// An instruction set's instance of the three inner loops.
#[derive(Clone, Copy)]
struct Instance {
    range: fn(&[f32]) -> Range,
    quantize: fn(&[f32], f32, i32, &mut [u8]),
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
    assert_eq!(lhs.len(), m * rhs.k(), "lhs is [m, k]");
    let instance = rhs.isa().instance();
    let mut codes = CODES.take();
    let used = m * rhs.row_bytes();
    if codes.len() < used {
        codes.resize(used, 0);
    }
    let params = quantize_rows(lhs, m, rhs, rows, &mut codes[..used], calculate_qparams);

    let mut out = Vec::with_capacity(m * rhs.n());
    multiply(
        instance,
        Lhs {
            codes: &codes[..used],
            params: &params,
            row_bytes: rhs.row_bytes(),
        },
        rhs,
        &mut out.spare_capacity_mut()[..m * rhs.n()],
    );
    // SAFETY: `multiply` has written every element: its parts cover all rows and panels.
    unsafe { out.set_len(m * rhs.n()) };
    if codes.len() <= KEPT_CODES {
        CODES.set(codes);
    }
    out
}

thread_local! {
    /// Codes of the activations, kept from call to call: clearing new memory costs as much as
    /// filling it. A nested call, as rayon can make one, finds an empty buffer and its own.
    static CODES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Greatest buffer of codes that is kept.
const KEPT_CODES: usize = 16 << 20;

/// Rows that one task quantizes.
struct RowChunk<'a> {
    first: usize,
    lhs: &'a [f32],
    codes: &'a mut [u8],
    params: &'a mut [RowParams],
}

/// Activations below which their quantization stays on the caller's thread.
const SERIAL_ACTIVATIONS: usize = 32_768;

/// Quantizes the rows of `lhs` to `codes` and returns their parameters.
fn quantize_rows(
    lhs: &[f32],
    m: usize,
    rhs: &Packed,
    rows: Rows,
    codes: &mut [u8],
    calculate_qparams: impl Fn(Range) -> RowParams + Sync,
) -> Vec<RowParams> {
    const NOT_FINITE: RowParams = RowParams {
        scale: f32::NAN,
        zero_point: 0,
    };
    let (k, row_bytes) = (rhs.k(), rhs.row_bytes());
    let instance = rhs.isa().instance();
    let mut params = vec![NOT_FINITE; m];
    if k == 0 {
        params.fill(calculate_qparams(Range::EMPTY));
        return params;
    }
    let tasks = match lhs.len() < SERIAL_ACTIVATIONS {
        true => 1,
        false => m.min(TASKS_PER_THREAD * parallel::threads()),
    };
    let height = m.div_ceil(tasks.max(1)).max(1);

    let ranges: Vec<Range> = match rows {
        Rows::Apart => Vec::new(),
        Rows::Together => {
            let mut ranges = vec![Range::EMPTY; m];
            let chunks = lhs.chunks(height * k).zip(ranges.chunks_mut(height));
            parallel::for_each_item(chunks, |(lhs, ranges)| {
                for (row, range) in lhs.chunks_exact(k).zip(ranges) {
                    *range = (instance.range)(row);
                }
            });
            ranges
        }
    };
    let together = (rows == Rows::Together).then(|| {
        let finite = ranges.iter().filter(|range| range.finite);
        calculate_qparams(finite.fold(Range::EMPTY, |all, range| all.union(*range)))
    });

    let chunks = lhs.chunks(height * k);
    let chunks = chunks.zip(codes.chunks_mut(height * row_bytes));
    let chunks = chunks.zip(params.chunks_mut(height)).enumerate();
    let chunks = chunks.map(|(index, ((lhs, codes), params))| RowChunk {
        first: index * height,
        lhs,
        codes,
        params,
    });
    parallel::for_each_item(chunks, |chunk| {
        let rows = chunk.lhs.chunks_exact(k);
        let rows = rows.zip(chunk.codes.chunks_exact_mut(row_bytes));
        for (index, ((row, codes), params)) in rows.zip(chunk.params).enumerate() {
            let range = match ranges.get(chunk.first + index) {
                Some(range) => *range,
                None => (instance.range)(row),
            };
            if range.finite {
                *params = together.unwrap_or_else(|| calculate_qparams(range));
                (instance.quantize)(row, params.scale, params.zero_point, &mut codes[..k]);
            }
        }
    });
    params
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
        1 => (0..blocks * columns).for_each(compute),
        _ => parallel::for_each(blocks * columns, compute),
    }
}

#[cfg(test)]
mod tests;
