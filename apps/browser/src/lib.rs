//! A text classifier for a web page: a BERT in int8, in WebAssembly.
//!
//! A page calls [`Classifier`] through the functions of `exports`; the program `dynquant-browser`
//! writes the model that it loads.

mod classifier;
#[cfg(target_arch = "wasm32")]
mod exports;

pub use classifier::{Class, Classified, Classifier, LayerState, ModelState};
