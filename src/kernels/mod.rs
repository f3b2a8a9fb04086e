//! Slices in, slices out.
mod isa;
pub use isa::Isa;
