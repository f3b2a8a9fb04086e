//! AVX-VNNI: 8 lanes, four products a lane and instruction.

use std::arch::x86_64::*;

use super::avx2;
use crate::loops::blocks::{self, RowBlock};
use crate::loops::product::{Part, Product, Sink};
use crate::loops::tile::{self, MAX_ROWS};

pub use super::avx2::{
    attend, multiply_bf16, multiply_f16, multiply_row, multiply_shifted, run, transpose, widen,
};

/// A tile of 6 x 16: 12 sums, 2 weights and a broadcast of the 16 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    let vector = avx2::exact(
        |weights| avx2::load(weights),
        |codes: [u8; 4]| _mm256_set1_epi32(i32::from_le_bytes(codes)),
        |acc, a, b| _mm256_dpbusd_avx_epi32(acc, a, b),
    );
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<8, 32, 2, MAX_ROWS, _>(product, out, part, vector) }
}

/// A tile of 2 x 16: 4 sums in i32 and 4 in f32, 4 of codes and a broadcast of the 16 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    let dot = |acc, codes, xs| _mm256_dpbusd_avx_epi32(acc, codes, xs);
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe {
        if product.format().bits() == 4 {
            let start = |less| _mm256_slli_epi32::<3>(_mm256_set1_epi32(less));
            let vector = avx2::of_blocks(start, |codes| avx2::nibbles(codes), dot, |acc, _| acc);
            blocks::multiply::<8, 32, 2, 4, _>(product, out, part, vector)
        } else {
            let start = |less| _mm256_slli_epi32::<7>(_mm256_set1_epi32(less));
            let vector = avx2::of_blocks(start, |codes| [avx2::load(codes)], dot, |acc, _| acc);
            blocks::multiply::<8, 32, 1, 4, _>(product, out, part, vector)
        }
    }
}
