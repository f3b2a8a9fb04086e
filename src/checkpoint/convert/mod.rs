//! Checkpoints quantized and dequantized without a model.

mod blocks;
mod dequantize;
mod plan;
mod quantize;

pub use dequantize::dequantize;
pub use plan::{Plan, PlannedLayer};
pub use quantize::quantize;
