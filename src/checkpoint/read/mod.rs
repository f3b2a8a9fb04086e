//! Reading: the files, their headers, and which of their tensors are quantized weights.

mod backend;
mod checkpoint;
pub mod config;
pub mod files;
pub mod header;
mod layouts;
pub mod opened;
pub mod record;
pub mod scheme;
pub mod shard;
mod unique_map;
pub mod weights;

pub use checkpoint::{Checkpoint, TensorInfo};
