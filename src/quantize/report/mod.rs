//! The result of `quantize_dynamic`: `table` draws it, `fold` shortens lists of paths.

pub(crate) mod fold;
mod layers;
mod table;

pub use layers::{LayerReport, Report};
pub(crate) use table::{fmt_float_tensors, fmt_hidden};
