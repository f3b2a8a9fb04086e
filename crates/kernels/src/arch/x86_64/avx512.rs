//! AVX-512 without VNNI: 16 lanes, products in two steps that cannot saturate, as in [`avx2`].

use std::arch::x86_64::*;
use std::marker::PhantomData;

use half::f16;

use super::avx2;
pub use super::avx2::multiply_row;
use super::maddubs::maddubs;
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
use crate::loops::tile::{self, MAX_ROWS};
use crate::loops::vector::{Closures, Lanes, Split, Vector};
use crate::loops::wide::{self, EvenOdd};
use crate::packed::Channels;

/// Runs an op, compiled with these features, out of line.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
#[inline(never)]
pub fn run<O: Op>(op: O) -> O::Out {
    op.run::<f32>()
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub fn widen(halves: &[f16], out: &mut [f32]) {
    let (halves, halves_rest) = halves.as_chunks::<16>();
    let (out, out_rest) = out.as_chunks_mut::<16>();
    for (halves, out) in halves.iter().zip(out) {
        // SAFETY: 32 bytes to read, 64 to write; no alignment is asked.
        unsafe {
            let halves = _mm256_loadu_si256(halves.as_ptr().cast());
            _mm512_storeu_ps(out.as_mut_ptr(), _mm512_cvtph_ps(halves));
        }
    }
    convert::widen_f16(halves_rest, out_rest);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub fn transpose(from: (&[f32], usize), to: RowsMut<'_>, [rows, columns]: [usize; 2]) {
    float_tile::transpose::<16>(from, to, rows, columns, register());
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub fn multiply_shifted<const EXACT: bool>(left: Left<'_>, right: Right<'_>, offsets: &[usize]) {
    float_tile::product_of_shifted::<16, 4>(left, (right, offsets), register());
}

/// The registers of attention.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
#[inline]
pub fn register() -> impl Register<16, V = __m512> {
    RegisterClosures {
        // SAFETY: the array is 64 bytes to read; no alignment is asked.
        load: |from: &[f32; 16]| unsafe { _mm512_loadu_ps(from.as_ptr()) },
        splat: |value| _mm512_set1_ps(value),
        add: |left, right| _mm512_add_ps(left, right),
        fma: |a, b, acc| _mm512_fmadd_ps(a, b, acc),
        // SAFETY: the array is 64 bytes to write.
        store: |values, to: &mut [f32; 16]| unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) },
        transpose: |square| avx2::transpose_square(square),
    }
}

/// # Safety
/// The CPU has these features, and no other thread computes a block that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub unsafe fn attend<const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: QueryBlock,
    out: &Sink<'_>,
) -> bool {
    // SAFETY: blocks of attention are disjoint, and one thread computes each.
    unsafe { attention::attend_by::<16, 4, f32, _, CAREFUL>(attention, block, out, register()) }
}

maddubs! {
    "avx512f,avx512bw,avx512dq,avx512vl,fma", __m512i, { lanes: 16, bytes: 64, panel: 4 },
    [
        _mm512_set1_epi8, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_xor_si512,
        _mm512_slli_epi16, _mm512_srai_epi16
    ],
    [_mm512_maddubs_epi16, _mm512_madd_epi16, _mm512_mullo_epi32, _mm512_add_epi32, _mm512_sub_epi32]
}

/// Scale and bias of 16 sums.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
#[inline]
pub fn scaled(acc: __m512i, row: Row, scales: __m512, bias: __m512) -> __m512 {
    let scale = _mm512_mul_ps(_mm512_set1_ps(row.scale), scales);
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc), scale, bias)
}

