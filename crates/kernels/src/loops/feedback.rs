//! Floats of a weight to codes in blocks, the error of each input fed back into those that become
//! codes after it.

use half::f16;

use super::fit::{self, Quantizer};
use crate::qparams::blocks::{BlockScale, Blocks, INPUTS};

/// The effect of an input's error on the others: the factor `L` of `L L^T = X^T X`, `[k, k]`, its
/// columns divided by their diagonal elements, and these.
#[derive(Clone, Copy)]
pub struct Feedback<'a> {
    /// The elements below the diagonal, row by row.
    pub rows: &'a [f32],
    /// The squares of the diagonal, of which the mean is about 1.
    pub squares: &'a [f32],
}

impl<'a> Feedback<'a> {
    #[inline(always)]
    fn row(self, input: usize) -> &'a [f32] {
        &self.rows[input * input.wrapping_sub(1) / 2..][..input]
    }
}

/// A channel on its way to codes, from the last input to the first.
pub struct FittedChannel<'a> {
    pub values: &'a [f32],
    /// The values with the errors of the inputs that are codes already.
    pub targets: &'a mut [f32],
}

impl FittedChannel<'_> {
    /// The scale of a group that begins at this input.
    #[inline(always)]
    pub fn scale(
        &self,
        format: Blocks,
        feedback: Feedback<'_>,
        [start, end]: [usize; 2],
    ) -> BlockScale {
        let (values, weights) = (&self.targets[start..end], &feedback.squares[start..end]);
        let fitted = fit::scale(format, values, fit::Weighted(weights));
        // Nearly dependent inputs and little damping make errors that f16 has no room for.
        let scale = fitted.scale.clamp(f16::MIN, f16::MAX);
        BlockScale { scale, ..fitted }
    }

    /// The codes of a block of inputs by that scale; the inputs before it get the errors.
    #[inline(always)]
    pub fn codes(
        &mut self,
        format: Blocks,
        feedback: Feedback<'_>,
        [start, end]: [usize; 2],
        scale: BlockScale,
    ) -> [u8; INPUTS] {
        let quantizer = Quantizer::new(format, scale);
        let (mut codes, mut errors) = ([0; INPUTS], [0f32; INPUTS]);
        for i in (start..end).rev() {
            let step = quantizer.step(self.targets[i], quantizer.inverse());
            codes[i - start] = quantizer.code(step);
            let error = self.values[i] - quantizer.value(step);
            errors[i - start] = error;
            let row = &feedback.row(i)[start..];
            for (target, factor) in self.targets[start..i].iter_mut().zip(row) {
                *target += error * factor;
            }
        }
        let errors = &errors[..end - start];
        let (chunks, rest) = self.targets[..start].as_chunks_mut::<128>();
        let from = chunks.as_flattened().len();
        add(chunks, errors, |i, chunk| &feedback.row(start + i)[chunk * 128..]);
        let (chunks, _) = rest.as_chunks_mut::<INPUTS>();
        add(chunks, errors, |i, chunk| &feedback.row(start + i)[from + chunk * INPUTS..]);
        codes
    }
}

/// Adds the errors of a block to the targets before it, each by the factors for that chunk.
#[inline(always)]
fn add<'f, const WIDTH: usize>(
    chunks: &mut [[f32; WIDTH]],
    errors: &[f32],
    factors: impl Fn(usize, usize) -> &'f [f32],
) {
    for (at, chunk) in chunks.iter_mut().enumerate() {
        let mut sums = *chunk;
        for (i, error) in errors.iter().enumerate() {
            let factors = &factors(i, at)[..WIDTH];
            for (sum, factor) in sums.iter_mut().zip(factors) {
                *sum += error * factor;
            }
        }
        *chunk = sums;
    }
}
