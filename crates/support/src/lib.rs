//! Code that the examples, tests, benchmarks and programs of this repository share: models of the
//! examples, readers of their files, and the frames of command lines and benchmarks.
#![allow(missing_docs, reason = "fields are named as the files' keys, or as the options")]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
pub mod bench;
pub mod bert;
pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod cli;
#[allow(clippy::print_stdout, reason = "tests print what they measured")]
pub mod load;
pub mod lstm;
#[cfg(feature = "profile")]
pub mod profile;
#[allow(clippy::should_implement_trait, reason = "its numbers have no end")]
#[path = "../../kernels/src/tests/random.rs"]
pub mod random;
pub mod table;
pub mod threads;
#[allow(clippy::print_stderr, reason = "its process ends")]
#[path = "../../kernels/src/threads/watchdog.rs"]
pub mod watchdog;

use std::path::PathBuf;

use candle_dynquant::{Layer, Quantizable, Result, Visitor, Walk};

/// The tiny random decoders in `assets/reference/decoders`.
pub const DECODERS: [&str; 15] = [
    "llama",
    "llama3",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3",
    "smollm3",
    "granite",
    "granite4",
    "phi3",
    "qwen3_moe",
    "mixtral",
    "olmoe",
    "granite_moe",
    "lfm2",
];

/// The root of this repository, which holds the examples' files.
pub fn repository() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).map_or(package.clone(), PathBuf::from)
}

/// The bytes of the weights of all layers that `counts` accepts.
pub fn weight_bytes(model: &impl Quantizable, counts: fn(&dyn Layer) -> bool) -> Result<usize> {
    struct Bytes(usize, fn(&dyn Layer) -> bool);
    impl Visitor for Bytes {
        fn layer(&mut self, _: &str, layer: &dyn Layer) -> Result<()> {
            if self.1(layer) {
                self.0 += layer.weight_infos().iter().map(|weight| weight.bytes).sum::<usize>();
            }
            Ok(())
        }
    }
    let mut bytes = Bytes(0, counts);
    Walk::over(model, &mut bytes)?;
    Ok(bytes.0)
}

/// The rows of a text table, whose columns ` | ` separates.
pub fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    let cells = |row| str::split(row, " | ").collect::<Vec<_>>().try_into();
    let rows = table.trim().lines();
    rows.map(move |row| cells(row).unwrap_or_else(|_| panic!("expected {N} columns: {row}")))
}
