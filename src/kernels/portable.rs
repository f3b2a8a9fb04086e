//! The instance without intrinsics: it runs on any CPU, and shows what the others do.

use super::attention::{self, Attention, Block};
use super::float_tile;
use super::tile::{self, Closures, Output, Part, Product};
use super::{Instance, activation, gates, norm, rows};

pub(super) const INSTANCE: Instance = Instance {
    range: rows::range,
    quantize: rows::quantize,
    update: gates::update,
    activate: activation::apply,
    softmax: norm::softmax_row,
    normalize: norm::normalize,
    attend,
    multiply,
};

/// # Safety
/// No other thread computes a part that overlaps.
unsafe fn multiply(product: &Product<'_>, part: Part) {
    let vector = Closures {
        zero: || [0i32; 8],
        load: |weights: &[i8; 32]| *weights,
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
        finish: |acc: [i32; 8], with: tile::Epilogue<'_, 8>| {
            std::array::from_fn(|i| {
                let correction = with.row.zero_point.wrapping_mul(with.sums[i]);
                let acc = acc[i].wrapping_sub(correction) as f32;
                acc.mul_add(with.row.scale * with.scales[i], with.bias[i])
            })
        },
    };
    // SAFETY: the caller's promise.
    unsafe { tile::multiply::<8, 32, 2>(product, part, vector) }
}

/// # Safety
/// No other thread computes a block that overlaps.
unsafe fn attend(attention: &Attention<'_>, block: Block, out: &Output<'_>) {
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
    // SAFETY: the caller's promise.
    unsafe { attention::attend::<8, 2>(attention, block, out, register) }
}
