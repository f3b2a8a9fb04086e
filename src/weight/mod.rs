//! Weights that became codes or halves: packed to be multiplied, or tables; and between layers and
//! checkpoints.
//!
//! A layer reads its weights from an ordinary `VarBuilder`, through which only names and dtypes
//! pass. A `VarBuilder` of a checkpoint of quantized weights answers for a weight `weight`
//!
//! | name | dtype | tensor |
//! |---|---|---|
//! | `weight` | u8 | the bits of the codes, `[out_features, in_features]`, less the dtype's offset, or 8 |
//! | `weight` | f16, bf16 | the elements of a float16 or bfloat16 weight |
//! | `weight` | any other float | the dequantized weight, for layers that are not this crate's |
//! | `weight_dynquant` | u8 | a number without a meaning, whose memory leads to the weight: see [`origin`] |
//!
//! ```text
//! a layer's loader, by `weight_dynquant`     a model's code, by `weight` as a float
//!        └───────────────────────┐             ┌───────────────────────┘
//!          Backend: hands a tensor out, and records its memory: origin::record
//!        ┌───────────────────────┘             └───────────────────────┐
//!   find: the tensor itself, as a            origin::find: any tensor in that memory,
//!   QuantizedEntry                           compared with the file
//!        └─────────> Origin: the tensor's name and the part of it <────┘
//!                    Parts: the codes, halves or groups of that part
//!        ┌───────────────────────┴─────────────────────────────────────┐
//!   Parts::qweight: QWeight, multiplied      Parts::qtable: QTable, looked up
//!   in a Projection or as a tied table       in an Embedding
//! ```
//!
//! For attention of fewer bits than float32 it answers `attention_dynquant`, u8, with the bytes of
//! the word for its precision.
//!
//! A norm that multiplies its residual is stored as `equalized.weight`, `equalized.bias` and
//! `equalized.residual_weight`: a loader that knows no such factors finds no `weight`, and fails.

mod coded;
mod codes;
mod format;
mod groups;
pub(crate) mod origin;
mod qtable;
mod qweight;
mod read;
mod stored;

pub use coded::WeightCodes;
pub(crate) use coded::{Coded, check_sums};
pub(crate) use format::{
    ATTENTION, Codes, EQUALIZED, FORMAT, Format, G_IDX, MINIMUM, Numbers, PACKED, RESIDUAL, SCALE,
    SHAPE, UNSIGNED_ZERO_POINT, Written, ZERO_POINT,
};
pub(crate) use groups::Grouped;
pub(crate) use origin::Origin;
pub use qtable::QTable;
pub use qweight::QWeight;
pub(crate) use read::{QuantizedEntry, equalized, find};
pub use stored::StoredWeight;
pub(crate) use stored::{Quantized, StoredValue, Zeros};
