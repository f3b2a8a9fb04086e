//! simd128: products of i16, and an `fma` by way of f64.

use std::arch::wasm32::*;
use std::marker::PhantomData;

use half::f16;

use super::lanes::{self, Emulated, Fma};
use crate::arch::op::{Activate, Op};
use crate::arch::portable;
use crate::loops::activation::Activation;
use crate::loops::attention::{self, Attention, QueryBlock};
use crate::loops::blocks::{self, BlockClosures, BlockVector, RowBlock};
use crate::loops::buffer::RowsMut;
use crate::loops::convert;
use crate::loops::float_row;
use crate::loops::float_tile::{self, Left, Right};
use crate::loops::float_vector::{Register, RegisterClosures};
use crate::loops::product::{Group, Pair, Part, Product, Row, Sink, bytes};
use crate::loops::tile;
use crate::loops::vector::{Closures, HalfVector, Lanes, PairVector};
use crate::loops::wide;
use crate::packed::Channels;

/// The functions that the two forms have, by one `fma` or the other.
macro_rules! functions_by {
    ($fma:ty) => {
        /// Runs an op, compiled with these features, out of line.
        pub fn run<O: Op>(op: O) -> O::Out {
            run_by::<$fma, O>(op)
        }

        /// # Safety
        /// No other thread computes a block that overlaps.
        pub unsafe fn attend<const CAREFUL: bool>(
            attention: &Attention<'_>,
            block: QueryBlock,
            out: &Sink<'_>,
        ) -> bool {
            // SAFETY: the contract is the same.
            unsafe { attend_by::<$fma, CAREFUL>(attention, block, out) }
        }

        functions_by! {
            $fma:
            multiply = multiply_by [u8; 4];
            multiply_f16 = multiply_f16_by f32;
            multiply_bf16 = multiply_bf16_by Pair;
            multiply_blocks = multiply_blocks_by RowBlock;
        }
    };
    ($fma:ty: $($name:ident = $by:ident $group:ty;)*) => {$(
        /// # Safety
        /// No other thread computes a part that overlaps.
        pub unsafe fn $name(product: &Product<'_, $group>, out: &Sink<'_>, part: Part) {
            // SAFETY: the contract is the same.
            unsafe { $by::<$fma>(product, out, part) }
        }
    )*};
}
#[cfg(target_feature = "relaxed-simd")]
pub(super) use functions_by;

functions_by!(Emulated<true>);

/// Runs an op, out of line.
#[inline(never)]
pub fn run_by<F: Fma, O: Op>(op: O) -> O::Out {
    op.run::<lanes::Lanes<F>>()
}

fn activate<F: Fma>(activation: Activation, xs: &mut [f32]) {
    run_by::<F, _>(Activate { activation, xs });
}

pub fn transpose(from: (&[f32], usize), to: RowsMut<'_>, [rows, columns]: [usize; 2]) {
    float_tile::transpose::<4>(from, to, rows, columns, register::<Emulated<true>>());
}

pub fn multiply_shifted<const EXACT: bool>(left: Left<'_>, right: Right<'_>, offsets: &[usize]) {
    let register = register::<Emulated<EXACT>>();
    float_tile::product_of_shifted::<4, 2>(left, (right, offsets), register);
}

pub fn multiply_row<const EXACT: bool>(row: &[f32], weights: &[f32], out: &mut [f32]) {
    float_row::multiply_row::<4, 2>(row, weights, out, register::<Emulated<EXACT>>());
}

pub fn widen(halves: &[f16], out: &mut [f32]) {
    convert::widen_f16(halves, out);
}

