//! AVX-512 with products of bfloat16: two a lane and instruction.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx512;
pub use super::avx512_vnni::{
    multiply, multiply_blocks, multiply_f16, multiply_row, multiply_shifted, run, transpose, widen,
};
use crate::arch::op::Activate;
use crate::loops::activation::Activation;
use crate::loops::attention::{self, Attention, Precision, QueryBlock};
use crate::loops::factors::BFloat16s;
use crate::loops::float_vector::{OfPairs, Register};
use crate::loops::product::{Pair, Part, Product, Row, Sink, bytes};
use crate::loops::tile;
use crate::loops::vector::{Closures, Lanes};
use crate::packed::Channels;

/// A tile of 2 x 64: 16 sums, 8 weights and 2 broadcasts. The sums of earlier blocks are in memory.
///
/// `vdpbf16ps` adds the products of a pair to one sum, the upper half's first, as two `fma` would.
/// So a pair has two even inputs or two odd ones, and sums have the order that they have on tiles.
/// A register has both sums of 8 channels, side by side.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
    let vector = Closures {
        // The sums of a block, or what blocks gave and 0.
        start: |_, _: Channels<'_, 16>| [_mm512_setzero_ps(); 2],
        load: |weights: &[u8; 128]| {
            let (halves, _) = weights.as_chunks::<64>();
            // SAFETY: a half is 64 bytes to read; no alignment is asked.
            let load = |half: usize| unsafe { _mm512_loadu_si512(halves[half].as_ptr().cast()) };
            [load(0), load(1)]
        },
        splat: |[even, odd]: [Pair; 2]| {
            let [low, high] = [even, odd].map(|pair| u64::from(u32::from_le_bytes(bytes(pair))));
            _mm512_set1_epi64((low | high << 32).cast_signed())
        },
        dot: |[low, high]: [__m512; 2], a: __m512i, b: [__m512i; 2]| {
            [dot(low, a, b[0]), dot(high, a, b[1])]
        },
        add: |left: [__m512; 2], _| left,
        fold: |[sum, rest]: [__m512; 2], [low, high]: [__m512; 2]| {
            let even = _mm512_shuffle_ps::<0b10_00_10_00>(low, high);
            let odd = _mm512_shuffle_ps::<0b11_01_11_01>(low, high);
            let sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
            [sum, rest]
        },
        finish: |[sum, _]: [__m512; 2], _: Row, channels: Channels<'_, 16>, out: &mut Lanes<16>| {
            // By `fold` two channels of the first half come before two of the second.
            let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
            let sum = _mm512_castpd_ps(_mm512_permutexvar_pd(order, _mm512_castps_pd(sum)));
            let bias = avx512::floats(channels.bias);
            avx512::put(_mm512_add_ps(sum, bias), out);
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<16, 128, 4, 2, _>(&product.by_twos(), out, part, vector) }
}

/// # Safety
/// The CPU has these features, and no other thread computes a block that overlaps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
pub unsafe fn attend<const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: QueryBlock,
    out: &Sink<'_>,
) -> bool {
    // SAFETY: blocks of attention are disjoint, and one thread computes each.
    unsafe {
        match attention.precision {
            Precision::Float32 | Precision::Int8 => {
                avx512::attend::<CAREFUL>(attention, block, out)
            }
            Precision::BFloat16 => {
                let factors = BFloat16s(register());
                attention::attend::<16, 4, f32, _, CAREFUL>(attention, block, out, factors)
            }
        }
    }
}

/// The registers of attention, with pairs of bfloat16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
#[inline]
pub fn register() -> impl Register<16, V = __m512> {
    OfPairs {
        register: avx512::register(),
        dot: |a, b, acc| dot(acc, _mm512_castps_si512(a), _mm512_castps_si512(b)),
        pair: |first, second| pair(first, second),
        round: |low, high| _mm512_castsi512_ps(round(low, high)),
        alternate: |rounded| alternate(rounded),
    }
}

/// The bfloat16 of each lane of both, the first in the upper half.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline]
fn pair(first: __m512, second: __m512) -> __m512 {
    // 16 of the second are followed by 16 of the first.
    let order: [u16; 32] = std::array::from_fn(|i| (i / 2 + 16 * (i % 2)) as u16);
    // SAFETY: the array is 64 bytes to read.
    let order = unsafe { _mm512_loadu_si512(order.as_ptr().cast()) };
    _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, round(second, first)))
}

/// Pairs the third and first of each four bfloat16, and the fourth and second.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn alternate(rounded: __m512) -> __m512 {
    let (low, high) = (0x0302_0706_0100_0504, 0x0b0a_0f0e_0908_0d0c);
    let order = _mm512_setr_epi64(low, high, low, high, low, high, low, high);
    _mm512_castsi512_ps(_mm512_shuffle_epi8(_mm512_castps_si512(rounded), order))
}

/// The bfloat16 of both, one after the other.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn round(low: __m512, high: __m512) -> __m512i {
    let both = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: both types are 64 bytes, and any bits are values of them.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(both) }
}

/// `acc` and both products of each lane.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn dot(acc: __m512, a: __m512i, b: __m512i) -> __m512 {
    let [a, b] = [a, b].map(|pairs| {
        // SAFETY: both types are 64 bytes, and any bits are values of them.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(pairs) }
    });
    _mm512_dpbf16_ps(acc, a, b)
}