#[target_feature(enable = "avx512f")]
#[inline]
pub fn integers(xs: &[i32; 16]) -> __m512i {
    // SAFETY: the array is 64 bytes to read; no alignment is asked.
    unsafe { _mm512_loadu_si512(xs.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub fn floats(xs: &[f32; 16]) -> __m512 {
    // SAFETY: the array is 64 bytes to read; no alignment is asked.
    unsafe { _mm512_loadu_ps(xs.as_ptr()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub fn put(values: __m512, out: &mut Lanes<16>) {
    // SAFETY: the array is 64 bytes to write; no alignment is asked.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr().cast(), values) }
}

/// A tile of 6 x 64 of floats: 24 sums, 4 weights and a broadcast of the 32 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub unsafe fn multiply_f16(product: &Product<'_, f32>, out: &Sink<'_>, part: Part) {
    let vector = Closures {
        start: |_, _: Channels<'_, 16>| _mm512_setzero_ps(),
        load: |weights: &[u8; 32]| {
            // SAFETY: the array is 32 bytes to read; no alignment is asked.
            _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(weights.as_ptr().cast()) })
        },
        splat: |x: f32| _mm512_set1_ps(x),
        dot: |acc, x, weights| _mm512_fmadd_ps(x, weights, acc),
        add: |left, right| _mm512_add_ps(left, right),
        fold: |acc, _| acc,
        finish: |acc, _, channels: Channels<'_, 16>, out: &mut Lanes<16>| {
            put(_mm512_add_ps(acc, floats(channels.bias)), out);
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<16, 32, 4, MAX_ROWS, _>(product, out, part, vector) }
}

/// A tile of 2 x 64: 16 sums of even and odd inputs, 8 weights and 2 values of the 32 registers.
/// The sums of earlier blocks are in memory.
///
/// `avx512_bf16` takes half the time, on weights of another order; AMX calls this function for a
/// single row.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
    // A bfloat16 is the upper half of an f32.
    let widen = |pairs| {
        (
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff))),
        )
    };
    let vector = Closures {
        // The sums of even and odd inputs of a block, or what blocks gave and 0.
        start: |_, _: Channels<'_, 16>| [_mm512_setzero_ps(); 2],
        // SAFETY: the array is 64 bytes to read; no alignment is asked.
        load: |weights: &[u8; 64]| widen(unsafe { _mm512_loadu_si512(weights.as_ptr().cast()) }),
        splat: |pair: Pair| widen(_mm512_set1_epi32(i32::from_le_bytes(bytes(pair)))),
        dot: |[even, odd]: [__m512; 2], a: (__m512, __m512), b: (__m512, __m512)| {
            [_mm512_fmadd_ps(a.0, b.0, even), _mm512_fmadd_ps(a.1, b.1, odd)]
        },
        add: |left: [__m512; 2], _| left,
        fold: |[sum, rest]: [__m512; 2], [even, odd]: [__m512; 2]| {
            let sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
            [sum, rest]
        },
        finish: |[sum, _]: [__m512; 2], _, channels: Channels<'_, 16>, out: &mut Lanes<16>| {
            put(_mm512_add_ps(sum, floats(channels.bias)), out);
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<16, 64, 4, 2, _>(product, out, part, vector) }
}

/// Multiplies by `maddubs`, which is [exact](avx2::multiply_blocks).
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    let ones = _mm512_set1_epi16(1);
    let splat = |xs: [u8; 4]| _mm512_set1_epi32(i32::from_le_bytes(xs));
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe {
        if product.format().bits() == 4 {
            let vector = of_blocks(
                |_| _mm512_setzero_si512(),
                |codes| nibbles(codes),
                |acc, codes, xs| _mm512_add_epi16(acc, _mm512_maddubs_epi16(codes, splat(xs))),
                |acc, less| {
                    let sums = _mm512_madd_epi16(acc, ones);
                    _mm512_add_epi32(sums, _mm512_slli_epi32::<3>(_mm512_set1_epi32(less)))
                },
            );
            blocks::multiply::<16, 64, 2, MAX_ROWS, _>(product, out, part, vector)
        } else {
            let vector = of_blocks(
                |_| _mm512_setzero_si512(),
                |codes| {
                    let codes = _mm512_xor_si512(load(codes), _mm512_set1_epi8(i8::MIN));
                    [(_mm512_abs_epi8(codes), _mm512_movepi8_mask(codes))]
                },
                |acc, codes: (__m512i, __mmask64), xs| {
                    let (xs, zeros) = (splat(xs), _mm512_setzero_si512());
                    let xs = _mm512_mask_sub_epi8(xs, codes.1, zeros, xs);
                    let pairs = _mm512_maddubs_epi16(codes.0, xs);
                    _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, ones))
                },
                |acc, _| acc,
            );
            blocks::multiply::<16, 64, 1, MAX_ROWS, _>(product, out, part, vector)
        }
    }
}

/// Codes of 4 bits: the low half of each byte, then the high half.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub fn nibbles(codes: &[u8; 64]) -> [__m512i; 2] {
    let (codes, low) = (load(codes), _mm512_set1_epi8(15));
    let high = _mm512_srli_epi16::<4>(codes);
    [_mm512_and_si512(codes, low), _mm512_and_si512(high, low)]
}

/// 64 bytes of codes.
#[target_feature(enable = "avx512f")]
#[inline]
pub fn load(codes: &[u8; 64]) -> __m512i {
    // SAFETY: the array is 64 bytes to read; no alignment is asked.
    unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub fn of_halves(halves: &[[u8; 2]; 16]) -> __m512 {
    // SAFETY: the array is 32 bytes to read; no alignment is asked.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) })
}

/// Registers of 16 sums of blocks, in which instruction sets differ by how they multiply.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
#[inline]
pub fn of_blocks<Int: Copy, Codes: Copy, const PER: usize>(
    start: impl Fn(i32) -> Int + Copy,
    load: impl Fn(&[u8; 64]) -> [Codes; PER] + Copy,
    dot: impl Fn(Int, Codes, [u8; 4]) -> Int + Copy,
    sum: impl Fn(Int, i32) -> __m512i + Copy,
) -> impl BlockVector<16, 64, PER> {
    BlockClosures {
        start,
        load,
        dot,
        float: move |acc, less| _mm512_cvtepi32_ps(sum(acc, less)),
        widen: |halves: &_| of_halves(halves),
        floats: register(),
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
    }
}
