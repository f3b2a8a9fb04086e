//! Half-precision floats to f32 and back.

use half::{bf16, f16};

/// Writes each half as f32, which is exact.
#[inline(always)]
pub fn widen_f16(halves: &[f16], out: &mut [f32]) {
    for (half, out) in halves.iter().zip(out) {
        *out = half.to_f32();
    }
}

/// Writes each bf16 as f32, which is exact; NaN becomes quiet, as `bf16::to_f32` has it.
#[inline(always)]
pub fn widen_bf16(values: &[bf16], out: &mut [f32]) {
    for (value, out) in values.iter().zip(out) {
        let bits = u32::from(value.to_bits());
        let is_nan = bits & 0x7fff > 0x7f80;
        *out = f32::from_bits(if is_nan { bits | 0x40 } else { bits } << 16);
    }
}

/// Writes each f32 as bf16, rounded half to even; the same bits as `bf16::from_f32`, without its
/// branches.
#[inline(always)]
pub fn narrow_bf16(values: &[f32], out: &mut [bf16]) {
    for (value, out) in values.iter().zip(out) {
        *out = bf16::from_bits(rounded(*value));
    }
}

/// Writes each f32 as a bfloat16 factor of a product, in bytes: rounded half to even, and 0 where
/// that is subnormal, which some instructions take as 0.
#[inline(always)]
pub fn round_bf16(values: &[f32], out: &mut [[u8; 2]]) {
    for (value, out) in values.iter().zip(out) {
        *out = flushed(rounded(*value)).to_le_bytes();
    }
}

/// The bits of the f32 that a factor in bfloat16 is, of which the lower half is 0: rounded half to
/// even, and 0 of a subnormal value, as `vcvtne2ps2bf16` has it.
#[inline(always)]
pub fn factor(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    let is_normal = bits & 0x7f80_0000 != 0;
    let factor = if is_nan { bits | 0x40_0000 } else { rounded };
    factor & if is_normal { 0xffff_0000 } else { 0x8000_0000 }
}

/// Two groups of adjacent inputs as pairs of the even and of the odd ones, the later one first.
#[inline(always)]
pub fn alternate(groups: &mut [[[u8; 2]; 2]]) {
    for groups in groups.as_chunks_mut::<2>().0 {
        let [[a, b], [c, d]] = *groups;
        *groups = [[c, a], [d, b]];
    }
}

/// The bits of a bf16, or of 0 with its sign if it is subnormal.
#[inline(always)]
pub fn flushed(bits: u16) -> u16 {
    if bits & 0x7f80 == 0 { bits & 0x8000 } else { bits }
}

/// The bits of the bf16 next to a value, half to even.
#[inline(always)]
fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // A quiet NaN with the sign and what there is of the payload.
    let nan = (bits >> 16) | 0x40;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { nan } else { rounded }) as u16
}
