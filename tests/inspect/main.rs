//! Measuring quantized models: taps, figures, pages.

mod figures;
#[cfg(feature = "page")]
mod page;
mod taps;
