//! AVX2 without VNNI: 8 lanes, products in two steps that cannot saturate.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadu_si128 as loadu_halves, _mm256_abs_epi8 as abs_epi8,
    _mm256_add_epi16 as add_epi16, _mm256_add_epi32 as add_epi32, _mm256_add_ps as add_ps,
    _mm256_and_si256 as and, _mm256_castsi256_ps as cast_ps, _mm256_cvtepi32_ps as cvtepi32_ps,
    _mm256_cvtph_ps as cvtph_ps, _mm256_fmadd_ps as fmadd_ps, _mm256_loadu_ps as loadu_ps,
    _mm256_loadu_si256 as loadu, _mm256_madd_epi16 as madd_epi16,
    _mm256_maddubs_epi16 as maddubs_epi16, _mm256_mul_ps as mul_ps,
    _mm256_mullo_epi32 as mullo_epi32, _mm256_permute2f128_ps, _mm256_set1_epi8 as set1_epi8,
    _mm256_set1_epi16 as set1_epi16, _mm256_set1_epi32 as set1_epi32, _mm256_set1_ps as set1_ps,
    _mm256_shuffle_ps, _mm256_sign_epi8, _mm256_slli_epi16 as slli_epi16,
    _mm256_slli_epi32 as slli_epi32, _mm256_srai_epi16 as srai_epi16,
    _mm256_srli_epi16 as srli_epi16, _mm256_storeu_ps as storeu_ps, _mm256_sub_epi32 as sub_epi32,
    _mm256_unpackhi_ps, _mm256_unpacklo_ps, _mm256_xor_si256 as xor,
};
use std::marker::PhantomData;

use half::f16;

use super::registers::functions_of_registers;
use crate::arch::op::{Activate, Op};
use crate::loops::activation::Activation;
use crate::loops::attention::{self, Attention, QueryBlock};
use crate::loops::blocks::{self, BlockClosures, BlockVector, RowBlock};
use crate::loops::buffer::RowsMut;
use crate::loops::convert;
use crate::loops::float_row;
use crate::loops::float_tile::{self, Left, Right};
use crate::loops::float_vector::{Register, RegisterClosures};
use crate::loops::product::{Group, Pair, Part, Product, Row, Sink, bytes};
use crate::loops::split::PairSums;
use crate::loops::tile;
use crate::loops::vector::{Closures, HalfVector, Lanes, PairVector, Split, Vector};
use crate::loops::wide::{self, EvenOdd};
use crate::packed::Channels;

functions_of_registers! {
    "avx2,fma,f16c", __m256i, __m256,
    { lanes: 8, halves: 16, bytes: 32, panel: 2 },
    rows: { f16: 4, blocks: [4, 2] }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn multiply_row<const EXACT: bool>(row: &[f32], weights: &[f32], out: &mut [f32]) {
    float_row::multiply_row::<8, 1>(row, weights, out, register());
}

/// The signs of codes: the codes themselves.
#[target_feature(enable = "avx2")]
#[inline]
fn signs(codes: __m256i) -> __m256i {
    codes
}

/// Negates what is at negative codes; at zeros it may be any number.
#[target_feature(enable = "avx2")]
#[inline]
fn with_signs(xs: __m256i, signs: __m256i) -> __m256i {
    _mm256_sign_epi8(xs, signs)
}

/// Transposes a square: pairs of rows, of pairs, and of halves are interleaved.
#[target_feature(enable = "avx2")]
#[inline]
pub fn transpose_square(square: [[f32; 8]; 8]) -> [[f32; 8]; 8] {
    // SAFETY: each array is 32 bytes to read.
    let r = square.map(|row| unsafe { loadu_ps(row.as_ptr()) });
    let low = |a, b| _mm256_unpacklo_ps(a, b);
    let high = |a, b| _mm256_unpackhi_ps(a, b);
    let first = |a, b| _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
    let second = |a, b| _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
    // Column c, and 4 + c in the upper half, of rows `from` to `from + 3`.
    let columns = |from: usize| {
        let (low_a, low_b) = (low(r[from], r[from + 1]), low(r[from + 2], r[from + 3]));
        let (high_a, high_b) = (high(r[from], r[from + 1]), high(r[from + 2], r[from + 3]));
        [first(low_a, low_b), second(low_a, low_b), first(high_a, high_b), second(high_a, high_b)]
    };
    let mut out = [[0.; 8]; 8];
    for (c, (top, bottom)) in columns(0).into_iter().zip(columns(4)).enumerate() {
        let (left, right) = (
            _mm256_permute2f128_ps::<0x20>(top, bottom),
            _mm256_permute2f128_ps::<0x31>(top, bottom),
        );
        // SAFETY: each array is 32 bytes to write.
        unsafe {
            storeu_ps(out[c].as_mut_ptr(), left);
            storeu_ps(out[c + 4].as_mut_ptr(), right);
        }
    }
    out
}
