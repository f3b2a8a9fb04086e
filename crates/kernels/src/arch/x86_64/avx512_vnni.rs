//! AVX-512 with VNNI: four products a lane and instruction.

use std::arch::x86_64::*;

pub use super::avx512::{
    attend, multiply_bf16, multiply_f16, multiply_row, multiply_shifted, run, transpose, widen,
};
use super::avx512::{exact, load, nibbles, of_blocks};
use crate::loops::blocks::{self, RowBlock};
use crate::loops::product::{Part, Product, Sink};
use crate::loops::tile::{self, MAX_ROWS};

/// A tile of 6 x 64: 24 sums, 4 weights and a broadcast of the 32 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    let vector = exact(
        |weights| load(weights),
        |codes: [u8; 4]| _mm512_set1_epi32(i32::from_le_bytes(codes)),
        |acc, a, b| _mm512_dpbusd_epi32(acc, a, b),
    );
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<16, 64, 4, MAX_ROWS, _>(product, out, part, vector) }
}

/// A tile of 6 x 32: 12 sums in i32 and 12 in f32, 4 of codes of the 32 registers; activations are
/// broadcast by the dot product itself.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")]
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    let less_8 = |less| _mm512_slli_epi32::<3>(_mm512_set1_epi32(less));
    let dot = |acc, codes, xs| _mm512_dpbusd_epi32(acc, codes, xs);
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe {
        match (product.format().bits(), part.rows.len()) {
            (4, 1) => {
                let vector = of_blocks(
                    |less| [less_8(less), _mm512_setzero_si512()],
                    |codes| {
                        let (codes, low) = (load(codes), _mm512_set1_epi8(15));
                        // The high halves, times 16 since they are not shifted.
                        let high = _mm512_andnot_si512(low, codes);
                        [(_mm512_and_si512(codes, low), 0), (high, 1)]
                    },
                    |mut acc: [__m512i; 2], (codes, half): (__m512i, usize), xs| {
                        acc[half] = dot(acc[half], codes, xs);
                        acc
                    },
                    |[low, high]: [__m512i; 2], _| {
                        _mm512_add_epi32(low, _mm512_srai_epi32::<4>(high))
                    },
                );
                blocks::multiply::<16, 64, 2, 1, _>(product, out, part, vector)
            }
            (4, _) => {
                let vector = of_blocks(less_8, |codes| nibbles(codes), dot, |acc, _| acc);
                blocks::multiply::<16, 64, 2, MAX_ROWS, _>(product, out, part, vector)
            }
            _ => {
                let less_128 = |less| _mm512_slli_epi32::<7>(_mm512_set1_epi32(less));
                let vector = of_blocks(less_128, |codes| [load(codes)], dot, |acc, _| acc);
                blocks::multiply::<16, 64, 1, MAX_ROWS, _>(product, out, part, vector)
            }
        }
    }
}
