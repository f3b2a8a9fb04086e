//! The instruction sets: a file each, and the only place that chooses between them.
//!
//! A file has `run`, the door through which every [`Op`] is compiled with the instruction set's
//! features, and the loops that need its registers by name: two products, attention and the
//! widening of halves.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod op;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use half::f16;
use op::Op;

use super::isa::{Isa, Kind, instruction_sets};
use super::loops::attention::{Attention, Block};
use super::loops::product::{Group, Part, Product, Sink};

/// A method for each function that the modules of all instruction sets have.
macro_rules! doors {
    ($($kind:ident $name:literal ($where:meta) $registers:tt $has:expr => $($module:ident)::+;)*) => {
        // Where the features are those of the target, as NEON's are, no call is unsafe.
        #[allow(unused_unsafe)]
        impl Isa {
            /// Runs an op, compiled for this instruction set, out of line.
            pub(in crate::kernels) fn run<O: Op>(self, op: O) -> O::Out {
                // SAFETY: an `Isa` exists only where the CPU has the features of its module.
                unsafe {
                    match self.0 {
                        $(#[cfg($where)] Kind::$kind => $($module)::+::run(op),)*
                    }
                }
            }

            /// Widens halves to f32, as many.
            pub(in crate::kernels) fn widen(self, halves: &[f16], out: &mut [f32]) {
                // SAFETY: an `Isa` exists only where the CPU has the features of its module.
                unsafe {
                    match self.0 {
                        $(#[cfg($where)] Kind::$kind => $($module)::+::widen(halves, out),)*
                    }
                }
            }

            /// Computes a block of attention.
            ///
            /// # Safety
            /// No other thread computes a block that overlaps.
            pub(in crate::kernels) unsafe fn attend(
                self,
                attention: &Attention<'_>,
                block: Block,
                out: &Sink<'_>,
            ) {
                // SAFETY: the CPU has the features, and no other thread computes such a block.
                unsafe {
                    match self.0 {
                        $(#[cfg($where)]
                        Kind::$kind => $($module)::+::attend(attention, block, out),)*
                    }
                }
            }

            /// # Safety
            /// No other thread computes a part that overlaps.
            unsafe fn multiply(self, product: &Product<'_, [u8; 4]>, part: Part) {
                // SAFETY: the CPU has the features, and no other thread computes such a part.
                unsafe {
                    match self.0 {
                        $(#[cfg($where)] Kind::$kind => $($module)::+::multiply(product, part),)*
                    }
                }
            }

            /// # Safety
            /// No other thread computes a part that overlaps.
            unsafe fn multiply_f16(self, product: &Product<'_, f32>, part: Part) {
                // SAFETY: the CPU has the features, and no other thread computes such a part.
                unsafe {
                    match self.0 {
                        $(#[cfg($where)]
                        Kind::$kind => $($module)::+::multiply_f16(product, part),)*
                    }
                }
            }
        }
    };
}
instruction_sets!(doors);

/// Groups of activations that every instruction set multiplies.
pub trait Multiply: Group {
    /// Computes a part of a product on the instruction set that the weights are packed for.
    ///
    /// # Safety
    /// No other thread computes a part that overlaps.
    unsafe fn multiply(product: &Product<'_, Self>, part: Part);
}

impl Multiply for [u8; 4] {
    unsafe fn multiply(product: &Product<'_, Self>, part: Part) {
        // SAFETY: no other thread computes such a part.
        unsafe { product.rhs.isa().multiply(product, part) }
    }
}

impl Multiply for f32 {
    unsafe fn multiply(product: &Product<'_, Self>, part: Part) {
        // SAFETY: no other thread computes such a part.
        unsafe { product.rhs.isa().multiply_f16(product, part) }
    }
}
