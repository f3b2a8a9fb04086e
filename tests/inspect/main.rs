//! Measuring quantized models: taps, figures, pages.

mod figures;
mod page;
mod taps;
