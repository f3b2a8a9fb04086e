//! AArch64: the loop nest of `tile` with 32 registers of 4 lanes.
//!
//! NEON is part of every AArch64 target, so that what the compiler makes of plain Rust in
//! `portable` is vector code already, `fma` included: the products alone are written here.
//!
//! Neither instruction set has a product of u8 by i8. Weights are packed with 128 added to
//! their codes and zero points, and the sums of activation codes, which correct by zero points,
//! correct for that as well: all products are u8 by u8, and the loop has no instruction more.
//!
//! i8mm is not used. Its `usdot` does in one instruction what `udot` does here; its `ummla`, twice
//! that, but on pairs of rows by pairs of channels, eight inputs deep: both sides would need a
//! separate packed layout, half of which is idle where there is one row.

pub mod dotprod;
pub mod neon;
