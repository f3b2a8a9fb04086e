//! PyTorch-style eager dynamic quantization for [candle](candle_core): int8 weights,
//! activations quantized at every forward call, no calibration, no export.
//!
//! # Should I use this crate?
//! Yes, for a candle model that runs on the CPU and spends its time in `Linear` or recurrent
//! layers, for example a transformer encoder. No, if it runs on a GPU, if you train it, or if it
//! spends its time in convolutions.
//!
//! # Three changes to a model
//! 1. [`candle_dynquant::nn`](nn) in place of `candle_nn`: `nn::Linear` and `nn::linear`, and norms and
//!    activations that are fused,
//! 2. `#[derive(Quantizable)]` on each struct,
//! 3. one call of [`quantize_dynamic`].
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_dynquant::{nn, quantize_dynamic, QConfigSpec, Quantizable};
//! use candle_nn::{VarBuilder, VarMap};
//!
//! #[derive(Quantizable, Clone)]
//! struct Classifier {
//!     hidden: nn::Linear,
//!     head: nn::Linear,
//!     num_labels: usize, // holds no layer
//! }
//!
//! impl Classifier {
//!     fn load(vb: VarBuilder) -> candle_core::Result<Self> {
//!         let hidden = nn::linear(64, 128, vb.pp("hidden"))?;
//!         let head = nn::linear(128, 10, vb.pp("head"))?;
//!         Ok(Self { hidden, head, num_labels: 10 })
//!     }
//!
//!     fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
//!         self.head.forward(&self.hidden.forward(xs)?.relu()?)
//!     }
//! }
//!
//! let vars = VarMap::new(); // or a float checkpoint
//! let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
//! let mut model = Classifier::load(vb)?;
//! let report = quantize_dynamic(&mut model, &QConfigSpec::int8())?;
//! println!("{report}"); // every layer: swapped or left and why, bytes before and after
//! let logits = model.forward(&Tensor::zeros((4, 64), DType::F32, &Device::Cpu)?)?;
//! assert_eq!(logits.dims(), [4, 10]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which preset
//! - [`QConfigSpec::int8`]: a weight scale per output channel, an 8-bit activation scale per
//!   row. The most accurate, the same speed, and a row's result does not depend on its batch.
//! - [`QConfigSpec::default`]: PyTorch's `quantize_dynamic(model)`, bit-equal to torch 2.9.1.
//! - [`QConfigSpec::embeddings`] adds embeddings, which are off by default: PyTorch's weight-only
//!   quantization, also bit-equal. A table that is also the output projection is kept once; see
//!   [`nn::Embedding`].
//! - [`QConfigSpec::float16`], [`QConfigSpec::onnxruntime`]: half-precision weights; ONNX
//!   Runtime's defaults.
//! - [`QConfigSpec::new`] and rules: by kind of layer, by name, by regex; or from a file, by
//!   [`QConfigSpec::from_file`]. [`QConfigSpec`] has a table of the equivalents in PyTorch, ONNX
//!   Runtime and Neural Compressor.
//!
//! # Numbers
//! [`qparams`] is the theory, [`kernels::reference`] the definition of every result, and all
//! instruction sets give the same bits. The environment variable `DYNQUANT_ISA` narrows the
//! instruction set: see [`kernels::Isa`].

#![deny(unsafe_code)]

mod document;
pub mod error;
#[allow(unsafe_code)]
pub mod kernels;
pub mod module;
pub mod nn;
pub mod observer;
pub mod ops;
mod qconfig;
pub mod qparams;
mod qtable;
pub mod quantize;
mod qweight;
mod sizes;
mod tensor;
mod words;

#[doc = include_str!("module/derive.md")]
pub use candle_dynquant_derive::Quantizable;
/// candle as this crate was built with it: one version for a model and its layers.
pub use {candle_core, candle_nn};

pub use error::{Error, Result};
pub use kernels::Activation;
pub use module::{Layer, LayerKind, LentWeight, Quantizable, WeightDType, WeightId, WeightInfo};
pub use qconfig::{
    ActivationConfig, Arithmetic, DynamicConfig, Granularity, OnnxRuntimeOptions, QConfig,
    WeightConfig,
};
pub use qparams::{QDType, QScheme};
pub use qtable::QTable;
pub use quantize::{
    HiddenField, HiddenReason, LayerReport, LeftReason, OneOrMany, OpaqueField, Outcome,
    QConfigSpec, Report, Target, quantize_dynamic,
};
pub use qweight::QWeight;
