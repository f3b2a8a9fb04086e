//! Codes back to f32.

use super::number::fma;
use crate::kernels::reference::Affine;

/// Elements taken at a time: two of the widest registers.
const LANES: usize = 32;

/// Writes the value of each code.
#[inline(always)]
pub fn dequantize(codes: &[u8], affine: Affine, out: &mut [f32]) {
    let shift = affine.shift as f32;
    let value = |code: u8| fma(f32::from(code) - shift, affine.scale, affine.offset);
    let (codes, codes_rest) = codes.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for (codes, out) in codes.iter().zip(out) {
        for (code, out) in codes.iter().zip(out) {
            *out = value(*code);
        }
    }
    for (code, out) in codes_rest.iter().zip(out_rest) {
        *out = value(*code);
    }
}
