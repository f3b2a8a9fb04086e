//! Attention: the functions, the layer that a spec quantizes, and caches of keys and values.

mod cache;
#[path = "../common/mod.rs"]
mod common;
mod functions;
mod layer;
