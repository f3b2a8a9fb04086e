//! Dot products: 4 lanes, four products a lane and instruction.
//!
//! The inner loop of the highest tile, as compiled: 24 `udot`, loads of 4 weights (2 `ldp`) and of
//! 6 groups of activations (`ldr` of a word each), 6 additions to pointers and 2 instructions of
//! the loop: 40 instructions, and nothing on the stack.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::neon;
use crate::arch::op::Activate;
use crate::loops::activation::Activation;
use crate::loops::blocks::RowBlock;
use crate::loops::product::{Part, Product, Row, Sink};
use crate::loops::tile::{self, MAX_ROWS};
use crate::loops::vector::{Closures, Lanes};
use crate::packed::Channels;

pub use super::neon::{
    attend, multiply_bf16, multiply_f16, multiply_row, multiply_shifted, run, transpose, widen,
};

/// A tile of 6 x 16: 24 sums, 4 weights and a group of activations of the 32 registers.
///
/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "neon,dotprod")]
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    let vector = Closures {
        start: |row: Row, channels: Channels<'_, 4>| neon::start(row, channels),
        // SAFETY: the array is 16 bytes to read; no alignment is asked.
        load: |weights: &[u8; 16]| unsafe { vld1q_u8(weights.as_ptr()) },
        splat: |codes: [u8; 4]| f32::from_bits(u32::from_le_bytes(codes)),
        dot: |acc, a, b| dot(acc, a, b),
        add: |left, right| vaddq_u32(left, right),
        fold: |acc, _| acc,
        finish: |acc, row: Row, channels: Channels<'_, 4>, out: &mut Lanes<4>| {
            neon::finish(acc, row, channels, out)
        },
        activate: |activation: Activation, xs: &mut [f32]| run(Activate { activation, xs }),
        group: PhantomData,
    };
    // SAFETY: parts of a `Grid` are disjoint, and one thread computes each.
    unsafe { tile::multiply::<4, 16, 4, MAX_ROWS, _>(product, out, part, vector) }
}

/// `acc` plus, in each lane, four products of bytes of `weights` and `codes`.
///
/// `codes` is the low quarter of a register, which is why it has the type of a scalar there: the
/// instruction broadcasts it, and a scalar's load takes no vector pipe as a broadcasting one
/// does. The intrinsic is not stable in Rust 1.94.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn dot(acc: uint32x4_t, codes: f32, weights: uint8x16_t) -> uint32x4_t {
    let mut acc = acc;
    // SAFETY: the instruction reads and writes these registers and nothing else.
    unsafe {
        asm!(
            "udot {acc:v}.4s, {weights:v}.16b, {codes:v}.4b[0]",
            acc = inout(vreg) acc,
            weights = in(vreg) weights,
            codes = in(vreg) codes,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// # Safety
/// The CPU has these features, and no other thread computes a part that overlaps.
#[target_feature(enable = "neon,dotprod")]
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    let dot = |acc: int32x4_t, codes: int8x16_t, xs: [u8; 4]| {
        let mut acc = acc;
        let xs = f32::from_bits(u32::from_le_bytes(xs));
        // SAFETY: the instruction reads and writes these registers and nothing else.
        unsafe {
            asm!(
                "sdot {acc:v}.4s, {codes:v}.16b, {xs:v}.4b[0]",
                acc = inout(vreg) acc,
                codes = in(vreg) codes,
                xs = in(vreg) xs,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        acc
    };
    // SAFETY: the contract is the same.
    unsafe { neon::multiply_blocks_by(product, out, part, dot) }
}
