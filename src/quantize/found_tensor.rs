//! Tensors that a walk met outside of layers.

use candle_core::DType;

use crate::module::{FoundTensor, TensorField, WeightDType, WeightId, WeightInfo};

/// Whether a tensor of `bytes` keeps a memory alive that is at least twice as large.
pub fn keeps_more(bytes: usize, memory: usize) -> bool {
    memory > 0 && memory >= 2 * bytes
}

impl FoundTensor {
    /// The tensor, if it is a float one that reaches along two or more dimensions, or a view of
    /// more: norms and biases are vectors, and indexes and masks are integers.
    pub fn new(path: &str, field: TensorField<'_>) -> Option<Self> {
        let TensorField { tensor, held_by, strict } = field;
        let info = WeightInfo::of_float("", tensor);
        if info.dtype == WeightDType::Other && tensor.dtype() != DType::F8E4M3 {
            return None;
        }
        let memory = info.id.as_ref().and_then(WeightId::memory_bytes);
        let is_view = memory.is_some_and(|all| keeps_more(info.bytes, all));
        let is_held = is_matrix(&info.shape) && info.bytes > 0 || is_view;
        is_held.then(|| Self { path: path.to_owned(), held_by, strict, info })
    }
}

/// Whether a shape reaches along two or more dimensions.
pub fn is_matrix(shape: &[usize]) -> bool {
    shape.iter().filter(|size| **size > 1).count() >= 2
}
