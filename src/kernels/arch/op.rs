//! Loops as values, to be compiled for an instruction set.

use crate::kernels::loops::activation::{self, Activation};

/// A loop in plain Rust, which each instruction set compiles with its own features.
///
/// `run` and all that it calls are `#[inline(always)]`: a function of its own would be compiled
/// without the features.
pub trait Op {
    type Out;

    fn run(self) -> Self::Out;
}

/// Applies an activation function to each element.
pub struct Activate<'a> {
    pub activation: Activation,
    pub xs: &'a mut [f32],
}

impl Op for Activate<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        activation::apply(self.activation, self.xs);
    }
}
