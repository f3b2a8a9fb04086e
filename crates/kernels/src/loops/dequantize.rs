//! Codes back to f32.

use super::number::fma;
use crate::reference::Affine;

/// Writes the value of each code.
///
/// Element by element: of blocks, the compiler makes scalar code, or scatters over blocks.
#[inline(always)]
pub fn dequantize(codes: &[u8], affine: Affine, out: &mut [f32]) {
    let shift = affine.shift as f32;
    for (code, out) in codes.iter().zip(out) {
        *out = fma(f32::from(*code) - shift, affine.scale, affine.offset);
    }
}
