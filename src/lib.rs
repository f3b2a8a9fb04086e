//! PyTorch-style dynamic quantization for candle.

#![deny(unsafe_code)]

pub mod error;
#[allow(unsafe_code)]
pub mod kernels;
pub mod module;
pub mod nn;
mod qconfig;
pub mod qparams;
pub mod quantize;
mod qweight;

#[doc = include_str!("module/derive.md")]
pub use candle_dynquant_derive::Quantizable;
pub use error::{Error, Result};
pub use module::{Layer, LayerKind, Quantizable, WeightDType, WeightInfo};
pub use qconfig::{ActivationConfig, Granularity, QConfig, WeightConfig};
pub use qparams::QScheme;
pub use quantize::{
    LayerReport, LeftReason, OpaqueField, Outcome, QConfigSpec, Report, quantize_dynamic,
};
pub use qweight::QWeight;
