//! The framework of a benchmark.

pub mod args;
pub mod candle_attention;
pub mod interleaved;
pub mod table;

pub use args::Args;
pub use interleaved::interleaved;
