//! WebAssembly: 4 lanes, in two forms.
//!
//! There is no detection: a module that has an instruction which the engine lacks does not load, so
//! the features are those that it was compiled with. Nothing here is unsafe but loads and stores.
//!
//! An `fma` is what both forms differ in, see [`lanes`]. No instruction multiplies all u8 by all i8 in
//! a way that is defined: `i32x4.relaxed_dot_i8x16_i7x16_add` is where one side has 7 bits, but
//! activations have 8. In two parts of 7 bits and 1 it would be as many instructions as products of
//! i16 on CPUs without VNNI. Products are the same in both forms therefore.

mod lanes;
#[cfg(target_feature = "relaxed-simd")]
pub mod relaxed_simd;
pub mod simd128;
