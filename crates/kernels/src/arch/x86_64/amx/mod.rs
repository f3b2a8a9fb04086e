//! AMX: tiles of 16 rows of 64 bytes, multiplied as 16 x 16 sums of 64 products of u8 by i8, or of
//! 32 of bfloat16.
//!
//! ```text
//! for each half of a panel, 32 channels     its codes stay in L1 while all rows pass
//!   for each block of 32 rows               2 x 2 tiles of sums
//!     for each 16 groups of inputs
//!       load 2 tiles of activations, 2 of weights; 4 products
//!     of the block before: to f32, fma by scale and bias, store
//!     store the tiles in L1
//! ```
//!
//! Packed weights are read as they are: 16 groups of 16 channels are a tile. So are the keys and
//! values of attention in 8 bits. Weights in blocks are widened first, by a separate nest in
//! `blocks`. AVX512-VNNI computes everything but the products of several rows, and attention in
//! bfloat16, on the same weights.
//!
//! Tiles have no type in Rust: they are named in `asm!` only, so the compiler cannot touch them
//! between the first load of a block and its last store.

mod attention;
mod blocks;
#[cfg(all(feature = "emulate-amx", target_os = "linux"))]
mod emulation;
mod nest;
#[cfg(test)]
mod tests;
mod tiles;

#[cfg(not(all(feature = "emulate-amx", target_os = "linux")))]
pub use super::avx512_vnni::{multiply_f16, multiply_row, multiply_shifted, run, transpose, widen};
#[cfg(not(all(feature = "emulate-amx", target_os = "linux")))]
pub use attention::attend;
#[cfg(not(all(feature = "emulate-amx", target_os = "linux")))]
pub use blocks::multiply_blocks;
#[cfg(not(all(feature = "emulate-amx", target_os = "linux")))]
pub use nest::{multiply, multiply_bf16};

#[cfg(all(feature = "emulate-amx", target_os = "linux"))]
pub use emulation::{
    attend, multiply, multiply_bf16, multiply_blocks, multiply_f16, multiply_row, multiply_shifted,
    run, transpose, widen,
};
