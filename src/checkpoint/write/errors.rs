//! Errors of layers that cannot be saved.

use crate::error::{Error, Fault};

/// The error of a layer whose tensor is not in the source.
pub fn missing(name: &str, got: &str) -> Error {
    Error::from(Fault::Unsavable {
        expected: format!("a tensor {name:?} in the checkpoint"),
        got: got.into(),
    })
}

/// The error of layers that need different tensors under one name.
pub fn contested(name: &str) -> Error {
    Error::from(Fault::Unsavable {
        expected: format!("one weight for the tensor {name:?}"),
        got: "two layers with different ones".into(),
    })
}
