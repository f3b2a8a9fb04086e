//! Checkpoints: quantized and dequantized file by file, shown, compared.

mod args;
mod diff;
mod inspect;
mod progress;
mod quantize;
mod readers;
mod table;
mod weights;

pub use args::{DequantizeArgs, DiffArgs, InspectArgs, QuantizeArgs};
pub use diff::run as diff;
pub use inspect::run as inspect;
pub use quantize::{dequantize, run as quantize};
