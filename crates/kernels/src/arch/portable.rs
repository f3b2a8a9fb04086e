//! The instruction set without intrinsics: it runs on any CPU, and shows what the others do.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::op::{Activate, Op};
use crate::loops::activation::Activation;
use crate::loops::attention::{self, Attention, QueryBlock};
use crate::loops::blocks::{self, BlockClosures, RowBlock};
use crate::loops::buffer::RowsMut;
use crate::loops::convert;
use crate::loops::float_row;
use crate::loops::float_tile::{self, Left, Right};
use crate::loops::float_vector::{Register, RegisterClosures};
use crate::loops::number::fma_by_f64;
use crate::loops::product::{Pair, Part, Product, Row, Sink};
use crate::loops::tile;
use crate::loops::vector::{Closures, HalfVector, Lanes, PairVector};
use crate::packed::Channels;

/// Runs an op, compiled with the features of the target, out of line.
#[inline(never)]
pub fn run<O: Op>(op: O) -> O::Out {
    op.run::<f32>()
}

pub fn transpose(from: (&[f32], usize), to: RowsMut<'_>, [rows, columns]: [usize; 2]) {
    float_tile::transpose::<8>(from, to, rows, columns, register::<8, true>());
}

pub fn multiply_shifted<const EXACT: bool>(left: Left<'_>, right: Right<'_>, offsets: &[usize]) {
    float_tile::product_of_shifted::<8, 2>(left, (right, offsets), register::<8, EXACT>());
}

pub fn multiply_row<const EXACT: bool>(row: &[f32], weights: &[f32], out: &mut [f32]) {
    float_row::multiply_row::<8, 1>(row, weights, out, register::<8, EXACT>());
}

pub fn widen(halves: &[f16], out: &mut [f32]) {
    convert::widen_f16(halves, out);
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    // SAFETY: the contract is the same.
    unsafe { multiply_by::<8, 32, 2>(product, out, part) }
}

