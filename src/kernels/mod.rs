//! The kernels: slices in, slices out, and the only place with `unsafe`.
//!
//! [`mod@reference`] says in plain loops what they compute; every instruction set gives the same
//! bits. They are built in floors, and imports go down only:
//!
//! - `calls` take slices, cut the work and hold the thresholds for threads;
//! - `arch` has the instruction sets and is the only place that chooses between them;
//! - `loops` are written once, over registers they are given, for one thread;
//! - `packed`, the layout of weights; `threads`; `isa`, the instructions that this CPU has.

mod arch;
mod calls;
mod isa;
mod loops;
mod packed;
pub mod reference;
mod threads;

pub use isa::Isa;
pub use loops::activation::Activation;
pub use loops::attention::Precision;

pub(crate) use calls::activation::activate;
pub(crate) use calls::attention::attention;
pub(crate) use calls::convert::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
pub(crate) use calls::gemm::linear_f32;
pub(crate) use calls::linear::{linear, linear_each, linear_into};
pub(crate) use calls::lookup::{dequantize_row, for_each_row, read_channel, widen_row};
pub(crate) use calls::norm::{layer_norm, softmax};
pub(crate) use calls::pack::{
    Channels, Factor, OutOfRange, PART, check_finite, encode_rows, extents, halve_rows, pack_codes,
    pack_floats, pack_halves, pack_int8,
};
pub(crate) use calls::quantize::Codes;
pub(crate) use calls::recurrent::{Recurrence, Step, recur, update_state};
pub(crate) use loops::attention::{Attention, Heads};
pub(crate) use loops::encode::Coding;
pub(crate) use loops::gates::Gates;
pub(crate) use loops::norm::Norm;
pub(crate) use loops::product::Product;
pub(crate) use loops::rows::Extent;
pub(crate) use packed::{Element, Packed};

#[cfg(test)]
mod tests;
