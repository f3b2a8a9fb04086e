//! Attention: the functions, the layer that a spec quantizes, caches of keys and values, and the
//! accuracy of models in fewer bits.

mod accuracy;
mod cache;
#[path = "../common/mod.rs"]
mod common;
mod functions;
#[path = "../common/kit.rs"]
mod kit;
mod layer;
mod vit;
