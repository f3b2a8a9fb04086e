//! The instance without intrinsics: it runs on any CPU, and shows what the others do.

use super::tile::{self, Closures, Part, Product};
use super::{Instance, activation, gates, rows};

pub(super) const INSTANCE: Instance = Instance {
    range: rows::range,
    quantize: rows::quantize,
    update: gates::update,
    activate: activation::apply,
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
