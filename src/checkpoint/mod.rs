//! Checkpoints with quantized weights, which other tools understand: quantize once, load anywhere.
//!
//! [`save`] writes a quantized model, [`Checkpoint`] opens it, float or quantized, and gives an
//! ordinary `VarBuilder`: the model's own code loads both.
//!
//! # Format
//! Tensors, and the entry `quantization_config` of a folder's `config.json`, follow
//! [compressed-tensors](https://github.com/vllm-project/compressed-tensors), format
//! `int-quantized`, which transformers and vLLM read:
//!
//! | tensor | dtype | shape | |
//! |---|---|---|---|
//! | `weight` | I8 | `[out_features, in_features]` | codes; for quint8 less 128 |
//! | `weight_scale` | F32 | `[out_features, 1]`, or `[1]` | per channel, or per tensor |
//! | `weight_zero_point` | I8 | as the scale | if affine; less 128 for quint8 |
//! | `weight_zero_point` | F32 | as the scale | the float zero points of an embedding, less 128 |
//! | `weight_zero_point_unsigned` | F32 | as the scale | the same, exact, for this crate |
//! | `weight` | F16, BF16 | `[out_features, in_features]` | float16 weights, bfloat16 weights |
//!
//! Experts, `[experts, out_features, in_features]`, have scales `[experts, out_features, 1]`.
//! Convolutions, which only this crate reads, are the matrices of their taps, `[1, kernel..,
//! out_channels, in_channels]`, transposed ones `[1, kernel, 1, 1, ..]`, with scales alike. A
//! weight that is a part of a tensor which stays is beside it, as `NAME.quantized` or
//! `NAME.quantized_..` with the same suffixes; the metadata says which part it is, and has version
//! 2 then.
//!
//! Recurrent layers have the same suffixes behind their own names: `weight_ih_l0_scale`. All other
//! tensors are as they were. The metadata of a safetensors file has the rest, as JSON with a
//! version under `candle_dynquant`: the dtype of the codes, the qscheme, and how activations are
//! quantized; and the precision of attention of fewer bits than float32, by the name that it was
//! loaded under, with version 3 then. Int8 weights of files without it get u8 activations per row,
//! or what `config.json` says.
//!
//! # Other layouts
//! These are read, and become the above when a model is saved:
//!
//! | library | tensors | products |
//! |---|---|---|
//! | bitsandbytes, int8 | `weight`, `SCB` | int8 if `llm_int8_threshold` is 0, else float |
//! | optimum-quanto, qint8 | `weight._data`, `weight._scale` | float |
//! | torchao, int8 | `_weight_qdata`, `_weight_scale` | int8 where activations are, else float |
//! | torchao, int4 | `_weight_qdata`, `_weight_scale` | int4 in groups |
//! | GPTQ, 4 and 8 bits | `qweight`, `qzeros`, `scales`, `g_idx` | int4, int8 in groups |
//! | AWQ, 4 bits | `qweight`, `qzeros`, `scales` | int4 in groups |
//! | AutoRound, as GPTQ or AWQ | `qweight`, `qzeros`, `scales` | int4, int8 in groups |
//! | GGUF | Q4_0, Q4_1, Q8_0; all others | int4, int8 in groups; float |
//!
//! Products of int8 are float where the library keeps activations float, all or some: layers get
//! the dequantized weight. So they do where a scale belongs to a group of inputs in int8, to a
//! group that is not a multiple of 32 in 4 bits, or to inputs in another order. Other numbers of
//! bits, codes in another order than rows are errors; static scales of activations are left out,
//! which [`Checkpoint::notes`] says.
//!
//! `scripts/convert_pytorch.py` converts a `state_dict` of PyTorch, quantized by it or float.
//!
//! # Models that are not ported
//! Layers of candle's own get the dequantized weight as a float tensor.

mod convert;
mod read;
mod write;

// For the command `dynquant`, which shows the layers before it writes them.
#[doc(hidden)]
pub use convert::{Plan, PlannedLayer};
pub use convert::{dequantize, quantize};
pub use read::{Checkpoint, TensorInfo, loaded};
pub use write::{Beside, Saved, save};
