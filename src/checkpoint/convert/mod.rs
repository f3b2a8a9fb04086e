//! Checkpoints quantized and dequantized without a model.

mod blocks;
mod plan;
mod quantize;

pub use plan::{Plan, PlannedLayer};
pub use quantize::{dequantize, quantize};