/// [`multiply`] by registers of `LANES` lanes and `BYTES` bytes.
///
/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_by<const LANES: usize, const BYTES: usize, const NV: usize>(
    product: &Product<'_, [u8; 4]>,
    out: &Sink<'_>,
    part: Part,
) {
    let vector = Closures {
        start: |row: Row, channels: Channels<'_, LANES>| {
            std::array::from_fn(|i| {
                let zero_point = channels.zero_points.map_or(0, |zero_points| zero_points[i]);
                let lhs = row.zero_point.wrapping_mul(channels.sums[i]);
                let rhs = row.sum.wrapping_mul(zero_point);
                0i32.wrapping_sub(lhs).wrapping_sub(rhs)
            })
        },
        load: |weights: &[u8; BYTES]| weights.map(u8::cast_signed),
        splat: |codes: [u8; 4]| codes,
        dot: |mut acc: [i32; LANES], a: [u8; 4], b: [i8; BYTES]| {
            for (lane, acc) in acc.iter_mut().enumerate() {
                for (i, a) in a.into_iter().enumerate() {
                    *acc = acc.wrapping_add(i32::from(a) * i32::from(b[4 * lane + i]));
                }
            }
            acc
        },
        add: |left: [i32; LANES], right: [i32; LANES]| {
            std::array::from_fn(|i| left[i].wrapping_add(right[i]))
        },
        fold: |acc, _| acc,
        finish: |acc: [i32; LANES],
                 row: Row,
                 channels: Channels<'_, LANES>,
                 out: &mut Lanes<LANES>| {
            for (i, out) in out.iter_mut().enumerate() {
                let scale = row.scale * channels.scales[i];
                out.write((acc[i] as f32).mul_add(scale, channels.bias[i]));
            }
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<LANES, BYTES, NV, 2, _>(product, out, part, vector) }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_f16(product: &Product<'_, f32>, out: &Sink<'_>, part: Part) {
    // SAFETY: the contract is the same.
    unsafe { multiply_f16_by::<8, 16, 2>(product, out, part) }
}

/// [`multiply_f16`] by registers of `LANES` lanes and `BYTES` bytes.
///
/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_f16_by<const LANES: usize, const BYTES: usize, const NV: usize>(
    product: &Product<'_, f32>,
    out: &Sink<'_>,
    part: Part,
) {
    let vector = HalfVector {
        register: register::<LANES, true>(),
        load: |weights: &[u8; BYTES]| -> [f32; LANES] {
            let (halves, _) = weights.as_chunks::<2>();
            std::array::from_fn(|i| f16::from_le_bytes(halves[i]).to_f32())
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<LANES, BYTES, NV, 2, _>(product, out, part, vector) }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
    // SAFETY: the contract is the same.
    unsafe { multiply_bf16_by::<8, 32, 2>(product, out, part) }
}

/// [`multiply_bf16`] by registers of `LANES` lanes and `BYTES` bytes.
///
/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_bf16_by<const LANES: usize, const BYTES: usize, const NV: usize>(
    product: &Product<'_, Pair>,
    out: &Sink<'_>,
    part: Part,
) {
    let widen = |bytes| bf16::from_le_bytes(bytes).to_f32();
    let vector = PairVector {
        register: register::<LANES, true>(),
        load: |weights: &[u8; BYTES]| -> [[f32; LANES]; 2] {
            let (pairs, _) = weights.as_chunks::<2>().0.as_chunks::<2>();
            [0, 1].map(|side| std::array::from_fn(|i| widen(pairs[i][side])))
        },
        splat: |pair: Pair| pair.map(|bytes| [widen(bytes); LANES]),
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<LANES, BYTES, NV, 2, _>(product, out, part, vector) }
}

/// # Safety
/// No other thread computes a block that overlaps.
pub unsafe fn attend<const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: QueryBlock,
    out: &Sink<'_>,
) -> bool {
    // SAFETY: blocks of attention are disjoint, and one thread computes each.
    unsafe {
        attention::attend_by::<8, 2, f32, _, CAREFUL>(attention, block, out, register::<8, true>())
    }
}

/// A register of `LANES` f32, whose `fma` rounds products, too, unless it is `EXACT`.
#[inline(always)]
fn register<const LANES: usize, const EXACT: bool>() -> impl Register<LANES, V = [f32; LANES]> {
    // Whether `fma` surely is an instruction: the C library's is a call for each element.
    let has_fma = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
    let fma = move |a: f32, b: f32, acc: f32| match (EXACT, has_fma) {
        (false, _) => a * b + acc,
        (true, true) => a.mul_add(b, acc),
        (true, false) => fma_by_f64(a, b, acc),
    };
    RegisterClosures {
        load: |from: &[f32; LANES]| *from,
        splat: |value| [value; LANES],
        add: |left: [f32; LANES], right: [f32; LANES]| std::array::from_fn(|i| left[i] + right[i]),
        fma: move |a: [f32; LANES], b: [f32; LANES], acc: [f32; LANES]| {
            std::array::from_fn(|i| fma(a[i], b[i], acc[i]))
        },
        store: |values, to: &mut [f32; LANES]| *to = values,
        transpose: |square| transpose_square(square),
    }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    // SAFETY: the contract is the same.
    unsafe { multiply_blocks_by::<8, 32>(product, out, part) }
}

/// [`multiply_blocks`] by registers of `LANES` lanes and `BYTES` bytes.
///
/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_blocks_by<const LANES: usize, const BYTES: usize>(
    product: &Product<'_, RowBlock>,
    out: &Sink<'_>,
    part: Part,
) {
    let middle = product.format().middle();
    macro_rules! vector {
        ($load:expr) => {
            BlockClosures {
                start: |less: i32| [less.wrapping_mul(middle); LANES],
                load: $load,
                dot: |mut acc: [i32; LANES], codes: [u8; BYTES], xs: [u8; 4]| {
                    for (lane, acc) in acc.iter_mut().enumerate() {
                        for (i, x) in xs.into_iter().enumerate() {
                            let code = i32::from(codes[4 * lane + i]);
                            *acc = acc.wrapping_add(i32::from(x.cast_signed()) * code);
                        }
                    }
                    acc
                },
                float: |acc: [i32; LANES], _| acc.map(|sum| sum as f32),
                widen: |halves: &[[u8; 2]; LANES]| {
                    halves.map(|half| f16::from_le_bytes(half).to_f32())
                },
                floats: register::<LANES, true>(),
                activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
            }
        };
    }
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe {
        if product.format().bits() == 4 {
            let halves =
                |codes: &[u8; BYTES]| [codes.map(|code| code & 15), codes.map(|code| code >> 4)];
            let vector = vector!(halves);
            blocks::multiply::<LANES, BYTES, 2, 2, _>(product, out, part, vector)
        } else {
            let vector = vector!(|codes: &[u8; BYTES]| [*codes]);
            blocks::multiply::<LANES, BYTES, 1, 2, _>(product, out, part, vector)
        }
    }
}

/// Transposes a square.
#[inline(always)]
pub fn transpose_square(square: [[f32; 8]; 8]) -> [[f32; 8]; 8] {
    std::array::from_fn(|c| std::array::from_fn(|r| square[r][c]))
}
