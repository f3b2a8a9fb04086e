//! Relaxed SIMD where its `madd` is fused: all of simd128 with an `fma` of one instruction.

use super::lanes::Relaxed;
use super::simd128::{
    attend_by, multiply_bf16_by, multiply_blocks_by, multiply_by, multiply_f16_by, run_by,
};
use crate::arch::op::{Activate, Op};
use crate::loops::activation::Activation;
use crate::loops::attention::{Attention, Block};
use crate::loops::blocks::RowBlock;
use crate::loops::product::{Pair, Part, Product, Sink};

pub use super::simd128::widen;

/// The door: an op compiled with these features, out of line.
#[inline(never)]
pub fn run<O: Op>(op: O) -> O::Out {
    run_by::<O, Relaxed>(op)
}

fn activate(activation: Activation, xs: &mut [f32]) {
    run(Activate { activation, xs });
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    // SAFETY: the contract is the same.
    unsafe { multiply_by::<Relaxed>(product, out, part, activate) }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_f16(product: &Product<'_, f32>, out: &Sink<'_>, part: Part) {
    // SAFETY: the contract is the same.
    unsafe { multiply_f16_by::<Relaxed>(product, out, part, activate) }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
    // SAFETY: the contract is the same.
    unsafe { multiply_bf16_by::<Relaxed>(product, out, part, activate) }
}

/// # Safety
/// No other thread computes a block that overlaps.
pub unsafe fn attend<const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: Block,
    out: &Sink<'_>,
) -> bool {
    // SAFETY: the contract is the same.
    unsafe { attend_by::<Relaxed, CAREFUL>(attention, block, out) }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    // SAFETY: the contract is the same.
    unsafe { multiply_blocks_by::<Relaxed>(product, out, part, activate) }
}
