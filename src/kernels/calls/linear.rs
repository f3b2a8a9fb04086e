//! The product of activations and packed weights, int8 or float16.

use std::mem::MaybeUninit;

use super::quantize::{Codes, Encoder};
use super::split;
use crate::kernels::loops::activation::Activation;
use crate::kernels::loops::buffer;
use crate::kernels::loops::product::{Group, Layout, Lhs, Product, Sink};
use crate::kernels::packed::Packed;
use crate::kernels::threads::Threads;
use crate::qparams::activation::{ActivationConfig, DynamicConfig};
use crate::sizes;

/// The operands of a product: `lhs` is `[m, k]`, `rhs` is `[n, k]`.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Activations.
    pub lhs: &'a [f32],
    /// Rows of `lhs`.
    pub m: usize,
    /// Weights: int8 for dynamic activations, float16 for float ones.
    pub rhs: &'a Packed,
    /// Applied to every element of the result.
    pub activation: Option<Activation>,
}

/// `lhs` times `rhs`: `[m, n]`, with bias. Dynamic activations are quantized, and the product
/// dequantized.
///
/// A row of dynamic activations that holds a NaN or an infinity is NaN throughout, and changes no
/// other row. The result does not depend on the instruction set or on the number of threads: it is
/// that of [`reference::linear`](crate::kernels::reference::linear) or
/// [`reference::linear_f16`](crate::kernels::reference::linear_f16).
///
/// # Panics
/// If `rhs` is not of the kind that the activations are for, or `lhs` does not have `m * k`
/// elements.
pub fn linear(operands: Operands<'_>, activations: ActivationConfig) -> Vec<f32> {
    let [out] = linear_each([operands], activations);
    out
}

/// [`linear`] of several independent products, on all threads at once; rows that they share are
/// quantized once.
///
/// # Panics
/// As [`linear`].
pub fn linear_each<const N: usize>(
    operands: [Operands<'_>; N],
    activations: ActivationConfig,
) -> [Vec<f32>; N] {
    let mut codes = Codes::take();
    // SAFETY: `linear_uninit` writes every element.
    let outs = unsafe {
        buffer::filled_each(operands.map(|o| o.out_len()), |outs| {
            linear_uninit(operands, activations, &mut codes, outs);
        })
    };
    codes.keep();
    outs
}

/// [`linear`] into a buffer of `m * n` elements, without any allocation if `codes` is large
/// enough.
///
/// # Panics
/// As [`linear`], and if `out` does not have `m * n` elements.
pub fn linear_into(
    operands: Operands<'_>,
    activations: ActivationConfig,
    codes: &mut Codes,
    out: &mut [f32],
) {
    linear_uninit([operands], activations, codes, [buffer::as_uninit(out)]);
}

impl<'a> Operands<'a> {
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

    /// The product of rows that are ready for it.
    fn product<G>(self, lhs: Lhs<'a, G>, out: &'a mut [MaybeUninit<f32>]) -> Product<'a, G> {
        Product {
            lhs,
            rhs: self.rhs,
            activation: self.activation,
            out: Sink::new(out, self.rhs.n(), Layout::Channels),
        }
    }
}

/// Writes every element of `outs`.
fn linear_uninit<const N: usize>(
    operands: [Operands<'_>; N],
    activations: ActivationConfig,
    codes: &mut Codes,
    outs: [&mut [MaybeUninit<f32>]; N],
) {
    match activations {
        ActivationConfig::Dynamic(config) => dynamic(operands, config, codes, outs),
        ActivationConfig::Float => float(operands, outs),
    }
}

fn float<const N: usize>(operands: [Operands<'_>; N], outs: [&mut [MaybeUninit<f32>]; N]) {
    let mut outs = outs.into_iter();
    let products = operands.map(|o| {
        let out = outs.next().unwrap_or_default();
        o.check::<f32>(out);
        let lhs = Lhs {
            m: o.m,
            groups: o.lhs,
            rows: &[],
        };
        o.product(lhs, out)
    });
    split::multiply(&Threads::of_caller(), &products);
}

fn dynamic<const N: usize>(
    operands: [Operands<'_>; N],
    config: DynamicConfig,
    codes: &mut Codes,
    outs: [&mut [MaybeUninit<f32>]; N],
) {
    for (operands, out) in operands.iter().zip(&outs) {
        operands.check::<[u8; 4]>(out);
    }
    let threads = Threads::of_caller();
    let mut room = codes.room(
        operands.iter().map(|o| o.m).sum(),
        operands.iter().map(|o| o.m * o.rhs.groups()).sum(),
    );
    // Row sums are needed if any weight has zero points.
    let sums = operands.iter().any(|o| o.rhs.has_zero_points());
    let mut lhs = [Lhs::EMPTY; N];
    for (i, o) in operands.iter().enumerate() {
        let same = |other: &Operands<'_>| std::ptr::eq(other.lhs, o.lhs) && other.m == o.m;
        lhs[i] = match operands[..i].iter().position(same) {
            Some(shared) => lhs[shared],
            None => {
                let own = room.split_off(o.m, o.rhs.groups());
                Encoder::new(o.rhs, config, sums).quantize(&threads, o.lhs, own)
            }
        };
    }
    let mut outs = outs.into_iter();
    let products: [_; N] = std::array::from_fn(|i| {
        let out = outs.next().unwrap_or_default();
        operands[i].product(lhs[i], out)
    });
    split::multiply(&threads, &products);
}