/// A tile of 2 x 8: 8 pairs of sums, 4 half-weights and a broadcast of the 16 registers of x86-64,
/// one of which engines keep for themselves.
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply_by<F: Fma>(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    let vector = Closures {
        // Sums of two channels each: inputs 0 and 1 separate from 2 and 3.
        start: |row: Row, channels: Channels<'_, 4>| {
            let (acc, zero) = (start(row, channels), i32x4_splat(0));
            (i32x4_shuffle::<0, 4, 1, 5>(acc, zero), i32x4_shuffle::<2, 6, 3, 7>(acc, zero))
        },
        load: |weights: &[u8; 16]| {
            let weights = weights.as_ptr().cast::<i8>();
            // SAFETY: each half of the array is 8 bytes to read; no alignment is asked.
            unsafe { (i16x8_load_extend_i8x8(weights), i16x8_load_extend_i8x8(weights.add(8))) }
        },
        splat: |Wide(codes): Wide| u64x2_splat(codes),
        dot: |acc: (v128, v128), a: v128, b: (v128, v128)| {
            (i32x4_add(acc.0, i32x4_dot_i16x8(a, b.0)), i32x4_add(acc.1, i32x4_dot_i16x8(a, b.1)))
        },
        add: |left: (v128, v128), right: (v128, v128)| {
            (i32x4_add(left.0, right.0), i32x4_add(left.1, right.1))
        },
        fold: |acc, _| acc,
        finish: |acc: (v128, v128), row: Row, channels: Channels<'_, 4>, out: &mut Lanes<4>| {
            let even = i32x4_shuffle::<0, 2, 4, 6>(acc.0, acc.1);
            let odd = i32x4_shuffle::<1, 3, 5, 7>(acc.0, acc.1);
            let scale = f32x4_mul(f32x4_splat(row.scale), lanes::load(channels.scales));
            let sum = f32x4_convert_i32x4(i32x4_add(even, odd));
            put(F::fma(sum, scale, lanes::load(channels.bias)), out);
        },
        activate: activate::<F>,
        group: PhantomData,
    };
    let wide = |codes: [u8; 4]| {
        let [a, b, c, d] = codes.map(u64::from);
        Wide(a | b << 16 | c << 32 | d << 48)
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe {
        wide::multiply(product, out, part, 2, wide, |product, out, part| {
            tile::multiply::<4, 16, 2, 2, _>(product, out, part, vector)
        });
    }
}

/// The codes of a group, as i16.
#[derive(Clone, Copy, Default)]
struct Wide(u64);

impl Group for Wide {
    const EXACT: bool = true;
}

/// The value that 4 sums begin with: their correction by zero points.
#[inline(always)]
fn start(row: Row, channels: Channels<'_, 4>) -> v128 {
    // SAFETY: each array is 16 bytes to read; no alignment is asked.
    let load = |xs: &[i32; 4]| unsafe { v128_load(xs.as_ptr().cast()) };
    let zero_point = i32x4_splat(row.zero_point.wrapping_neg());
    let acc = i32x4_mul(zero_point, load(channels.sums));
    let Some(zero_points) = channels.zero_points else {
        return acc;
    };
    i32x4_sub(acc, i32x4_mul(i32x4_splat(row.sum), load(zero_points)))
}

#[inline(always)]
fn put(values: v128, out: &mut Lanes<4>) {
    // SAFETY: the array is 16 bytes to write; no alignment is asked.
    unsafe { v128_store(out.as_mut_ptr().cast(), values) }
}

/// A tile of 2 x 8 of floats. No instruction widens halves, which is most of the work.
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply_f16_by<F: Fma>(product: &Product<'_, f32>, out: &Sink<'_>, part: Part) {
    let vector = HalfVector {
        register: register::<F>(),
        load: |weights: &[u8; 8]| {
            let (halves, _) = weights.as_chunks::<2>();
            lanes::load(&std::array::from_fn(|i| f16::from_le_bytes(halves[i]).to_f32()))
        },
        activate: activate::<F>,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<4, 8, 2, 2, _>(product, out, part, vector) }
}

