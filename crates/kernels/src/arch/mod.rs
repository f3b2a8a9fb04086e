//! The instruction sets: a file each, and the only place that chooses between them.
//!
//! A file has `run`, which compiles every [`Op`] with the instruction set's features, and the loops
//! that need its registers by name: products, attention, transposing and the widening of halves.

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

use super::isa::{Isa, IsaKind, instruction_sets};
use super::loops::attention::{Attention, QueryBlock};
use super::loops::blocks::RowBlock;
use super::loops::buffer::RowsMut;
use super::loops::float_tile::{Left, Right};
use super::loops::product::{Pair, Part, Product, Sink};

/// Calls the function of that name in the module of an instruction set.
macro_rules! call {
    (
        [$isa:expr => $($call:tt)*]
        $($kind:ident $name:literal ($where:meta) $registers:tt $has:expr => $($module:ident)::+;)*
    ) => {
        call!(@ $isa, [$($call)*] $($kind ($where) $($module)::+;)*)
    };
    (@ $isa:expr, $call:tt $($kind:ident ($where:meta) $($module:ident)::+;)*) => {
        // SAFETY: an `Isa` exists only where the CPU has the features of its module; beyond that
        // the contract is the caller's.
        unsafe {
            match $isa.0 {
                $(#[cfg($where)] IsaKind::$kind => call!(@@ $call $($module)::+),)*
            }
        }
    };
    (@@ [$($call:tt)*] $($module:ident)::+) => {
        $($module)::+::$($call)*
    };
}

// Where the target has the features anyway, as it has NEON's, no call is unsafe.
#[allow(unused_unsafe)]
impl Isa {
    /// Runs an op, compiled for this instruction set, out of line.
    pub(crate) fn run<O: Op>(self, op: O) -> O::Out {
        instruction_sets!(call [self => run(op)])
    }

    /// Widens halves to f32; both slices have the same length.
    pub(crate) fn widen(self, halves: &[f16], out: &mut [f32]) {
        instruction_sets!(call [self => widen(halves, out)])
    }

    /// Writes the columns of a matrix of a size, whose rows lie a stride apart, as rows.
    pub(crate) fn transpose(self, from: (&[f32], usize), to: RowsMut<'_>, size: [usize; 2]) {
        instruction_sets!(call [self => transpose(from, to, size)])
    }

    /// Computes a product of f32, the right side's rows at offsets; each sum is in the order of
    /// depth. Without `EXACT`, instruction sets without an `fma` round products, too.
    pub(crate) fn multiply_shifted<const EXACT: bool>(
        self,
        left: Left<'_>,
        right: Right<'_>,
        offsets: &[usize],
    ) {
        instruction_sets!(call [self => multiply_shifted::<EXACT>(left, right, offsets)])
    }

    /// Computes the products of a row and of channels, `[channels, inputs]`; `EXACT` as in
    /// [`multiply_shifted`](Self::multiply_shifted).
    pub(crate) fn multiply_row<const EXACT: bool>(
        self,
        row: &[f32],
        weights: &[f32],
        out: &mut [f32],
    ) {
        instruction_sets!(call [self => multiply_row::<EXACT>(row, weights, out)])
    }

    /// Computes a block of attention; returns whether the result stands, or is to be computed with
    /// care.
    ///
    /// # Safety
    /// No other thread computes a block that overlaps.
    pub(crate) unsafe fn attend<const CAREFUL: bool>(
        self,
        attention: &Attention<'_>,
        block: QueryBlock,
        out: &Sink<'_>,
    ) -> bool {
        instruction_sets!(call [self => attend::<CAREFUL>(attention, block, out)])
    }
}

/// Products, each on the instruction set that its weights are packed for.
macro_rules! products {
    ($($(#[$doc:meta])* $name:ident: $group:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// No other thread computes a part that overlaps.
        #[allow(unused_unsafe)]
        pub unsafe fn $name(product: &Product<'_, $group>, out: &Sink<'_>, part: Part) {
            instruction_sets!(call [product.rhs.isa() => $name(product, out, part)])
        }
    )*};
}

products! {
    /// Computes a part of a product.
    multiply: [u8; 4];
    /// [`multiply`] by bfloat16.
    multiply_bf16: Pair;
    /// [`multiply`] by float16.
    multiply_f16: f32;
    /// [`multiply`] by weights in blocks.
    multiply_blocks: RowBlock;
}
