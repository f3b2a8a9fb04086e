//! Relaxed SIMD where its `madd` is fused: all of simd128 with an `fma` of one instruction.

use super::lanes::Relaxed;
use super::simd128::{
    attend_by, functions_by, multiply_bf16_by, multiply_blocks_by, multiply_by, multiply_f16_by,
    run_by,
};
use crate::arch::op::Op;
use crate::loops::attention::{Attention, QueryBlock};
use crate::loops::blocks::RowBlock;
use crate::loops::product::{Pair, Part, Product, Sink};

pub use super::simd128::{multiply_row, multiply_shifted, transpose, widen};

functions_by!(Relaxed);
