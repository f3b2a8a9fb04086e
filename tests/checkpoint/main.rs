//! Checkpoints with quantized weights: the bits after a round trip, and files of all kinds.

mod blocks;
mod changed;
mod codes;
mod computed;
mod contested;
mod convert;
mod files;
mod foreign;
mod gguf;
mod groups;
mod hostile;
mod isa;
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
