//! Layers: candle_nn's calls, with weights that can be quantized in place.

mod linear;
mod projection;

pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use projection::Projection;
