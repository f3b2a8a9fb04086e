//! AVX2 without VNNI: 8 lanes, products in two steps that cannot saturate.
//!
//! `maddubs` multiplies bytes and adds pairs of products into an i16. That is exact where the codes
//! of activations have 7 bits, `2 * 127 * 128 < 2^15`, or the weights' a reduced range,
//! `2 * 255 * 64 < 2^15`, as by some presets. For other weights activations are
//! [split](crate::loops::split). Keys and values of attention are widened to i16, even and odd ones
//! separately, and `madd` adds pairs of products into an i32.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use half::f16;

use super::maddubs::maddubs;
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
use crate::loops::vector::{Closures, Lanes, Split, Vector};
use crate::loops::wide::{self, EvenOdd};
use crate::packed::Channels;

/// Runs an op, compiled with these features, out of line.
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
pub fn run<O: Op>(op: O) -> O::Out {
    op.run::<f32>()
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
    convert::widen_f16(halves_rest, out_rest);
}

#[target_feature(enable = "avx2,fma")]
pub fn transpose(from: (&[f32], usize), to: RowsMut<'_>, [rows, columns]: [usize; 2]) {
    float_tile::transpose::<8>(from, to, rows, columns, register());
}

#[target_feature(enable = "avx2,fma")]
pub fn multiply_shifted<const EXACT: bool>(left: Left<'_>, right: Right<'_>, offsets: &[usize]) {
    float_tile::product_of_shifted::<8, 2>(left, (right, offsets), register());
}

#[target_feature(enable = "avx2,fma")]
pub fn multiply_row<const EXACT: bool>(row: &[f32], weights: &[f32], out: &mut [f32]) {
    float_row::multiply_row::<8, 1>(row, weights, out, register());
}

/// The registers of attention.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub fn register() -> impl Register<8, V = __m256> {
    RegisterClosures {
        // SAFETY: the array is 32 bytes to read; no alignment is asked.
        load: |from: &[f32; 8]| unsafe { _mm256_loadu_ps(from.as_ptr()) },
        splat: |value| _mm256_set1_ps(value),
        add: |left, right| _mm256_add_ps(left, right),
        fma: |a, b, acc| _mm256_fmadd_ps(a, b, acc),
        // SAFETY: the array is 32 bytes to write.
        store: |values, to: &mut [f32; 8]| unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) },
        transpose: |square| transpose_square(square),
    }
}

/// # Safety
/// The CPU has these features, and no other thread computes a block that overlaps.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn attend<const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: QueryBlock,
    out: &Sink<'_>,
) -> bool {
    // SAFETY: blocks of attention are disjoint, and one thread computes each.
    unsafe { attention::attend_by::<8, 2, f32, _, CAREFUL>(attention, block, out, register()) }
}

maddubs! {
    "avx2,fma", __m256i, { lanes: 8, bytes: 32, panel: 2 },
    [
        _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_xor_si256,
        _mm256_slli_epi16, _mm256_srai_epi16
    ],
    [_mm256_maddubs_epi16, _mm256_madd_epi16, _mm256_mullo_epi32, _mm256_add_epi32, _mm256_sub_epi32]
}

/// Scale and bias of 8 sums.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn scaled(acc: __m256i, row: Row, scales: __m256, bias: __m256) -> __m256 {
    let scale = _mm256_mul_ps(_mm256_set1_ps(row.scale), scales);
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc), scale, bias)
}

