//! The commands on checkpoints: quantize and dequantize file by file, inspect, compare.

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
pub use quantize::{dequantize, presets, run as quantize};
