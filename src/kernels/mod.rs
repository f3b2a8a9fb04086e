//! The kernels: slices in, slices out, and the only place with `unsafe`.
//!
//! [`mod@reference`] says in plain loops what they compute; every instruction set gives the same
//! bits. [`linear`] is the one entry: it finds the range of the activations, quantizes them,
//! multiplies, dequantizes and adds the bias.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod activation;
mod attention;
mod buffer;
mod course;
mod dequantize;
mod float;
mod float_tile;
mod gates;
mod isa;
mod job;
mod norm;
mod packed;
mod parallel;
mod pool;
mod portable;
mod product;
mod quantize;
mod rayon_pool;
mod recurrence;
pub mod reference;
mod rows;
mod split;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::mem::MaybeUninit;

use half::f16;

use crate::sizes;

pub use activation::{Activation, activate};
pub use attention::{Attention, Heads, attention};
pub use dequantize::{Affine, dequantize_row, for_each_row, widen_row};
pub use float::linear_f32;
pub use gates::{Gates, Step};
pub use isa::Isa;
pub use norm::{Norm, layer_norm, softmax};
pub use packed::{Int8, Packed};
pub use quantize::{Quantizer, Rows, Scratch};
pub use recurrence::{Recurrence, recur, recur_f16};
pub use rows::{Range, Rounding, RowParams};

use attention::Block;
use gates::Units;
use isa::Kind;
use parallel::Threads;
use product::{Group, Layout, Lhs, Output, Part, Product, Row};

