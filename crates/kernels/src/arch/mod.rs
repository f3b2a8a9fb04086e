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

/// A door for each function that the modules of all instruction sets have: products are on the one
/// that their weights are packed for.
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

        /// Computes a part of a product on the instruction set that the weights are packed for.
        ///
        /// # Safety
        /// No other thread computes a part that overlaps.
        #[allow(unused_unsafe)]
        pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
            // SAFETY: an `Isa` exists only where the CPU has the features of its module; of the part
            // the contract is the same.
            unsafe {
                match product.rhs.isa().0 {
                    $(#[cfg($where)]
                    Kind::$kind => $($module)::+::multiply(product, out, part),)*
                }
            }
        }

        /// [`multiply`] by bfloat16.
        ///
        /// # Safety
        /// No other thread computes a part that overlaps.
        #[allow(unused_unsafe)]
        pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
            // SAFETY: an `Isa` exists only where the CPU has the features of its module; of the part
            // the contract is the same.
            unsafe {
                match product.rhs.isa().0 {
                    $(#[cfg($where)]
                    Kind::$kind => $($module)::+::multiply_bf16(product, out, part),)*
                }
            }
        }

        /// [`multiply`] by float16.
        ///
        /// # Safety
        /// No other thread computes a part that overlaps.
        #[allow(unused_unsafe)]
        pub unsafe fn multiply_f16(product: &Product<'_, f32>, out: &Sink<'_>, part: Part) {
            // SAFETY: an `Isa` exists only where the CPU has the features of its module; of the part
            // the contract is the same.
            unsafe {
                match product.rhs.isa().0 {
                    $(#[cfg($where)]
                    Kind::$kind => $($module)::+::multiply_f16(product, out, part),)*
                }
            }
        }

        /// [`multiply`] by weights in blocks.
        ///
        /// # Safety
        /// No other thread computes a part that overlaps.
        #[allow(unused_unsafe)]
        pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
            let Element::Blocks { format, .. } = product.rhs.element() else {
                unreachable!("blocks of activations are for weights in blocks");
            };
            // SAFETY: an `Isa` exists only where the CPU has the features of its module; of the part
            // the contract is the same.
            unsafe {
                match product.rhs.isa().0 {
                    $(#[cfg($where)]
                    Kind::$kind => $($module)::+::multiply_blocks(product, format, out, part),)*
                }
            }
        }
    };
}
instruction_sets!(doors);
