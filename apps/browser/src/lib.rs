//! A text classifier for a web page: a BERT in int8, in WebAssembly.
//!
//! [`Classifier`] is what a page calls, by the functions that `exports` gives it; the program
//! `dynquant-browser` writes the model that it loads.

mod classifier;
#[cfg(target_arch = "wasm32")]
mod exports;

pub use classifier::{Class, Classified, Classifier, LayerState, ModelState};
