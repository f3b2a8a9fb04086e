//! Reading: the files, their headers, and which of their tensors are quantized weights.

mod checkpoint;
mod config;
mod files;
mod gguf;
mod gguf_types;
pub mod header;
mod keys;
mod layouts;
mod opened;
pub mod record;
mod shard;
mod weights;

pub use checkpoint::{Checkpoint, TensorInfo, loaded};
pub use config::{ENTRY, MAX_CONFIG, METHOD, OLD_ENTRY};
pub use files::{CONFIG, Files, INDEX, is_of_model, read_small};
pub use header::{Axis, Encoding, Entry, LENGTH, Packing, invalid};
pub use opened::Opened;
pub use record::View;
pub use shard::Shard;
pub use weights::{Precisions, belongs, matrix, owners};
