//! The instruction sets: a file each, and the only place that chooses between them.
//!
//! A file has `run`, the door through which every [`Op`] is compiled with the instruction set's
//! features, and the loops that need its registers by name: four products, attention and the
//! widening of halves.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod op;
mod portable;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm32;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use half::f16;
use op::Op;

use super::isa::{Isa, Kind, instruction_sets};
use super::loops::attention::{Attention, Block};
use super::loops::blocks::RowBlock;
use super::loops::product::{Pair, Part, Product, Sink};
use super::packed::Element;

/// A method for each function that the modules of all instruction sets have; products are chosen by
/// their [`Group`].
macro_rules! doors {
    ($($kind:ident $name:literal ($where:meta) $registers:tt $has:expr => $($module:ident)::+;)*) => {
        // Where the target has the features anyway, as it has NEON's, no call is unsafe.
        #[allow(unused_unsafe)]
        impl Isa {
            /// Runs an op, compiled for this instruction set, out of line.
            pub(crate) fn run<O: Op>(self, op: O) -> O::Out {
                // SAFETY: an `Isa` exists only where the CPU has the features of its module.
                unsafe {
                    match self.0 {
                        $(#[cfg($where)] Kind::$kind => $($module)::+::run(op),)*
                    }
                }
            }

            /// Widens halves to f32; both slices have the same length.
            pub(crate) fn widen(self, halves: &[f16], out: &mut [f32]) {
                // SAFETY: an `Isa` exists only where the CPU has the features of its module.
                unsafe {
                    match self.0 {
                        $(#[cfg($where)] Kind::$kind => $($module)::+::widen(halves, out),)*
                    }
                }
            }

            /// Computes a block of attention; whether that stands, or is to be computed with care.
            ///
            /// # Safety
            /// No other thread computes a block that overlaps.
            pub(crate) unsafe fn attend<const CAREFUL: bool>(
                self,
                attention: &Attention<'_>,
                block: Block,
                out: &Sink<'_>,
            ) -> bool {
                // SAFETY: an `Isa` exists only where the CPU has the features of its module; blocks
                // of attention are disjoint, and one thread computes each.
                unsafe {
                    match self.0 {
                        $(#[cfg($where)]
                        Kind::$kind => $($module)::+::attend::<CAREFUL>(attention, block, out),)*
                    }
                }
            }
        }

        impl Group for [u8; 4] {
            const ZERO: Self = [0; 4];

            unsafe fn multiply(product: &Product<'_, Self>, out: &Sink<'_>, part: Part) {
                // SAFETY: an `Isa` exists only where the CPU has the features of its module; parts
                // of a `Grid` are disjoint, and one thread computes each.
                unsafe {
                    match product.rhs.isa().0 {
                        $(#[cfg($where)]
                        Kind::$kind => $($module)::+::multiply(product, out, part),)*
                    }
                }
            }
        }

        impl Group for Pair {
            const ZERO: Self = [[0; 2]; 2];

            unsafe fn multiply(product: &Product<'_, Self>, out: &Sink<'_>, part: Part) {
                // SAFETY: an `Isa` exists only where the CPU has the features of its module; parts
                // of a `Grid` are disjoint, and one thread computes each.
                unsafe {
                    match product.rhs.isa().0 {
                        $(#[cfg($where)]
                        Kind::$kind => $($module)::+::multiply_bf16(product, out, part),)*
                    }
                }
            }
        }

        impl Group for RowBlock {
            const ZERO: Self = [[0; 4]; _];

            unsafe fn multiply(product: &Product<'_, Self>, out: &Sink<'_>, part: Part) {
                let Element::Blocks { format, .. } = product.rhs.element() else {
                    unreachable!("blocks of activations are for weights in blocks");
                };
                // SAFETY: an `Isa` exists only where the CPU has the features of its module; parts
                // of a `Grid` are disjoint, and one thread computes each.
                unsafe {
                    match product.rhs.isa().0 {
                        $(#[cfg($where)]
                        Kind::$kind => $($module)::+::multiply_blocks(product, format, out, part),)*
                    }
                }
            }
        }

        impl Group for f32 {
            const ZERO: Self = 0.;

            unsafe fn multiply(product: &Product<'_, Self>, out: &Sink<'_>, part: Part) {
                // SAFETY: an `Isa` exists only where the CPU has the features of its module; parts
                // of a `Grid` are disjoint, and one thread computes each.
                unsafe {
                    match product.rhs.isa().0 {
                        $(#[cfg($where)]
                        Kind::$kind => $($module)::+::multiply_f16(product, out, part),)*
                    }
                }
            }
        }
    };
}
instruction_sets!(doors);

/// The activations of a row that one step of a product reads: four u8 codes, one f32, two bfloat16
/// or a block of i8 codes.
pub trait Group: Copy + Send + Sync {
    const ZERO: Self;

    /// Computes a part of a product on the instruction set that the weights are packed for.
    ///
    /// # Safety
    /// No other thread computes a part that overlaps.
    unsafe fn multiply(product: &Product<'_, Self>, out: &Sink<'_>, part: Part);
}
