//! Checkpoints with quantized weights: the bits after a round trip, and files of all kinds.

mod blocks;
mod changed;
mod codes;
mod computed;
mod contested;
mod convert;
mod files;
mod fixtures;
mod foreign;
mod gguf;
mod groups;
mod hostile;
mod isa;
#[path = "../common/kit.rs"]
mod kit;
mod layouts;
mod mixed;
mod model;
mod origins;
mod qweight;
mod real_files;
mod round_trip;
#[cfg(unix)]
mod special;
mod text;
mod transformers;
