//! Fused CPU operations for what is left of a transformer's time once its products are fast.
//!
//! | here | instead of |
//! |---|---|
//! | [`scaled_dot_product_attention`] | two matmuls, a scaling, a mask, a softmax and four copies |
//! | [`add_layer_norm`], [`layer_norm`] | an addition and a normalisation, each a pass over memory |
//! | [`gelu`], [`gelu_tanh`], [`silu`], [`sigmoid`], [`tanh`] | the same, one element at a time |
//! | [`softmax_last_dim`] | the same |
//!
//! They are functions on candle's tensors and depend on nothing else in this crate: any model
//! can use them, quantized or not.
//!
//! - Tensors may be views: what has to be contiguous is made so.
//! - On the CPU f32, f16 and bf16 are computed in f32, and the result has the first argument's
//!   dtype. f64, other devices than the CPU, and tensors of which candle tracks the gradient
//!   (variables and what was computed from them) are left to candle's own operations.
//! - Each states its distance from the exact result, which tests hold against f64, and gives
//!   the same bits for any number of threads.
//!
//! `cargo bench --bench ops` measures them against candle's own.

mod activation;
mod attention;
mod norm;

pub use activation::{activate, gelu, gelu_tanh, relu, sigmoid, silu, tanh};
pub use attention::scaled_dot_product_attention;
pub use norm::{add_layer_norm, layer_norm, softmax_last_dim};

pub use crate::kernels::Activation;

use candle_core::{DType, Layout, Result as CandleResult, Storage, StorageRef, Tensor};

use crate::error::{Error, Result};

/// Whether the kernels here compute this, or candle's own operations.
///
/// # Errors
/// When a tensor has a dtype that is no float.
fn is_ours(op: &'static str, tensors: &[&Tensor]) -> Result<bool> {
    let mut ours = true;
    for tensor in tensors {
        match tensor.dtype() {
            DType::F32 | DType::F16 | DType::BF16 => {
                ours &= tensor.device().is_cpu() && !tensor.track_op();
            }
            DType::F64 => ours = false,
            got => {
                return Err(Error::UnsupportedDType {
                    op,
                    expected: "f32, f16, bf16 or f64",
                    got,
                });
            }
        }
    }
    Ok(ours)
}

/// The tensor as contiguous f32.
fn contiguous(tensor: &Tensor) -> CandleResult<Tensor> {
    tensor.to_dtype(DType::F32)?.contiguous()
}

/// What `Tensor::storage_and_layout` returns: it keeps the storage from being changed.
type Guard<'a> = (StorageRef<'a>, &'a Layout);

/// An f32 tensor's storage on the CPU, from the tensor's first element on.
fn floats<'a>(guard: &'a Guard<'_>) -> CandleResult<&'a [f32]> {
    let (storage, layout) = guard;
    match &**storage {
        Storage::Cpu(storage) => Ok(&storage.as_slice()?[layout.start_offset()..]),
        _ => candle_core::bail!("expected a tensor on the cpu"),
    }
}

/// The elements of a contiguous f32 tensor on the CPU.
fn elements<'a>(guard: &'a Guard<'_>) -> CandleResult<&'a [f32]> {
    Ok(&floats(guard)?[..guard.1.shape().elem_count()])
}

fn mismatch(op: &'static str, expected: impl Into<String>, got: &Tensor) -> Error {
    Error::ShapeMismatch {
        op,
        expected: expected.into(),
        got: got.dims().to_vec(),
    }
}
