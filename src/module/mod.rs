//! The tree: how a model shows its layers by name.
//!
//! candle's `Module` has only `forward`, so a model lists its layers through [`Quantizable`], which
//! is derived. Layers implement [`Layer`]; your own layers are quantized too if they implement it.

mod cells;
mod containers;
mod kind;
mod layer;
pub(crate) mod leaves;
mod norm;
pub(crate) mod private;
mod tensors;
mod tied;
pub(crate) mod trees;
mod walk;
mod weight_info;

pub use crate::tap::{Receiver, Replay, Tap};
pub(crate) use crate::tensor::MemoryId;
pub use kind::LayerKind;
pub use layer::Layer;
pub(crate) use norm::{Affine, AnyNorm};
pub use tied::{LentWeight, WeightId};
pub(crate) use walk::{FoundTensor, TensorField};
pub use walk::{Quantizable, Visitor, VisitorMut, Walk, WalkMut};
pub(crate) use weight_info::ConvolutionCost;
pub use weight_info::{WeightDType, WeightInfo};
