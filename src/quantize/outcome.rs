//! The outcome for a layer.

use std::fmt;

use serde::Serialize;

use crate::error::{Error, Fault};
use crate::module::ConvolutionCost;
use crate::qconfig::QConfig;
use crate::qconfig::file::serialize_named;

/// Swapped, or left and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The layer's weights are quantized now.
    Swapped {
        /// The configuration they were quantized with.
        #[serde(serialize_with = "serialize_named")]
        to: QConfig,
    },
    /// The layer shares the quantized weight of another layer that held the same matrix.
    Shared {
        /// The path of that layer, which counts the weight.
        with: String,
    },
    /// The layer is unchanged.
    Left {
        /// The reason.
        reason: LeftReason,
    },
}

/// A layer, or a norm, that [`equalize`](crate::equalize()) left as it was, or that
/// [`gptq`](crate::gptq()) rounded without its inputs, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Skipped {
    /// The path of the layer.
    pub path: String,
    /// Why, in words.
    pub reason: String,
}

impl Skipped {
    pub(crate) fn new(path: String, reason: impl Into<String>) -> Self {
        Self { path, reason: reason.into() }
    }
}

/// Why a layer was left as it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeftReason {
    /// A rule keeps it float.
    KeptFloat {
        /// The rule.
        rule: String,
    },
    /// No rule matches it.
    NoRule,
    /// The layer is an embedding or attention, and no rule matches it: presets leave them unless
    /// [`embeddings`](crate::QConfigSpec::embeddings) or
    /// [`attention`](crate::QConfigSpec::attention) adds them.
    OffByDefault {
        /// The method that adds them.
        by: &'static str,
    },
    /// The layer is attention, and the rule for the part of the model around it has no meaning for
    /// factors, which are not weights.
    NoPrecision {
        /// The configuration, in words.
        qconfig: String,
    },
    /// The matrix of a checkpoint is not multiplied as a Linear's is, or not at all.
    Kind {
        /// The kind of matrix, in words.
        why: &'static str,
    },
    /// The layer was quantized before.
    AlreadyQuantized,
    /// The layer is float in the model that is reported on, by
    /// [`checkpoint::loaded`](crate::checkpoint::loaded).
    Float,
    /// The layer is smaller than [`min_params`](crate::QConfigSpec::min_params).
    TooSmall {
        /// Elements of its weights.
        parameters: usize,
        /// The minimum for quantization.
        min_params: usize,
    },
    /// The layer is a convolution that is not faster with codes, or has no such form.
    Convolution {
        /// The fault of its shape, in words.
        why: String,
    },
    /// The products of the layer could leave the range of an i32: see
    /// [`ErrorKind::AccumulatorOverflow`](crate::ErrorKind::AccumulatorOverflow).
    AccumulatorOverflow {
        /// The first such output channel.
        channel: usize,
        /// The bound that it reaches.
        got: i64,
    },
}

impl LeftReason {
    /// The reason of a layer's error, if the error tells a limit of int8 and not a mistake.
    pub(super) fn of_limit(error: &Error) -> Option<Self> {
        match *error.fault() {
            Fault::AccumulatorOverflow { channel, got } => {
                Some(Self::AccumulatorOverflow { channel, got })
            }
            _ => None,
        }
    }

    /// The reason of a convolution that is given another configuration than int8.
    pub(super) fn of_format(qconfig: &QConfig) -> Self {
        Self::Convolution { why: format!("int8 or float, not {qconfig}") }
    }

    /// The reason of a convolution that would not gain.
    pub(super) fn of_convolution(cost: ConvolutionCost) -> Option<Self> {
        let ConvolutionCost { channels, products } = cost;
        let why = if channels < MIN_CHANNELS {
            format!("{channels} input channels of a group, fewer than {MIN_CHANNELS}")
        } else if products < MIN_PRODUCTS {
            format!("{products} products a value, fewer than {MIN_PRODUCTS}")
        } else {
            return None;
        };
        Some(Self::Convolution { why })
    }
}

/// Input channels and products from which a convolution of codes is faster than a float one: by
/// `cargo bench --bench convolution`, with AVX2, where codes gain least.
const MIN_CHANNELS: usize = 32;
const MIN_PRODUCTS: usize = 64;

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Swapped { to } => to.fmt(f),
            Self::Shared { with } => write!(f, "shares the weight of {with}"),
            Self::Left { reason } => reason.fmt(f),
        }
    }
}

impl fmt::Display for LeftReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeptFloat { rule } => write!(f, "left: kept float by {rule}"),
            Self::NoRule => f.write_str("left: no rule matches"),
            Self::OffByDefault { by } => write!(f, "left: off by default, see `.{by}()`"),
            Self::NoPrecision { qconfig } => {
                write!(f, "left: attention is float32, bfloat16 or int8 per row, not {qconfig}")
            }
            Self::Kind { why } => write!(f, "left: {why}"),
            Self::AlreadyQuantized => f.write_str("left: already quantized"),
            Self::Float => f.write_str("float"),
            Self::TooSmall { parameters, min_params } => write!(
                f,
                "left: {parameters} weight elements, fewer than min_params = {min_params}"
            ),
            Self::Convolution { why } => write!(f, "left: a convolution of {why}"),
            Self::AccumulatorOverflow { channel, .. } => {
                write!(f, "left: output channel {channel} can overflow the i32 accumulator")
            }
        }
    }
}
