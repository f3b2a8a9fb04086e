//! The geometry of a convolution.

use crate::arch::op::{Activate, ops};
use crate::isa::Isa;
use crate::loops::activation::Activation;
use crate::sizes;

/// The geometry of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    /// The input: batch, channels, height and width.
    pub shape: [usize; 4],
    /// Groups of channels, each of which reads its part of the input channels alone.
    pub groups: usize,
    /// Rows and columns of a window.
    pub kernel: [usize; 2],
    /// Positions from a window to the next.
    pub stride: [usize; 2],
    /// Positions before the first and after the last that contribute nothing.
    pub padding: [usize; 2],
    /// Positions from a tap to the next.
    pub dilation: [usize; 2],
    /// Applied to every element of the result.
    pub activation: Option<Activation>,
}

impl Convolution {
    /// Adds a residual to results, before the activation function.
    pub(super) fn add_residual(&self, isa: Isa, xs: &mut [f32], residual: &[f32]) {
        isa.run(add(xs, residual));
        if let Some(activation) = self.activation {
            isa.run(Activate { activation, xs });
        }
    }

    /// Height and width with padding; `None` if memory cannot hold as many positions.
    pub fn padded(&self) -> Option<[usize; 2]> {
        let [batch, channels, sizes @ ..] = self.shape;
        let size = |i: usize| self.padding[i].checked_mul(2)?.checked_add(sizes[i]);
        let padded = [size(0)?, size(1)?];
        sizes::product(&[batch, padded[0], padded[1], channels.max(self.groups)])?;
        Some(padded)
    }

    /// Height and width of the output; `None` if a window is larger than the input with its
    /// padding, or memory cannot hold the input with its padding.
    pub fn out_size(&self) -> Option<[usize; 2]> {
        let padded = self.padded()?;
        let size = |i: usize| {
            let reach = self.dilation[i].checked_mul(self.kernel[i].checked_sub(1)?)?;
            let left = padded[i].checked_sub(reach.checked_add(1)?)?;
            Some(left.checked_div(self.stride[i])? + 1)
        };
        Some([size(0)?, size(1)?])
    }
}

ops! {
    fn add(xs: &'a mut [f32], terms: &'a [f32]) {
        for (x, term) in xs.iter_mut().zip(terms) {
            *x += term;
        }
    }
}
