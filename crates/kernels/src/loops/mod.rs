//! The loops, written once for all instruction sets: over the registers they are given, or in plain
//! Rust over fixed-size chunks. On one thread, and without a choice of instruction set.

pub mod activation;
pub mod attention;
pub mod attention_few;
pub mod attention_int8;
pub mod blocks;
pub mod buffer;
pub mod convert;
pub mod dequantize;
pub mod dots;
pub mod encode;
pub mod factors;
pub mod feedback;
pub mod fetch;
pub mod fit;
pub mod float_row;
pub mod float_tile;
pub mod float_vector;
pub mod gates;
pub mod norm;
pub mod number;
pub mod product;
pub mod queries;
pub mod rows;
pub mod split;
pub mod tile;
pub mod vector;
#[allow(dead_code, reason = "most instruction sets multiply bytes")]
pub mod wide;
