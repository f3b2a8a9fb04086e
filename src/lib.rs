//! PyTorch-style eager dynamic quantization for [candle](candle_core): int8 weights,
//! activations quantized at every forward call, no calibration, no export.
//!
//! # Should I use this crate?
//! Yes, for a candle model that runs on the CPU and spends its time in `Linear`, convolutions or
//! recurrent layers, for example a transformer encoder. No, if it runs on a GPU or if you train it.
//!
//! # Three changes to a model
//! 1. [`candle_dynquant::nn`](nn) in place of `candle_nn`: `nn::Linear` and `nn::linear`, and norms
//!    and activations that are fused,
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
//! A model that candle-transformers has is ported by a command, `dynquant port`: see [Porting a
//! candle model](https://github.com/candle-dynquant/candle-dynquant/blob/main/docs/porting.md).
//!
//! # Which preset
//! - [`QConfigSpec::int8`]: a weight scale per output channel, an 8-bit activation scale per
//!   row. The most accurate, the same speed, and a row's result does not depend on its batch.
//! - [`QConfigSpec::pytorch`]: PyTorch's `quantize_dynamic(model)`, bit-equal to torch 2.9.1.
//! - [`QConfigSpec::embeddings`] adds embeddings, which are off by default: PyTorch's weight-only
//!   quantization, also bit-equal. A table that is also the output projection is kept once; see
//!   [`nn::Embedding`].
//! - [`QConfigSpec::bfloat16`]: weights and activations in bfloat16, for models that lose too much
//!   in int8 and CPUs with AMX.
//! - [`QConfigSpec::float16`], [`QConfigSpec::onnxruntime`]: half-precision weights; ONNX
//!   Runtime's defaults.
//! - [`QConfigSpec::new`] and rules: by kind of layer, by name, by regex; or from a file, by
//!   [`QConfigSpec::from_file`]. [`QConfigSpec`] has a table of the equivalents in PyTorch, ONNX
//!   Runtime and Neural Compressor.
//!
//! # To an accuracy
//! [`tune`](tune()) finds the smallest mix of int8, float16 and float layers that meets a
//! criterion, by an evaluation of yours; [`TuningConfig`] reads Neural Compressor's YAML. See
//! [Tuning](https://github.com/candle-dynquant/candle-dynquant/blob/main/docs/tuning.md).
//!
//! # Guide
//! [The guide](https://github.com/candle-dynquant/candle-dynquant/blob/main/docs/introduction.md)
//! has chapters on numerics, presets, threads, checkpoints, layers of your own, deploying and
//! errors.
//!
//! # While it runs
//! - [`quantize_dynamic_with`] tells a function of yours about each layer, for a progress bar, and
//!   stops if it says so.
//! - With the feature `tracing`, which is on by default, quantizing is a span at level INFO with
//!   one for each layer at DEBUG, of the target `candle_dynquant`. At TRACE each layer's forward
//!   call is a span of the target `candle_dynquant::forward`, by candle-transformers' name for its
//!   kind and with the name that the layer was loaded under, and so are attention, softmax and
//!   activation functions of [`ops`]; below TRACE it costs one relaxed load and a branch. The
//!   example `bert --profile` adds them up.
//! - Float layers compute by candle's operations where candle tracks a gradient and on other
//!   devices than the CPU, so models can be trained with them. Quantized layers run on the CPU only
//!   and have no gradients: a backward pass that would go through one is an error, and the
//!   variables that their weights were made from are not in it. For inference, load tensors from a
//!   file and not into a `VarMap`: candle tracks results that are computed from variables, which
//!   keeps them in memory and takes the slower operations.
//! - Load a checkpoint in f32, also if it is stored as bf16: quantized weights are not larger, and
//!   candle's operations between the layers are several times faster.
//!
//! # Numbers
//! [`qparams`] is the theory, [`candle_dynquant_kernels::reference`] the definition of every
//! result, and all instruction sets give the same bits. The environment variable `DYNQUANT_ISA`
//! narrows the instruction set: see [`Isa`].

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

pub mod checkpoint;
mod deviation;
mod document;
mod equalize;
mod error;
mod gptq;
#[cfg(doctest)]
mod guide;
mod halves;
pub mod inspect;
mod kernels;
mod module;
mod name_regex;
pub mod nn;
pub mod observer;
pub mod ops;
mod qconfig;
pub mod qparams;
mod quantize;
mod sizes;
mod tap;
mod tensor;
mod trace;
pub mod tune;
mod weight;
mod words;

/// Items for the code that the derive writes.
#[doc(hidden)]
pub mod __private {
    pub use crate::module::private::{
        Copied, Fallback, Field, FieldMut, assert_quantizable, strict,
    };
    pub use crate::nn::private::{Name, Weight};
}

#[doc = include_str!("module/derive.md")]
pub use candle_dynquant_derive::Quantizable;
/// candle as this crate was built with it: one version for a model and its layers.
pub use {candle_core, candle_nn};

pub use checkpoint::Checkpoint;
pub use equalize::{Equalization, EqualizeReport, EqualizedPair, equalize};
pub use error::{Error, ErrorKind, Result};
pub use gptq::{GptqConfig, GptqReport, gptq};
pub use kernels::{FusedActivation, Isa};
pub use module::{Layer, LayerKind, Quantizable, Visitor, Walk, WalkMut, WeightDType, WeightInfo};
pub use qconfig::{
    Arithmetic, DynamicConfig, Granularity, GroupConfig, GroupScheme, HalfType, OnnxRuntimeOptions,
    QConfig,
};
pub use qparams::{QDType, QScheme};
pub use quantize::{
    FloatTensor, LayerReport, LeftReason, OneOrMany, OpaqueField, Outcome, Progress, QConfigSpec,
    Report, Skipped, Target, quantize_dynamic, quantize_dynamic_with,
};
pub use tune::{TuningConfig, TuningOutcome, tune};
pub use weight::{StoredWeight, WeightCodes};
#[doc(hidden)]
pub use {
    kernels::InputFactor,
    module::{LentWeight, Receiver, Replay, Tap, VisitorMut, WeightId},
    qconfig::IntType,
    weight::{QTable, QWeight},
};
