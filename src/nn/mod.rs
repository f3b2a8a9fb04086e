//! candle_nn's layers and functions by their names, with weights that can be quantized in place.
//!
//! `use candle_dynquant::nn` stands for `use candle_nn as nn`: layers that can be quantized
//! ([`Linear`], [`Conv1d`], [`Conv2d`], [`Embedding`], [`LSTM`], [`GRU`]), those that hold them
//! ([`Sequential`], [`Func`]) and those that are fused ([`LayerNorm`], [`RmsNorm`], [`Activation`],
//! [`ops`]) are ours, the rest is candle's own. They are built and called as candle's, load the same keys and compute the same, so that changing the import is all
//! there is to change; but [`RNN`] is PyTorch's layer here, not candle's trait.
//!
//! `Linear`, `LayerNorm` and all functions of candle-transformers' `with_tracing` are here too;
//! its `Embedding::new(rows, size, vb)` is [`embedding()`], its `RmsNorm::new(size, eps, vb)`
//! [`rms_norm`].

mod activation;
mod attend;
mod convolution;
mod embedding;
mod experts;
mod function;
mod linear;
mod norm;
mod prefix;
pub(crate) mod private;
mod projection;
mod recurrent;
mod router;
mod sequential;

#[doc(hidden)]
pub use crate::ops;
pub use crate::ops::kv_cache::KvCache;
pub use activation::Activation;
pub use attend::Attention;
pub use convolution::{
    Conv, Conv1d, Conv2d, ConvTranspose1d, conv_transpose1d, conv_transpose1d_no_bias, conv1d,
    conv1d_no_bias, conv2d, conv2d_no_bias,
};
pub(crate) use convolution::{Geometry, of_taps};
pub use embedding::{Embedding, embedding};
pub use experts::{Expert, Experts, experts};
pub use function::{Func, FuncT, func, func_t};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use norm::{LayerNorm, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm};
pub use projection::Projection;
pub use recurrent::{
    GRU, GRUCell, LSTM, LSTMCell, Nonlinearity, RNN, RNNCell, Recurrent, RecurrentCell,
    RecurrentConfig, gru, lstm,
};
#[doc(no_inline)]
pub use recurrent::{GRUConfig, GRUState, LSTMConfig, LSTMState};
pub use router::{Router, router};
pub use sequential::{Sequential, seq};

// Not candle's modules of layers that are ours: `nn::layer_norm::LayerNorm` would be candle's.
#[doc(hidden)]
pub use candle_nn::{
    AdamW, BatchNorm, BatchNormConfig, Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig,
    ConvTranspose2d, ConvTranspose2dConfig, Dropout, GroupNorm, Init, LayerNormConfig, Module,
    ModuleT, Optimizer, PReLU, ParamsAdamW, SGD, VarBuilder, VarMap, attention, batch_norm,
    conv_transpose2d, conv_transpose2d_no_bias, cpu_flash_attention, encoding, group_norm, init,
    kv_cache, loss, moe, optim, prelu, rotary_emb, sampling, var_builder, var_map,
    varlen_attention,
};
