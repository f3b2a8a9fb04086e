//! The numeric suite: errors of a quantized model, measured on inputs of a user's choice.
//!
//! [`inspect()`] measures all there is of a model, with its float original beside it;
//! [`sensitivity`] measures only how far each layer's output would be if it were quantized.

mod codes;
mod histogram;
mod observe;
mod page;
mod run;
mod table;

pub use crate::deviation::Deviation;
pub use codes::{ActivationInspection, WeightInspection};
pub use histogram::Histogram;
pub(crate) use observe::gathered;
pub use observe::sensitivity;
pub use run::{Inspection, LayerInspection, inspect};
#[doc(hidden)]
pub use {
    observe::{Observed, observe, replays},
    page::PagePoint,
};
