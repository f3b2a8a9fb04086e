//! No intrinsics: it runs on any CPU, and shows what the others do.

use std::marker::PhantomData;

use half::f16;

use super::op::{Activate, Op};
use crate::kernels::loops::activation::Activation;
use crate::kernels::loops::attention::{self, Attention, Block};
use crate::kernels::loops::codes;
use crate::kernels::loops::float_tile;
use crate::kernels::loops::product::{Part, Product, Sink};
use crate::kernels::loops::tile::{self, Closures, Lanes, Terms};

/// The door: an op compiled with these features, out of line.
#[inline(never)]
pub fn run<O: Op>(op: O) -> O::Out {
    op.run()
}

pub fn widen(halves: &[f16], out: &mut [f32]) {
    codes::widen(halves, out);
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, part: Part) {
    let vector = Closures::<true, _, _, _, _, _, _, _, _> {
        start: |terms: Terms<'_, 8>| {
            std::array::from_fn(|i| {
                let zero_point = terms.zero_points.map_or(0, |zero_points| zero_points[i]);
                let lhs = terms.row.zero_point.wrapping_mul(terms.sums[i]);
                let rhs = terms.row.sum.wrapping_mul(zero_point);
                0i32.wrapping_sub(lhs).wrapping_sub(rhs)
            })
        },
        load: |weights: &[u8; 32]| weights.map(u8::cast_signed),
        splat: |codes: [u8; 4]| codes,
        dot: |mut acc: [i32; 8], a: [u8; 4], b: [i8; 32]| {
            for (lane, acc) in acc.iter_mut().enumerate() {
                for (i, a) in a.into_iter().enumerate() {
                    *acc = acc.wrapping_add(i32::from(a) * i32::from(b[4 * lane + i]));
                }
            }
            acc
        },
        add: |left: [i32; 8], right: [i32; 8]| {
            std::array::from_fn(|i| left[i].wrapping_add(right[i]))
        },
        finish: |acc: [i32; 8], terms: Terms<'_, 8>, out: &mut Lanes<8>| {
            for (i, out) in out.iter_mut().enumerate() {
                let scale = terms.row.scale * terms.scales[i];
                out.write((acc[i] as f32).mul_add(scale, terms.bias[i]));
            }
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: the part is of this thread alone.
    unsafe { tile::multiply::<8, 32, 2, _>(product, part, vector) }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_f16(product: &Product<'_, f32>, part: Part) {
    let vector = Closures::<false, _, _, _, _, _, _, _, _> {
        start: |_: Terms<'_, 8>| [0f32; 8],
        load: |weights: &[u8; 16]| -> [f32; 8] {
            std::array::from_fn(|i| {
                f16::from_le_bytes([weights[2 * i], weights[2 * i + 1]]).to_f32()
            })
        },
        splat: |x: f32| x,
        dot: |acc: [f32; 8], x: f32, weights: [f32; 8]| {
            std::array::from_fn(|i| x.mul_add(weights[i], acc[i]))
        },
        add: |left: [f32; 8], right: [f32; 8]| std::array::from_fn(|i| left[i] + right[i]),
        finish: |acc: [f32; 8], terms: Terms<'_, 8>, out: &mut Lanes<8>| {
            for (i, out) in out.iter_mut().enumerate() {
                out.write(acc[i] + terms.bias[i]);
            }
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: the part is of this thread alone.
    unsafe { tile::multiply::<8, 16, 2, _>(product, part, vector) }
}

/// # Safety
/// No other thread computes a block that overlaps.
pub unsafe fn attend(attention: &Attention<'_>, block: Block, out: &Sink<'_>) {
    // In one step where the CPU surely has it: the C library's fma is far slower than two.
    let fused = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
    let register = float_tile::Closures {
        load: |from: &[f32; 8]| *from,
        splat: |value| [value; 8],
        fma: |a: [f32; 8], b: [f32; 8], acc: [f32; 8]| {
            std::array::from_fn(|i| match fused {
                true => a[i].mul_add(b[i], acc[i]),
                false => a[i] * b[i] + acc[i],
            })
        },
        store: |values, to: &mut [f32; 8]| *to = values,
        transpose: |square: [[f32; 8]; 8]| {
            std::array::from_fn(|c| std::array::from_fn(|r| square[r][c]))
        },
    };
    // SAFETY: the block is of this thread alone.
    unsafe { attention::attend::<8, 2>(attention, block, out, register) }
}
