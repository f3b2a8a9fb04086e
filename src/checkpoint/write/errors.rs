//! Errors of layers that cannot be saved.

use crate::error::Error;

/// The error of a layer whose tensor is not in the source.
pub fn missing(name: &str, got: &str) -> Error {
    Error::unsavable(format!("a tensor {name:?} in the checkpoint"), got)
}

/// The error of layers that need different tensors under one name.
pub fn contested(name: &str) -> Error {
    Error::unsavable(
        format!("one weight for the tensor {name:?}"),
        "two layers with different ones",
    )
}
