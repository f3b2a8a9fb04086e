//! Observers: they look at a weight and choose its scale and zero point.
//!
//! Names, arguments, defaults and formulas come from torch 2.9.1's observers. They differ on
//! invalid input: arguments are checked when an observer is made, and a NaN or infinite element is
//! an error, not a scale.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_dynquant::observer::{ObserverConfig, ObserverKind};
//! use candle_dynquant::{QDType, QScheme};
//!
//! let kind = ObserverKind::PerChannelMinMax;
//! let config = ObserverConfig::new(kind, QDType::QInt8, QScheme::PerChannelSymmetric);
//! let weight = Tensor::new(&[[0.5f32, -2.55], [2.55, 0.01]], &Device::Cpu)?;
//!
//! let mut observer = config.build()?;
//! observer.observe(&weight)?;
//! let qparams = observer.calculate_qparams()?;
//! assert_eq!(qparams.scales(), [0.02, 0.02]);
//! assert_eq!(qparams.quantize(1, &[2.55, 0.01]), [127, 0]);
//! # Ok::<(), candle_dynquant::Error>(())
//! ```

mod build;
mod config;
mod formula;
mod histogram;
mod ranges;
mod values;
mod weight_qparams;

pub(crate) use build::RangeFormula;
pub use config::{CustomObserver, Observer, ObserverConfig, ObserverKind};
#[doc(hidden)]
pub use histogram::HistogramObserver;
pub use weight_qparams::{WeightQParams, ZeroPoints};
