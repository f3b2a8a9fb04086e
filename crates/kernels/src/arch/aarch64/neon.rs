//! NEON without dot products: bytes are multiplied into u16 and added in pairs to u32.
//!
//! Products of signed bytes would be one instruction less for every two of them, where two may
//! be added in an i16; but 2 * 128 * 128 > 32,767. 255 * 255 fits in a u16.
//!
//! The inner loops of the highest tiles, as compiled: 16 `umull` or `umull2` and 16 `uadalp` among
//! 42 instructions; for float16 24 `fmla` and 4 `fcvtl` among 39; nothing on the stack.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use half::f16;

use crate::arch::op::{Activate, Op};
use crate::loops::activation::Activation;
use crate::loops::attention::{self, Attention, QueryBlock};
use crate::loops::blocks::{self, BlockClosures, BlockVector, RowBlock};
use crate::loops::buffer::RowsMut;
use crate::loops::convert;
use crate::loops::float_row;
use crate::loops::float_tile::{self, Left, Right};
use crate::loops::float_vector::{Register, RegisterClosures};
use crate::loops::product::{Pair, Part, Product, Row, Sink, bytes};
use crate::loops::tile::{self, MAX_ROWS};
use crate::loops::vector::{Closures, HalfVector, Lanes, PairVector};
use crate::packed::Channels;

/// Runs an op, compiled with these features, out of line.
#[target_feature(enable = "neon")]
#[inline(never)]
pub fn run<O: Op>(op: O) -> O::Out {
    op.run::<f32>()
}

/// A tile of 2 x 16: 16 pairs of sums, 4 weights, a broadcast and products of the 32 registers. A
/// third row would leave 3 for products, which the compiler cannot allocate without spilling.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "neon")]
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    let vector = Closures {
        // Sums of two channels each: inputs 0 and 1 separate from 2 and 3.
        start: |row: Row, channels: Channels<'_, 4>| {
            let (acc, zero) = (start(row, channels), vdupq_n_u32(0));
            (vzip1q_u32(acc, zero), vzip2q_u32(acc, zero))
        },
        // SAFETY: the array is 16 bytes to read; no alignment is asked.
        load: |weights: &[u8; 16]| unsafe { vld1q_u8(weights.as_ptr()) },
        splat: |codes: [u8; 4]| vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(codes))),
        dot: |acc: (uint32x4_t, uint32x4_t), a, b| {
            let low = vmull_u8(vget_low_u8(a), vget_low_u8(b));
            let high = multiply_high(a, b);
            (vpadalq_u16(acc.0, low), vpadalq_u16(acc.1, high))
        },
        add: |left: (uint32x4_t, uint32x4_t), right: (uint32x4_t, uint32x4_t)| {
            (vaddq_u32(left.0, right.0), vaddq_u32(left.1, right.1))
        },
        fold: |acc, _| acc,
        finish: |acc: (uint32x4_t, uint32x4_t),
                 row: Row,
                 channels: Channels<'_, 4>,
                 out: &mut Lanes<4>| {
            finish(vpaddq_u32(acc.0, acc.1), row, channels, out);
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<4, 16, 4, 2, _>(product, out, part, vector) }
}

