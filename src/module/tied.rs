//! Tied weights: one tensor that several layers hold, as an embedding's table and the output
//! projection of a language model often are.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use candle_core::{Tensor, TensorId};

/// Which memory a weight is in: equal for layers that hold clones of one tensor, or one quantized
/// weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(Id);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Id {
    Float(TensorId),
    /// An address, which is nobody else's while the weight lives.
    Quantized(usize),
}

impl WeightId {
    /// Of a float weight.
    pub fn of_tensor(tensor: &Tensor) -> Self {
        Self(Id::Float(tensor.id()))
    }

    /// Of a quantized weight behind a pointer.
    pub fn of_shared<T>(shared: &Arc<T>) -> Self {
        Self(Id::Quantized(Arc::as_ptr(shared).addr()))
    }
}

/// A quantized weight that a layer lends to others which held the same float tensor; see
/// [`Layer::lend`](super::Layer::lend).
#[derive(Clone)]
pub struct LentWeight(Arc<dyn Any + Send + Sync>);

impl LentWeight {
    /// Lends what `weight` points to.
    pub fn new<T: Any + Send + Sync>(weight: Arc<T>) -> Self {
        Self(weight)
    }

    /// What was lent, if it is a `T`.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.0).downcast().ok()
    }
}

impl fmt::Debug for LentWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentWeight").finish_non_exhaustive()
    }
}
