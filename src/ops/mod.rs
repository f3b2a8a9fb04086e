//! Fused CPU operations for the rest of a transformer, once its products are fast.
//!
//! | here | instead of |
//! |---|---|
//! | [`scaled_dot_product_attention`] | two matmuls, a scaling, a mask, a softmax and copies; `repeat_kv` |
//! | [`add_layer_norm`], [`add_rms_norm`] | an addition and a normalisation, each a pass over memory |
//! | [`layer_norm`], [`rms_norm`], [`softmax`], [`softmax_last_dim`], [`silu`], [`sigmoid`], [`swiglu`] | `candle_nn::ops`' functions of these names |
//! | [`gelu_erf`] and [`gelu`] | `xs.gelu_erf()`, the exact one |
//! | [`gelu_tanh`] | `xs.gelu()`: candle's is the approximation by tanh |
//! | [`relu`], [`tanh`] | `xs.relu()`, `xs.tanh()` |
//! | [`elu`], [`max_pool2d`], [`max_pool2d_with_stride`], [`upsample_nearest2d`] | candle's methods of these names |
//! | [`activate_mul`] | an activation and a multiplication: the gate of a SwiGLU or GeGLU |
//! | [`rope`], [`rope_thd`] | `candle_nn::rotary_emb`'s functions of these names |
//! | [`gather`] | `xs.gather(&indexes, dim)`, and the copies that it wants |
//!
//! With the rest of `candle_nn::ops`, which is candle's own, this is a drop-in for it.
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
pub(crate) mod attention;
mod gather;
pub(crate) mod kv_cache;
mod mask;
mod norm;
mod ours;
mod pool;
mod rope;
mod softmax;

pub use activation::{
    activate, activate_mul, elu, gelu, gelu_erf, gelu_tanh, relu, sigmoid, silu, swiglu, tanh,
};
pub use attention::{scaled_dot_product_attention, scaled_dot_product_attention_with};
pub use gather::gather;
pub use mask::Mask;
pub(crate) use norm::NormOp;
pub use norm::{add_layer_norm, add_rms_norm, layer_norm, rms_norm};
pub use pool::{max_pool2d, max_pool2d_with_stride, upsample_nearest2d};
pub use rope::{rope, rope_thd};
pub use softmax::{softmax, softmax_last_dim};

#[doc(hidden)]
pub use candle_nn::ops::{
    Dropout, Identity, dropout, hard_sigmoid, layer_norm_slow, leaky_relu, log_softmax, mish,
    pixel_shuffle, pixel_unshuffle, replication_pad2d, rms_norm_slow, sdpa, selu,
};

pub use crate::kernels::Precision;
