//! AVX-512 without VNNI: 16 lanes, products in two steps that cannot saturate, as in AVX2.

use std::arch::x86_64::{
    __m512, __m512i, __mmask64, _mm256_loadu_si256 as loadu_halves, _mm512_abs_epi8 as abs_epi8,
    _mm512_add_epi16 as add_epi16, _mm512_add_epi32 as add_epi32, _mm512_add_ps as add_ps,
    _mm512_and_si512 as and, _mm512_castsi512_ps as cast_ps, _mm512_cvtepi32_ps as cvtepi32_ps,
    _mm512_cvtph_ps as cvtph_ps, _mm512_fmadd_ps as fmadd_ps, _mm512_loadu_ps as loadu_ps,
    _mm512_loadu_si512 as loadu, _mm512_madd_epi16 as madd_epi16,
    _mm512_maddubs_epi16 as maddubs_epi16, _mm512_mask_sub_epi8, _mm512_movepi8_mask,
    _mm512_mul_ps as mul_ps, _mm512_mullo_epi32 as mullo_epi32, _mm512_set1_epi8 as set1_epi8,
    _mm512_set1_epi16 as set1_epi16, _mm512_set1_epi32 as set1_epi32, _mm512_set1_ps as set1_ps,
    _mm512_slli_epi16 as slli_epi16, _mm512_slli_epi32 as slli_epi32,
    _mm512_srai_epi16 as srai_epi16, _mm512_srli_epi16 as srli_epi16,
    _mm512_storeu_ps as storeu_ps, _mm512_sub_epi32 as sub_epi32, _mm512_xor_si512 as xor,
};
use std::marker::PhantomData;

use half::f16;

pub use super::avx2::multiply_row;
use super::avx2::transpose_square;
use super::registers::functions_of_registers;
use crate::arch::op::{Activate, Op};
use crate::loops::activation::Activation;
use crate::loops::attention::{self, Attention, QueryBlock};
use crate::loops::blocks::{self, BlockClosures, BlockVector, RowBlock};
use crate::loops::buffer::RowsMut;
use crate::loops::convert;
use crate::loops::float_tile::{self, Left, Right};
use crate::loops::float_vector::{Register, RegisterClosures};
use crate::loops::product::{Group, Pair, Part, Product, Row, Sink, bytes};
use crate::loops::split::PairSums;
use crate::loops::tile;
use crate::loops::vector::{Closures, HalfVector, Lanes, PairVector, Split, Vector};
use crate::loops::wide::{self, EvenOdd};
use crate::packed::Channels;

functions_of_registers! {
    "avx512f,avx512bw,avx512dq,avx512vl,fma", __m512i, __m512,
    { lanes: 16, halves: 32, bytes: 64, panel: 4 },
    rows: { f16: 6, blocks: [6, 6] }
}

/// Which codes are negative.
#[target_feature(enable = "avx512bw")]
#[inline]
fn signs(codes: __m512i) -> __mmask64 {
    _mm512_movepi8_mask(codes)
}

/// Negates what is at negative codes.
#[target_feature(enable = "avx512bw")]
#[inline]
fn with_signs(xs: __m512i, signs: __mmask64) -> __m512i {
    _mm512_mask_sub_epi8(xs, signs, set1_epi32(0), xs)
}