/// The products of the upper halves. The intrinsic comes out as two instructions and, with upper
/// halves kept separate, needs more registers than there are.
#[target_feature(enable = "neon")]
#[inline]
fn multiply_high(a: uint8x16_t, b: uint8x16_t) -> uint16x8_t {
    let products;
    // SAFETY: the instruction reads and writes these registers and nothing else.
    unsafe {
        asm!(
            "umull2 {products:v}.8h, {a:v}.16b, {b:v}.16b",
            products = lateout(vreg) products,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    products
}

/// The value that 4 sums begin with: their correction by zero points.
#[target_feature(enable = "neon")]
#[inline]
pub fn start(row: Row, channels: Channels<'_, 4>) -> uint32x4_t {
    // SAFETY: each array is 16 bytes to read.
    let load = |xs: &[i32; 4]| unsafe { vld1q_s32(xs.as_ptr()) };
    let mut acc = vmulq_n_s32(load(channels.sums), row.zero_point.wrapping_neg());
    if let Some(zero_points) = channels.zero_points {
        acc = vmlsq_n_s32(acc, load(zero_points), row.sum);
    }
    vreinterpretq_u32_s32(acc)
}

/// Scale and bias of 4 sums.
#[target_feature(enable = "neon")]
#[inline]
pub fn finish(acc: uint32x4_t, row: Row, channels: Channels<'_, 4>, out: &mut Lanes<4>) {
    let scale = vmulq_n_f32(floats(channels.scales), row.scale);
    let acc = vcvtq_f32_s32(vreinterpretq_s32_u32(acc));
    put(vfmaq_f32(floats(channels.bias), acc, scale), out);
}

#[target_feature(enable = "neon")]
#[inline]
fn floats(xs: &[f32; 4]) -> float32x4_t {
    // SAFETY: the array is 16 bytes to read; no alignment is asked.
    unsafe { vld1q_f32(xs.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
fn put(values: float32x4_t, out: &mut Lanes<4>) {
    // SAFETY: the array is 16 bytes to write; no alignment is asked.
    unsafe { vst1q_f32(out.as_mut_ptr().cast(), values) }
}

/// A tile of 6 x 16 of floats: 24 sums, 4 weights and a value of the 32 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "neon")]
pub unsafe fn multiply_f16(product: &Product<'_, f32>, out: &Sink<'_>, part: Part) {
    let vector = HalfVector {
        register: register(),
        // SAFETY: the array is 8 bytes to read; no alignment is asked.
        load: |weights: &[u8; 8]| widen_four(unsafe { vld1_u8(weights.as_ptr()) }),
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<4, 8, 4, MAX_ROWS, _>(product, out, part, vector) }
}

/// A tile of 2 x 16: 16 sums of even and odd inputs, 8 weights and 2 values of the 32 registers.
/// The sums of earlier blocks are in memory.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "neon")]
pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
    // A bfloat16 is the upper half of an f32.
    let widen = |pairs| {
        let even = vshlq_n_u32::<16>(vreinterpretq_u32_u8(pairs));
        let odd = vandq_u32(vreinterpretq_u32_u8(pairs), vdupq_n_u32(0xffff_0000));
        [vreinterpretq_f32_u32(even), vreinterpretq_f32_u32(odd)]
    };
    let vector = PairVector {
        register: register(),
        // SAFETY: the array is 16 bytes to read; no alignment is asked.
        load: |weights: &[u8; 16]| widen(unsafe { vld1q_u8(weights.as_ptr()) }),
        splat: |pair: Pair| {
            widen(vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(bytes(pair)))))
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<4, 16, 4, 2, _>(product, out, part, vector) }
}

/// Four float16 values as f32. `fcvtl` is NEON, but in Rust 1.94 only the feature `fp16` makes
/// bytes the argument of its intrinsic.
#[target_feature(enable = "neon")]
#[inline]
fn widen_four(halves: uint8x8_t) -> float32x4_t {
    let floats;
    // SAFETY: the instruction reads and writes these registers and nothing else.
    unsafe {
        asm!(
            "fcvtl {floats:v}.4s, {halves:v}.4h",
            floats = lateout(vreg) floats,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    floats
}

#[target_feature(enable = "neon")]
pub fn widen(halves: &[f16], out: &mut [f32]) {
    let (halves, halves_rest) = halves.as_chunks::<4>();
    let (out, out_rest) = out.as_chunks_mut::<4>();
    for (halves, out) in halves.iter().zip(out) {
        // SAFETY: 8 bytes to read, 16 to write; no alignment is asked.
        unsafe { vst1q_f32(out.as_mut_ptr(), widen_four(vld1_u8(halves.as_ptr().cast()))) };
    }
    convert::widen_f16(halves_rest, out_rest);
}

/// # Safety
/// The CPU has these features, and no other thread computes a block that overlaps.
#[target_feature(enable = "neon")]
pub unsafe fn attend<const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: QueryBlock,
    out: &Sink<'_>,
) -> bool {
    // SAFETY: blocks of attention are disjoint, and one thread computes each.
    unsafe { attention::attend_by::<4, 4, f32, _, CAREFUL>(attention, block, out, register()) }
}

#[target_feature(enable = "neon")]
pub fn transpose(from: (&[f32], usize), to: RowsMut<'_>, [rows, columns]: [usize; 2]) {
    float_tile::transpose::<4>(from, to, rows, columns, register());
}

#[target_feature(enable = "neon")]
pub fn multiply_shifted<const EXACT: bool>(left: Left<'_>, right: Right<'_>, offsets: &[usize]) {
    float_tile::product_of_shifted::<4, 4>(left, (right, offsets), register());
}

#[target_feature(enable = "neon")]
pub fn multiply_row<const EXACT: bool>(row: &[f32], weights: &[f32], out: &mut [f32]) {
    float_row::multiply_row::<4, 2>(row, weights, out, register());
}

#[target_feature(enable = "neon")]
#[inline]
fn register() -> impl Register<4, V = float32x4_t> {
    RegisterClosures {
        // SAFETY: the array is 16 bytes to read; no alignment is asked.
        load: |from: &[f32; 4]| unsafe { vld1q_f32(from.as_ptr()) },
        splat: |value| vdupq_n_f32(value),
        add: |left, right| vaddq_f32(left, right),
        fma: |a, b, acc| vfmaq_f32(acc, a, b),
        // SAFETY: the array is 16 bytes to write.
        store: |values, to: &mut [f32; 4]| unsafe { vst1q_f32(to.as_mut_ptr(), values) },
        transpose: |square| transpose_square(square),
    }
}

/// A tile of 6 x 8: 12 sums in i32 and 12 in f32, 4 of codes of the 32 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "neon")]
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    let dot = |acc, codes, xs: [u8; 4]| {
        let xs = vreinterpretq_s8_u32(vdupq_n_u32(u32::from_le_bytes(xs)));
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(codes), vget_low_s8(xs)));
        let high = vpaddlq_s16(vmull_high_s8(codes, xs));
        vaddq_s32(acc, vpaddq_s32(low, high))
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { multiply_blocks_by(product, out, part, dot) }
}

/// [`multiply_blocks`] by a dot product of i8.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "neon")]
#[inline]
pub unsafe fn multiply_blocks_by(
    product: &Product<'_, RowBlock>,
    out: &Sink<'_>,
    part: Part,
    dot: impl Fn(int32x4_t, int8x16_t, [u8; 4]) -> int32x4_t + Copy,
) {
    // SAFETY: the array is 16 bytes to read; no alignment is asked.
    let load = |codes: &[u8; 16]| unsafe { vld1q_u8(codes.as_ptr()) };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe {
        if product.format().bits() == 4 {
            let halves = |codes: &[u8; 16]| {
                let codes = load(codes);
                let halves = [vandq_u8(codes, vdupq_n_u8(15)), vshrq_n_u8::<4>(codes)];
                halves.map(|half| vreinterpretq_s8_u8(half))
            };
            let vector = of_blocks(|less| vshlq_n_s32::<3>(vdupq_n_s32(less)), halves, dot);
            blocks::multiply::<4, 16, 2, MAX_ROWS, _>(product, out, part, vector)
        } else {
            // Less their middle, as i8.
            let codes =
                |codes: &[u8; 16]| [vreinterpretq_s8_u8(veorq_u8(load(codes), vdupq_n_u8(128)))];
            let vector = of_blocks(|_| vdupq_n_s32(0), codes, dot);
            blocks::multiply::<4, 16, 1, MAX_ROWS, _>(product, out, part, vector)
        }
    }
}

/// A register of 4 sums of blocks.
#[target_feature(enable = "neon")]
#[inline]
fn of_blocks<const PER: usize>(
    start: impl Fn(i32) -> int32x4_t + Copy,
    load: impl Fn(&[u8; 16]) -> [int8x16_t; PER] + Copy,
    dot: impl Fn(int32x4_t, int8x16_t, [u8; 4]) -> int32x4_t + Copy,
) -> impl BlockVector<4, 16, PER> {
    BlockClosures {
        start,
        load,
        dot,
        float: |acc, _| vcvtq_f32_s32(acc),
        widen: |halves: &[[u8; 2]; 4]| {
            floats(&halves.map(|half| f16::from_le_bytes(half).to_f32()))
        },
        floats: register(),
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
    }
}

/// Transposes a square in quarters: pairs of rows are interleaved, and pairs of pairs.
#[target_feature(enable = "neon")]
#[inline]
fn transpose_square(square: [[f32; 8]; 8]) -> [[f32; 8]; 8] {
    let mut out = [[0.; 8]; 8];
    for (row, column) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
        // SAFETY: four floats from 0 or 4 on are within a row of eight.
        let r = [0, 1, 2, 3].map(|i| unsafe { vld1q_f32(square[row + i].as_ptr().add(column)) });
        let (even_a, even_b) = (vtrn1q_f32(r[0], r[1]), vtrn1q_f32(r[2], r[3]));
        let (odd_a, odd_b) = (vtrn2q_f32(r[0], r[1]), vtrn2q_f32(r[2], r[3]));
        let pairs = |a, b| (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
        let (even, odd) = (pairs(even_a, even_b), pairs(odd_a, odd_b));
        let columns = [
            vtrn1q_f64(even.0, even.1),
            vtrn1q_f64(odd.0, odd.1),
            vtrn2q_f64(even.0, even.1),
            vtrn2q_f64(odd.0, odd.1),
        ];
        for (i, values) in columns.into_iter().enumerate() {
            let to = &mut out[column + i];
            // SAFETY: four floats from 0 or 4 on are within a row of eight.
            unsafe { vst1q_f32(to.as_mut_ptr().add(row), vreinterpretq_f32_f64(values)) };
        }
    }
    out
}
