//! Convolutions of images, and of signals, whose height is 1.

mod float;
mod geometry;
mod int8;

pub use float::{FloatWeight, convolve_f32};
pub use geometry::Convolution;
pub use int8::convolve;
