//! AVX2 without VNNI: 8 lanes, products in two steps that cannot saturate.
//!
//! `maddubs` would multiply bytes at once, but adds pairs of products into an i16, which
//! overflows: 2 * 255 * 127 > 32,767. So bytes are widened to i16, even and odd ones apart,
//! and `madd` adds pairs of products into an i32.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use half::f16;

use crate::kernels::arch::op::{Activate, Op};
use crate::kernels::loops::activation::Activation;
use crate::kernels::loops::attention::{self, Attention, Block};
use crate::kernels::loops::codes;
use crate::kernels::loops::float_tile;
use crate::kernels::loops::product::{Part, Product, Sink};
use crate::kernels::loops::tile::{self, Closures, Lanes, Terms};

/// The door: an op compiled with these features, out of line.
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
pub fn run<O: Op>(op: O) -> O::Out {
    op.run()
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn widen(halves: &[f16], out: &mut [f32]) {
    let (halves, halves_rest) = halves.as_chunks::<8>();
    let (out, out_rest) = out.as_chunks_mut::<8>();
    for (halves, out) in halves.iter().zip(out) {
        // SAFETY: 16 bytes to read, 32 to write; no alignment is asked.
        unsafe {
            let halves = _mm_loadu_si128(halves.as_ptr().cast());
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(halves));
        }
    }
    codes::widen(halves_rest, out_rest);
}

/// # Safety
/// The CPU has these features, and no other thread computes a block that overlaps.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn attend(attention: &Attention<'_>, block: Block, out: &Sink<'_>) {
    let register = float_tile::Closures {
        // SAFETY: the array is 32 bytes to read; no alignment is asked.
        load: |from: &[f32; 8]| unsafe { _mm256_loadu_ps(from.as_ptr()) },
        splat: |value| _mm256_set1_ps(value),
        fma: |a, b, acc| _mm256_fmadd_ps(a, b, acc),
        // SAFETY: the array is 32 bytes to write.
        store: |values, to: &mut [f32; 8]| unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) },
        transpose: |square| transpose(square),
    };
    // SAFETY: the block is of this thread alone.
    unsafe { attention::attend::<8, 2>(attention, block, out, register) }
}

/// A tile of 4 x 16: 8 sums, 4 half-weights and 2 half-broadcasts of the 16 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, part: Part) {
    let vector = Closures::<true, _, _, _, _, _, _, _, _> {
        start: |terms: Terms<'_, 8>| start(terms),
        load: |weights: &[u8; 32]| {
            // SAFETY: the array is 32 bytes to read; no alignment is asked.
            let bytes = unsafe { _mm256_loadu_si256(weights.as_ptr().cast()) };
            let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes));
            (even, _mm256_srai_epi16::<8>(bytes))
        },
        splat: |codes: [u8; 4]| {
            let bytes = _mm256_set1_epi32(i32::from_le_bytes(codes));
            let even = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
            (even, _mm256_srli_epi16::<8>(bytes))
        },
        dot: |acc, a: (__m256i, __m256i), b: (__m256i, __m256i)| {
            let even = _mm256_madd_epi16(a.0, b.0);
            let odd = _mm256_madd_epi16(a.1, b.1);
            _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
        },
        add: |left, right| _mm256_add_epi32(left, right),
        finish: |acc, terms: Terms<'_, 8>, out: &mut Lanes<8>| finish(acc, terms, out),
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: the part is of this thread alone.
    unsafe { tile::multiply::<8, 32, 4, _>(product, part, vector) }
}

/// The value that 8 sums begin with: their correction by zero points.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub fn start(terms: Terms<'_, 8>) -> __m256i {
    // SAFETY: each array is 32 bytes to read.
    let load = |xs: &[i32; 8]| unsafe { _mm256_loadu_si256(xs.as_ptr().cast()) };
    let zero_point = _mm256_set1_epi32(terms.row.zero_point.wrapping_neg());
    let acc = _mm256_mullo_epi32(zero_point, load(terms.sums));
    let Some(zero_points) = terms.zero_points else {
        return acc;
    };
    let sum = _mm256_set1_epi32(terms.row.sum);
    _mm256_sub_epi32(acc, _mm256_mullo_epi32(sum, load(zero_points)))
}

/// Scale and bias of 8 sums.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub fn finish(acc: __m256i, terms: Terms<'_, 8>, out: &mut Lanes<8>) {
    // SAFETY: each array is 32 bytes to read.
    let load = |xs: &[f32; 8]| unsafe { _mm256_loadu_ps(xs.as_ptr()) };
    let scale = _mm256_mul_ps(_mm256_set1_ps(terms.row.scale), load(terms.scales));
    let values = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc), scale, load(terms.bias));
    // SAFETY: the array is 32 bytes to write.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), values) };
}

/// A tile of 4 x 16 of floats: 8 sums, 2 weights and a broadcast of the 16 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn multiply_f16(product: &Product<'_, f32>, part: Part) {
    let vector = Closures::<false, _, _, _, _, _, _, _, _> {
        start: |_: Terms<'_, 8>| _mm256_setzero_ps(),
        load: |weights: &[u8; 16]| {
            // SAFETY: the array is 16 bytes to read; no alignment is asked.
            _mm256_cvtph_ps(unsafe { _mm_loadu_si128(weights.as_ptr().cast()) })
        },
        splat: |x: f32| _mm256_set1_ps(x),
        dot: |acc, x, weights| _mm256_fmadd_ps(x, weights, acc),
        add: |left, right| _mm256_add_ps(left, right),
        finish: |acc, terms: Terms<'_, 8>, out: &mut Lanes<8>| {
            // SAFETY: each array is 32 bytes to read or to write.
            unsafe {
                let bias = _mm256_loadu_ps(terms.bias.as_ptr());
                _mm256_storeu_ps(out.as_mut_ptr().cast(), _mm256_add_ps(acc, bias));
            }
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: the part is of this thread alone.
    unsafe { tile::multiply::<8, 16, 4, _>(product, part, vector) }
}

/// Rows become columns: pairs of rows, of pairs, and of halves are interleaved.
#[target_feature(enable = "avx2")]
#[inline]
pub fn transpose(square: [[f32; 8]; 8]) -> [[f32; 8]; 8] {
    // SAFETY: each array is 32 bytes to read.
    let r = square.map(|row| unsafe { _mm256_loadu_ps(row.as_ptr()) });
    let low = |a, b| _mm256_unpacklo_ps(a, b);
    let high = |a, b| _mm256_unpackhi_ps(a, b);
    let first = |a, b| _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
    let second = |a, b| _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
    // Column c, and 4 + c in the upper half, of rows `from` to `from + 3`.
    let columns = |from: usize| {
        let (low_a, low_b) = (low(r[from], r[from + 1]), low(r[from + 2], r[from + 3]));
        let (high_a, high_b) = (high(r[from], r[from + 1]), high(r[from + 2], r[from + 3]));
        [
            first(low_a, low_b),
            second(low_a, low_b),
            first(high_a, high_b),
            second(high_a, high_b),
        ]
    };
    let mut out = [[0.; 8]; 8];
    for (c, (top, bottom)) in columns(0).into_iter().zip(columns(4)).enumerate() {
        let (left, right) = (
            _mm256_permute2f128_ps::<0x20>(top, bottom),
            _mm256_permute2f128_ps::<0x31>(top, bottom),
        );
        // SAFETY: each array is 32 bytes to write.
        unsafe {
            _mm256_storeu_ps(out[c].as_mut_ptr(), left);
            _mm256_storeu_ps(out[c + 4].as_mut_ptr(), right);
        }
    }
    out
}