/// An instruction set's instance of the inner loops.
#[derive(Clone, Copy)]
struct Instance {
    range: fn(&[f32]) -> Range,
    quantize: fn(&[f32], RowParams, Rounding, &mut [u8]),
    sum: fn(&[u8]) -> i32,
    update: fn(Gates, Units<'_>),
    activate: fn(Activation, &mut [f32]),
    dequantize: fn(&[u8], Affine, &mut [f32]),
    widen: fn(&[f16], &mut [f32]),
    softmax: fn(&mut [f32]),
    normalize: fn(&mut [f32], Option<&[f32]>, Norm<'_>),
    /// # Safety
    /// No other thread computes a block that overlaps.
    attend: unsafe fn(&Attention<'_>, Block, &Output<'_>),
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
            #[cfg(target_arch = "x86_64")]
            Kind::AmxInt8 => x86_64::amx_instance(),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => aarch64::NEON,
            #[cfg(target_arch = "aarch64")]
            Kind::Dotprod => aarch64::DOTPROD,
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
    /// What is done to every element of the result.
    pub activation: Option<Activation>,
}

/// `lhs`, quantized, times int8 `rhs`: `[m, n]`, dequantized, with bias.
///
/// A row that holds a NaN or an infinity is NaN throughout, and changes no other row. The result
/// does not depend on the instruction set or on the number of threads: it is that of
/// [`reference::linear`].
///
/// # Panics
/// If `rhs` is not int8 or `lhs` does not have `m * k` elements.
pub fn linear(operands: Operands<'_>, quantizer: Quantizer<'_>) -> Vec<f32> {
    let [out] = linear_each([operands], quantizer);
    out
}

/// [`linear`] of several independent products, on all threads at once; rows that they share are
/// quantized once.
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
        buffer::filled_each(operands.map(|o| o.out_len()), |outs| {
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
/// If `rhs` is not int8, `lhs` does not have `m * k` elements, or `out` not `m * n`.
pub fn linear_into(
    operands: Operands<'_>,
    quantizer: Quantizer<'_>,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    linear_uninit([operands], quantizer, scratch, [buffer::as_uninit(out)]);
}

/// `lhs` times float16 `rhs`: `[m, n]`, with bias.
///
/// The result does not depend on the instruction set or on the number of threads: it is that of
/// [`reference::linear_f16`].
///
/// # Panics
/// If `rhs` is not float16 or `lhs` does not have `m * k` elements.
pub fn linear_f16(operands: Operands<'_>) -> Vec<f32> {
    // SAFETY: `linear_f16_uninit` writes every element.
    unsafe { buffer::filled(operands.out_len(), |out| linear_f16_uninit(operands, out)) }
}

/// [`linear_f16`] into a buffer of `m * n` elements.
///
/// # Panics
/// If `rhs` is not float16, `lhs` does not have `m * k` elements, or `out` not `m * n`.
pub fn linear_f16_into(operands: Operands<'_>, out: &mut [f32]) {
    linear_f16_uninit(operands, buffer::as_uninit(out));
}

impl Operands<'_> {
    /// Elements of the result.
    fn out_len(&self) -> usize {
        sizes::length("out", &[self.m, self.rhs.n()])
    }

    /// Checks the operands of a product of `G`s into `out`.
    fn check<G: Group>(&self, out: &[MaybeUninit<f32>]) {
        let Self { lhs, m, rhs, .. } = *self;
        rhs.check_element(G::ELEMENT);
        sizes::check("lhs, [m, k]", lhs, &[m, rhs.k()]);
        sizes::check("out, [m, n]", out, &[m, rhs.n()]);
    }
}

/// A product of rows that are ready for it.
fn product<'a, G: Group>(
    operands: Operands<'a>,
    groups: &'a [G],
    rows: &'a [Row],
    out: &'a mut [MaybeUninit<f32>],
) -> Product<'a, G> {
    let Operands { m, rhs, .. } = operands;
    Product {
        lhs: Lhs { m, groups, rows },
        rhs,
        activation: operands.activation,
        out: Output::new(out, rhs.n(), Layout::Channels),
    }
}

/// Writes every element of `outs`.
fn linear_uninit<const N: usize>(
    operands: [Operands<'_>; N],
    quantizer: Quantizer<'_>,
    scratch: &mut Scratch,
    outs: [&mut [MaybeUninit<f32>]; N],
) {
    for (operands, out) in operands.iter().zip(&outs) {
        operands.check::<[u8; 4]>(out);
    }
    let threads = Threads::of_caller();
    let mut room = scratch.room(
        operands.iter().map(|o| o.m).sum(),
        operands.iter().map(|o| o.m * o.rhs.groups()).sum(),
    );
    // Sums of codes are there for whoever of them has zero points.
    let sums = operands.iter().any(|o| o.rhs.has_zero_points());
    let mut products: [Option<Product<'_, _>>; N] = [const { None }; N];
    for (i, (o, out)) in operands.into_iter().zip(outs).enumerate() {
        let same = |other: &Operands<'_>| std::ptr::eq(other.lhs, o.lhs) && other.m == o.m;
        let shared = operands[..i].iter().position(same);
        let (groups, rows) = match shared.and_then(|i| products[i].as_ref()) {
            Some(product) => (product.lhs.groups, product.lhs.rows),
            None => {
                let own = room.split_off(o.m, o.rhs.groups());
                quantize::quantize_rows(&threads, o, quantizer, sums, own)
            }
        };
        products[i] = Some(product(o, groups, rows, out));
    }
    split::multiply(&threads, &products.each_ref().map(Option::as_ref));
}

/// Writes every element of `out`.
fn linear_f16_uninit(operands: Operands<'_>, out: &mut [MaybeUninit<f32>]) {
    operands.check::<f32>(out);
    let product = product(operands, operands.lhs, &[], out);
    split::multiply(&Threads::of_caller(), &[Some(&product)]);
}

/// Updates the state of all rows of a recurrent step with `hidden` elements a row.
///
/// # Panics
/// If `h` has no whole rows, or another operand not as many.
pub fn update_state(isa: Isa, gates: Gates, hidden: usize, step: Step<'_>) {
    let rows = step.h.len().checked_div(hidden).unwrap_or(0);
    step.check(gates, [rows, hidden]);
    if rows == 0 {
        return;
    }
    let update = isa.instance().update;
    if step.h.len() < SERIAL_STATE || rows == 1 {
        step.rows(gates, hidden)
            .for_each(|units| update(gates, units));
        return;
    }
    let threads = Threads::of_caller();
    let height = rows.div_ceil(threads.count());
    threads.for_each_item(step.parts(gates, hidden, height), |part| {
        part.rows(gates, hidden)
            .for_each(|units| update(gates, units));
    });
}

/// Elements of a state below which its update stays on the caller's thread.
const SERIAL_STATE: usize = 4_096;

/// Tasks a thread can expect: enough that one which is delayed leaves work to the others.
const TASKS_PER_THREAD: usize = 4;

#[cfg(test)]
mod tests;
#[cfg(test)]
#[path = "../../tests/common/watchdog.rs"]
mod watchdog;
