//! WebAssembly: 4 lanes, in two forms.
//!
//! Nothing is detected: a module that has an instruction which the engine lacks does not load, so
//! the features are those that it was compiled with. Nothing here is unsafe but loads and stores.
//!
//! The two forms differ in their `fma`, see [`lanes`]. No instruction multiplies all u8 by all i8
//! with a defined result: `i32x4.relaxed_dot_i8x16_i7x16_add` does where one side has 7 bits, but
//! activations have 8. Split into 7 bits and 1, they would take no fewer instructions than products
//! of i16 on CPUs without VNNI. So both forms have the same products.

mod lanes;
#[cfg(target_feature = "relaxed-simd")]
pub mod relaxed_simd;
pub mod simd128;
