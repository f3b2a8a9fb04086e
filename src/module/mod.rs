//! The tree: how a model shows its layers by name.
//!
//! candle's `Module` has only `forward`, so a model lists its layers through [`Quantizable`], which
//! is derived. Layers implement [`Layer`]; your own layers are quantized too if they implement it.

mod cells;
mod containers;
mod kind;
mod layer;
mod leaves;
mod norm;
mod private;
mod tensors;
mod tied;
mod walk;
mod weight_info;

/// For the code that the derive writes.
#[doc(hidden)]
pub mod __private {
    pub use super::private::{Copied, Fallback, Field, FieldMut, assert_quantizable, strict};
}

pub use crate::tap::{Receiver, Replay, Tap};
pub(crate) use crate::tensor::MemoryId;
pub use kind::LayerKind;
pub use layer::{AnyLayer, Layer};
pub(crate) use leaves::leaves;
pub(crate) use norm::sealed::Sealed as SealedNorm;
pub use norm::{Affine, AnyNorm};
pub use tensors::TensorField;
pub use tied::{LentWeight, WeightId};
pub(crate) use walk::QMatrix;
pub use walk::{Pointer, Visitor, VisitorMut, Walk, WalkMut};
pub use weight_info::{WeightDType, WeightInfo};

use crate::error::Result;

/// A module tree that shows its layers by name; [derive it](macro@crate::Quantizable).
///
/// ```
/// use candle_dynquant::{nn, Quantizable};
///
/// #[derive(Quantizable, Clone)]
/// struct Mlp {
///     up: nn::Linear,
///     down: nn::Linear,
///     hidden: usize, // holds no layer
/// }
/// ```
///
/// `visit` and `visit_mut` must show the same layers under the same names.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module tree",
    label = "this field is not `Quantizable`",
    note = "derive it with `#[derive(Quantizable)]`, or mark the field `#[quantizable(skip)]`",
    note = "for a layer of `candle_nn`, take its namesake in `candle_dynquant::nn`"
)]
pub trait Quantizable {
    /// Shows every layer below to `walk`.
    ///
    /// # Errors
    /// Errors of the visitor behind `walk`.
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()>;

    /// Shows every layer below to `walk`, which may replace it.
    ///
    /// # Errors
    /// Errors of the visitor behind `walk`.
    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()>;
}
