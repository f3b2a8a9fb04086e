//! Loops as values, to be compiled for an instruction set.

use std::mem::MaybeUninit;

use crate::loops::activation::{self, Activation};
use crate::loops::number::Number;
use crate::loops::rows::{self, Extent};

/// A loop in plain Rust, which each instruction set compiles with its own features.
///
/// `run` and everything that it calls are `#[inline(always)]`: a separate function would be
/// compiled without the features. Formulas are computed over the instruction set's numbers.
pub trait Op {
    type Out;

    fn run<N: Number>(self) -> Self::Out;
}

/// Functions that make ops of their operands, whose lifetime is `'a`; in their bodies, which are
/// the loops, `N` is the instruction set's number.
macro_rules! ops {
    (@out) => { () };
    (@out $out:ty) => { $out };
    ($(
        $(#[$doc:meta])*
        $visible:vis fn $name:ident($($operand:ident: $type:ty),* $(,)?) $(-> $out:ty)? $body:block
    )*) => {$(
        $(#[$doc])*
        $visible fn $name<'a>($($operand: $type),*) -> impl $crate::arch::op::Op<Out = ops!(@out $($out)?)> {
            struct OpOperands<'a> {
                $($operand: $type),*
            }

            impl $crate::arch::op::Op for OpOperands<'_> {
                type Out = ops!(@out $($out)?);

                #[inline(always)]
                fn run<N: $crate::loops::number::Number>(self) -> Self::Out {
                    let Self { $($operand),* } = self;
                    $body
                }
            }

            OpOperands { $($operand),* }
        }
    )*};
}
pub(crate) use ops;

/// Applies an activation function to each element.
pub struct Activate<'a> {
    pub activation: Activation,
    pub xs: &'a mut [f32],
}

impl Op for Activate<'_> {
    type Out = ();

    #[inline(always)]
    fn run<N: Number>(self) {
        activation::apply::<N>(self.activation, self.xs);
    }
}

/// Elements that are multiplied while they are in L1.
const IN_L1: usize = 2_048;

/// Writes the activation function of each element, multiplied by its factor if there are factors.
///
/// Not by `ops`: taken apart first, its loops load both pointers again for each block.
pub struct ActivateTo<'a> {
    pub activation: Activation,
    pub xs: &'a [f32],
    pub factors: Option<&'a [f32]>,
    pub out: &'a mut [MaybeUninit<f32>],
}

impl Op for ActivateTo<'_> {
    type Out = ();

    #[inline(always)]
    fn run<N: Number>(self) {
        let Some(factors) = self.factors else {
            return activation::apply_to::<N>(self.activation, self.xs, self.out);
        };
        let xs = self.xs.chunks(IN_L1).zip(factors.chunks(IN_L1));
        for ((xs, factors), out) in xs.zip(self.out.chunks_mut(IN_L1)) {
            activation::apply_to::<N>(self.activation, xs, out);
            // SAFETY: `apply_to` wrote every element.
            let written = unsafe { out.assume_init_mut() };
            for (y, factor) in written.iter_mut().zip(factors) {
                *y *= factor;
            }
        }
    }
}

ops! {
    /// Takes the extent of each `k` values, and of the rest.
    pub fn take_extents(k: usize, values: &'a [f32], extents: &'a mut [Extent]) {
        for (values, extent) in values.chunks(k.max(1)).zip(extents) {
            *extent = rows::extent(values);
        }
    }
}