/// A tile of 2 x 8 of even and odd inputs.
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply_bf16_by<F: Fma>(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
    // A bfloat16 is the upper half of an f32.
    let widen = |pairs| [i32x4_shl(pairs, 16), v128_and(pairs, u32x4_splat(0xffff_0000))];
    let vector = PairVector {
        register: register::<F>(),
        // SAFETY: the array is 16 bytes to read; no alignment is asked.
        load: |weights: &[u8; 16]| widen(unsafe { v128_load(weights.as_ptr().cast()) }),
        splat: |pair: Pair| widen(u32x4_splat(u32::from_le_bytes(bytes(pair)))),
        activate: activate::<F>,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<4, 16, 2, 2, _>(product, out, part, vector) }
}

/// # Safety
/// No other thread computes a block that overlaps.
#[inline(always)]
pub unsafe fn attend_by<F: Fma, const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: QueryBlock,
    out: &Sink<'_>,
) -> bool {
    let register = register::<F>();
    // SAFETY: blocks of attention are disjoint, and one thread computes each.
    unsafe {
        attention::attend_by::<4, 2, lanes::Lanes<F>, _, CAREFUL>(attention, block, out, register)
    }
}

#[inline(always)]
fn register<F: Fma>() -> impl Register<4, V = v128> {
    RegisterClosures {
        load: |from: &[f32; 4]| lanes::load(from),
        splat: |value| f32x4_splat(value),
        add: |left, right| f32x4_add(left, right),
        fma: |a, b, acc| F::fma(a, b, acc),
        store: |values, to: &mut [f32; 4]| lanes::store(values, to),
        transpose: |square| portable::transpose_square(square),
    }
}

/// A tile of 2 x 8: 4 sums in i32 and 4 in f32, 4 of codes of the 16 registers.
///
/// # Safety
/// No other thread computes a part that overlaps.
#[inline(always)]
pub unsafe fn multiply_blocks_by<F: Fma>(
    product: &Product<'_, RowBlock>,
    out: &Sink<'_>,
    part: Part,
) {
    // SAFETY: the array is 16 bytes to read; no alignment is asked.
    let load = |codes: &[u8; 16]| unsafe { v128_load(codes.as_ptr().cast()) };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe {
        if product.format().bits() == 4 {
            let halves = |codes: &[u8; 16]| {
                let codes = load(codes);
                [v128_and(codes, u8x16_splat(15)), u8x16_shr(codes, 4)]
            };
            let vector = of_blocks::<F, 2>(halves);
            blocks::multiply::<4, 16, 2, 2, _>(product, out, part, vector)
        } else {
            let vector = of_blocks::<F, 1>(|codes| [load(codes)]);
            blocks::multiply::<4, 16, 1, 2, _>(product, out, part, vector)
        }
    }
}

/// A register of 4 sums of blocks.
#[inline(always)]
fn of_blocks<F: Fma, const PER: usize>(
    load: impl Fn(&[u8; 16]) -> [v128; PER] + Copy,
) -> impl BlockVector<4, 16, PER> {
    BlockClosures {
        start: |less| i32x4_shl(i32x4_splat(less), if const { PER == 2 } { 3 } else { 7 }),
        load,
        dot: |acc, codes, xs: [u8; 4]| {
            let xs = i16x8_extend_low_i8x16(i32x4_splat(i32::from_le_bytes(xs)));
            let low = i32x4_dot_i16x8(i16x8_extend_low_u8x16(codes), xs);
            let high = i32x4_dot_i16x8(i16x8_extend_high_u8x16(codes), xs);
            let even = i32x4_shuffle::<0, 2, 4, 6>(low, high);
            i32x4_add(acc, i32x4_add(even, i32x4_shuffle::<1, 3, 5, 7>(low, high)))
        },
        float: |acc, _| f32x4_convert_i32x4(acc),
        widen: |halves: &[[u8; 2]; 4]| {
            lanes::load(&halves.map(|half| f16::from_le_bytes(half).to_f32()))
        },
        floats: register::<F>(),
        activate: activate::<F>,
    }
}
