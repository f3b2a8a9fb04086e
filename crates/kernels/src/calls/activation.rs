//! An activation function of all elements of a slice.

use crate::arch::op::ActivateTo;
use crate::isa::Isa;
use crate::loops::activation::{Activation, BLOCK};
use crate::loops::buffer;
use crate::sizes;
use crate::threads::Threads;

/// Applies the function to each element, on several threads if that is faster.
///
/// The result does not depend on the instruction set or on the number of threads.
pub fn activate(isa: Isa, activation: Activation, xs: &[f32]) -> Vec<f32> {
    apply(isa, activation, xs, None)
}

/// [`activate`] of each element, multiplied by its factor.
///
/// # Panics
/// If the numbers of elements and of factors differ.
pub fn activate_mul(isa: Isa, activation: Activation, xs: &[f32], factors: &[f32]) -> Vec<f32> {
    sizes::check("factors, the shape of xs", factors, &[xs.len()]);
    apply(isa, activation, xs, Some(factors))
}

fn apply(isa: Isa, activation: Activation, xs: &[f32], factors: Option<&[f32]>) -> Vec<f32> {
    let threads = Threads::of_caller();
    let tasks = threads.tasks(xs.len(), SERIAL_ELEMENTS);
    let tasks = tasks.min(xs.len().div_ceil(CHUNK)).max(1);
    let share = xs.len().div_ceil(tasks).next_multiple_of(BLOCK).max(1);
    // SAFETY: all of each chunk is written.
    unsafe {
        buffer::filled(xs.len(), |out| {
            threads.for_each_item(out.chunks_mut(share).enumerate(), |(index, out)| {
                let part = index * share..index * share + out.len();
                let factors = factors.map(|factors| &factors[part.clone()]);
                isa.run(ActivateTo { activation, xs: &xs[part], factors, out });
            });
        })
    }
}

/// Elements below which the caller's thread computes alone.
const SERIAL_ELEMENTS: usize = 16_384;

/// Elements that are worth a task.
const CHUNK: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::op::Activate;
    use crate::loops::activation::{elu, gelu, gelu_tanh, quick_gelu, relu, sigmoid, silu, tanh};

    #[test]
    fn products_are_those_of_the_parts() {
        let xs: Vec<f32> = (-9_000..9_000).map(|i| i as f32 * 0.001).collect();
        let factors: Vec<f32> = xs.iter().map(|x| 0.7 - x).collect();
        for isa in Isa::available() {
            // Miri is a thousand times as slow.
            for len in [0, 1, 17, 2_049, 18_000].into_iter().take(if cfg!(miri) { 3 } else { 5 }) {
                let (xs, factors) = (&xs[..len], &factors[..len]);
                let plain = activate(isa, Activation::Silu, xs);
                let expected: Vec<f32> = plain.iter().zip(factors).map(|(x, y)| x * y).collect();
                assert_eq!(activate_mul(isa, Activation::Silu, xs, factors), expected, "{isa}");
            }
        }
    }

    #[test]
    fn every_isa_gives_the_bits_of_the_formulas() {
        type Case = (Activation, fn(f32) -> f32);
        let functions: [Case; 8] = [
            (Activation::Relu, relu),
            (Activation::Gelu, gelu),
            (Activation::GeluTanh, gelu_tanh),
            (Activation::QuickGelu, quick_gelu),
            (Activation::Silu, silu),
            (Activation::Tanh, tanh),
            (Activation::Sigmoid, sigmoid),
            (Activation::Elu, elu),
        ];
        let ends = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0., 0.];
        let xs: Vec<f32> = (-400..400).map(|i| i as f32 * 0.037).chain(ends).collect();
        let bits = |x: f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
        for isa in Isa::available() {
            for (activation, f) in functions {
                for len in [0, 1, 15, 16, 17, 64, xs.len()] {
                    let mut got = xs[xs.len() - len..].to_vec();
                    let expected: Vec<u32> = got.iter().map(|x| bits(f(*x))).collect();
                    let elsewhere = activate(isa, activation, &got);
                    let xs = &mut got;
                    isa.run(Activate { activation, xs });
                    for got in [got, elsewhere] {
                        let got: Vec<u32> = got.into_iter().map(bits).collect();
                        assert_eq!(got, expected, "{isa} {activation:?} {len}");
                    }
                }
            }
        }
    }
}
