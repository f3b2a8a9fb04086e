//! Random tensors and `QConfig`s for the properties.

pub mod qconfigs;
pub mod values;