#[target_feature(enable = "avx2")]
#[inline]
fn integers(xs: &[i32; 8]) -> __m256i {
    // SAFETY: the array is 32 bytes to read; no alignment is asked.
    unsafe { _mm256_loadu_si256(xs.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn floats(xs: &[f32; 8]) -> __m256 {
    // SAFETY: the array is 32 bytes to read; no alignment is asked.
    unsafe { _mm256_loadu_ps(xs.as_ptr()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn put(values: __m256, out: &mut Lanes<8>) {
    // SAFETY: the array is 32 bytes to write; no alignment is asked.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), values) }
}

/// A tile of 4 x 16 of floats: 8 sums, 2 weights and a broadcast of the 16 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn multiply_f16(product: &Product<'_, f32>, out: &Sink<'_>, part: Part) {
    let vector = Closures {
        start: |_, _: Channels<'_, 8>| _mm256_setzero_ps(),
        load: |weights: &[u8; 16]| {
            // SAFETY: the array is 16 bytes to read; no alignment is asked.
            _mm256_cvtph_ps(unsafe { _mm_loadu_si128(weights.as_ptr().cast()) })
        },
        splat: |x: f32| _mm256_set1_ps(x),
        dot: |acc, x, weights| _mm256_fmadd_ps(x, weights, acc),
        add: |left, right| _mm256_add_ps(left, right),
        fold: |acc, _| acc,
        finish: |acc, _, channels: Channels<'_, 8>, out: &mut Lanes<8>| {
            put(_mm256_add_ps(acc, floats(channels.bias)), out);
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<8, 16, 2, 4, _>(product, out, part, vector) }
}

/// A tile of 2 x 16: 8 sums of even and odd inputs, 4 weights and 2 values of the 16 registers.
/// The sums of earlier blocks are in memory.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
    // A bfloat16 is the upper half of an f32.
    let widen = |pairs| {
        (
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(!0xffff))),
        )
    };
    let vector = Closures {
        // The sums of even and odd inputs of a block, or what blocks gave and 0.
        start: |_, _: Channels<'_, 8>| [_mm256_setzero_ps(); 2],
        // SAFETY: the array is 32 bytes to read; no alignment is asked.
        load: |weights: &[u8; 32]| widen(unsafe { _mm256_loadu_si256(weights.as_ptr().cast()) }),
        splat: |pair: Pair| widen(_mm256_set1_epi32(i32::from_le_bytes(bytes(pair)))),
        dot: |[even, odd]: [__m256; 2], a: (__m256, __m256), b: (__m256, __m256)| {
            [_mm256_fmadd_ps(a.0, b.0, even), _mm256_fmadd_ps(a.1, b.1, odd)]
        },
        add: |left: [__m256; 2], _| left,
        fold: |[sum, rest]: [__m256; 2], [even, odd]: [__m256; 2]| {
            let sum = _mm256_add_ps(sum, _mm256_add_ps(even, odd));
            [sum, rest]
        },
        finish: |[sum, _]: [__m256; 2], _, channels: Channels<'_, 8>, out: &mut Lanes<8>| {
            put(_mm256_add_ps(sum, floats(channels.bias)), out);
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<8, 32, 2, 2, _>(product, out, part, vector) }
}

/// Multiplies by `maddubs`, which is exact: 8 products of two codes of 4 bits and of activations
/// add up to at most `16 * 15 * 127 < 2^15`, and two of 8 bits, by their absolute values, to
/// `2 * 128 * 127`.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    let ones = _mm256_set1_epi16(1);
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe {
        if product.format().bits() == 4 {
            let vector = of_blocks(
                |_| _mm256_setzero_si256(),
                |codes| nibbles(codes),
                |acc, codes, xs| _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, xs)),
                |acc, less| {
                    let sums = _mm256_madd_epi16(acc, ones);
                    _mm256_add_epi32(sums, _mm256_slli_epi32::<3>(_mm256_set1_epi32(less)))
                },
            );
            blocks::multiply::<8, 32, 2, 4, _>(product, out, part, vector)
        } else {
            let vector = of_blocks(
                |_| _mm256_setzero_si256(),
                |codes| {
                    let codes = _mm256_xor_si256(load(codes), _mm256_set1_epi8(i8::MIN));
                    [(_mm256_abs_epi8(codes), codes)]
                },
                |acc, codes: (__m256i, __m256i), xs| {
                    let pairs = _mm256_maddubs_epi16(codes.0, _mm256_sign_epi8(xs, codes.1));
                    _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, ones))
                },
                |acc, _| acc,
            );
            blocks::multiply::<8, 32, 1, 2, _>(product, out, part, vector)
        }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
pub fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the array is 32 bytes to read; no alignment is asked.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Codes of 4 bits: the low half of each byte, then the high half.
#[target_feature(enable = "avx2")]
#[inline]
pub fn nibbles(codes: &[u8; 32]) -> [__m256i; 2] {
    let (codes, low) = (load(codes), _mm256_set1_epi8(15));
    let high = _mm256_srli_epi16::<4>(codes);
    [_mm256_and_si256(codes, low), _mm256_and_si256(high, low)]
}

/// A register of 8 sums of blocks, in which instruction sets differ by how they multiply.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub fn of_blocks<B: Copy, const PER: usize>(
    start: impl Fn(i32) -> __m256i + Copy,
    load: impl Fn(&[u8; 32]) -> [B; PER] + Copy,
    dot: impl Fn(__m256i, B, __m256i) -> __m256i + Copy,
    total: impl Fn(__m256i, i32) -> __m256i + Copy,
) -> impl BlockVector<8, 32, PER> {
    BlockClosures {
        start,
        load,
        dot: move |acc, codes, xs: [u8; 4]| {
            dot(acc, codes, _mm256_set1_epi32(i32::from_le_bytes(xs)))
        },
        float: move |acc, less| _mm256_cvtepi32_ps(total(acc, less)),
        widen: |halves: &[[u8; 2]; 8]| {
            // SAFETY: the array is 16 bytes to read; no alignment is asked.
            _mm256_cvtph_ps(unsafe { _mm_loadu_si128(halves.as_ptr().cast()) })
        },
        floats: register(),
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
    }
}

/// Transposes a square: pairs of rows, of pairs, and of halves are interleaved.
#[target_feature(enable = "avx2")]
#[inline]
pub fn transpose_square(square: [[f32; 8]; 8]) -> [[f32; 8]; 8] {
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
            _mm256_storeu_ps(out[c].as_mut_ptr(), left);
            _mm256_storeu_ps(out[c + 4].as_mut_ptr(), right);
        }
    }
    out
}
