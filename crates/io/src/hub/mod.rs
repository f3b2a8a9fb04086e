//! Models named on the Hugging Face hub, in the cache that Hugging Face's programs fill and read.

mod cache;
mod client;
mod fetch;
mod name;
mod settings;

pub use fetch::{Files, Progress, Reads, fetch};
pub use name::{is_name, is_plain};
