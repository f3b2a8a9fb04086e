//! Conversions of half-precision floats against `half`, one by one.

use half::{bf16, f16};

use crate::calls::convert::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
use crate::isa::Isa;

#[test]
fn every_half_is_widened_and_every_kind_of_float_is_narrowed_as_half_does_it() {
    let patterns = (0..=u16::MAX).step_by(if cfg!(miri) { 1_251 } else { 1 });
    let bf16s: Vec<_> = patterns.clone().map(bf16::from_bits).collect();
    let f16s: Vec<_> = patterns.clone().map(f16::from_bits).collect();
    // Each bf16, and what lies around the ties above it.
    let lows = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
    let floats = patterns.flat_map(|high| lows.map(|low| u32::from(high) << 16 | low));
    let floats: Vec<_> = floats.map(f32::from_bits).collect();
    // Whole slices go to several threads, a part of them to one.
    for isa in Isa::available() {
        for len in [0, 1, 33, bf16s.len()] {
            let (bf16s, f16s) = (&bf16s[bf16s.len() - len..], &f16s[f16s.len() - len..]);
            for (got, value) in widen_bf16(isa, bf16s).iter().zip(bf16s) {
                assert_eq!(got.to_bits(), value.to_f32().to_bits(), "{isa} {value:?}");
            }
            for (got, value) in widen_f16(isa, f16s).iter().zip(f16s) {
                assert_eq!(got.to_bits(), value.to_f32().to_bits(), "{isa} {value:?}");
            }
        }
        for len in [0, 1, 33, floats.len()] {
            let floats = &floats[floats.len() - len..];
            for (got, value) in narrow_bf16(isa, floats).iter().zip(floats) {
                let expected = bf16::from_f32(*value);
                assert_eq!(got.to_bits(), expected.to_bits(), "{isa} {:x}", value.to_bits());
            }
            for (got, value) in narrow_f16(floats).iter().zip(floats) {
                let expected = f16::from_f32(*value);
                assert_eq!(got.to_bits(), expected.to_bits(), "{:x}", value.to_bits());
            }
        }
    }
}
