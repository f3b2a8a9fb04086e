//! The kernels: slices in, slices out, and the only place with `unsafe`.
//!
//! [`mod@reference`] says in plain loops what they compute; every instruction set gives the same
//! bits. They are built in layers, and imports go down only:
//!
//! - `calls` take slices, cut the work and hold the thresholds for threads;
//! - `arch` has the instruction sets and is the only place that chooses between them;
//! - `loops` are written once, over registers they are given, for one thread;
//! - `packed`, the layout of weights; `threads`; `isa`, the instructions that this CPU has.
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod arch;
mod calls;
mod error;
mod isa;
mod loops;
mod packed;
pub mod qparams;
pub mod reference;
pub mod sizes;
mod threads;

pub use error::{Error, Result};
pub use isa::Isa;
pub use loops::activation::Activation;
pub use loops::attention::Precision;

pub use calls::activation::{activate, activate_mul};
pub use calls::attention::{attention, attention_to_bf16};
pub use calls::attention_int8::{KeyValues, attend};
pub use calls::convert::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
pub use calls::convolution::{Convolution, FloatWeight, convolve, convolve_f32};
pub use calls::float::{FloatProduct, linear_f32, linear_f32_into};
pub use calls::inputs::{InputFactor, InputProducts};
pub use calls::linear::{linear, linear_each, linear_into};
pub use calls::lookup::{dequantize_row, for_each_row, read_channel, widen_row};
pub use calls::norm::{layer_norm, layer_norm_and_sum, softmax};
pub use calls::pack::blocks::{block_factor, pack_block_codes, pack_blocks};
pub use calls::pack::{
    Factor, OutOfRange, PART, PanelValues, check_finite, encode_rows, extents, halve_rows,
    pack_codes, pack_floats, pack_halves, pack_int8,
};
pub use calls::pool::max_pool2d;
pub use calls::quantize::Codes;
pub use calls::recurrent::{Recurrence, Step, recur, update_state};
pub use loops::attention::{Attention, Heads, PAGE, Queries, Values};
pub use loops::attention_int8::MAX_TERMS;
pub use loops::encode::Coding;
pub use loops::gates::Gates;
pub use loops::norm::Norm;
pub use loops::product::Product;
pub use loops::rows::Extent;
pub use packed::{Element, Packed};
pub use qparams::blocks::{BlockScale, Blocks, factor as factor_of_scales};
pub use threads::{set_default as set_default_threads, threads};

#[cfg(test)]
mod tests;
