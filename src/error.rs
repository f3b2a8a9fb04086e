//! The crate's error type: each variant names the fault, the value expected and the value found.

use std::path::{Path, PathBuf};

use candle_core::DType;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong; [`Error::At`] adds the path of the layer it went wrong in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error inside the layer at `path`.
    #[error("{path}: {error}")]
    At {
        /// Path of the layer in the model, or the checkpoint name it was loaded under.
        path: String,
        /// The error.
        error: Box<Error>,
    },
    /// A tensor has the wrong shape.
    #[error("shape mismatch in {op}: expected {expected}, got {got:?}")]
    ShapeMismatch {
        /// The operation.
        op: &'static str,
        /// The shape expected.
        expected: String,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A tensor has a dtype that the operation does not support.
    #[error("unsupported dtype in {op}: expected {expected}, got {got:?}")]
    UnsupportedDType {
        /// The operation that was asked for.
        op: &'static str,
        /// The dtypes supported.
        expected: &'static str,
        /// The dtype found.
        got: DType,
    },
    /// A tensor is on another device than the CPU.
    #[error(
        "unsupported device in {op}: expected cpu, got {got}; dynamic quantization runs on the CPU only, move the tensor with `to_device(&Device::Cpu)`"
    )]
    UnsupportedDevice {
        /// The operation that was asked for.
        op: &'static str,
        /// The device found.
        got: String,
    },
    /// A weight to be quantized holds a NaN or an infinity.
    #[error("non-finite weight: expected finite numbers, got {value} at index {index:?}")]
    NonFiniteWeight {
        /// Index of the first such element, row first.
        index: Vec<usize>,
        /// Its value.
        value: f32,
    },
    /// The bias of a layer to be quantized holds a NaN or an infinity.
    #[error("non-finite bias: expected finite numbers, got {value} at index {index}")]
    NonFiniteBias {
        /// Index of the first such element.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// A layer's dot products could leave the range of an i32.
    #[error(
        "output channel {channel} can overflow the i32 accumulator: expected 255 * sum|codes| < 2^31, got {got}; keep this layer float"
    )]
    AccumulatorOverflow {
        /// The output channel.
        channel: usize,
        /// The bound that channel reaches.
        got: i64,
    },
    /// A rule of a [`QConfigSpec`](crate::QConfigSpec) matches no layer of the model.
    #[error("rule {rule} matches no layer: {hint}")]
    UnmatchedRule {
        /// The rule as written.
        rule: String,
        /// The nearest name, or the kinds, in the model.
        hint: String,
    },
    /// No layer of the model is matched by the spec at all.
    #[error("nothing to quantize: {hint}")]
    NothingMatched {
        /// The layers or fields found instead.
        hint: String,
    },
    /// A type marked `#[quantizable(strict)]`, or a part of one, holds float tensors that no layer
    /// holds.
    #[error(
        "float tensors in no layer, in a type marked #[quantizable(strict)]: expected none, got {got}"
    )]
    FloatTensors {
        /// The tensors, and what to do about them.
        got: String,
    },
    /// A regular expression does not compile.
    #[error("malformed regex {pattern:?}: {message}")]
    InvalidRegex {
        /// The pattern as written.
        pattern: String,
        /// The regex crate's message.
        message: String,
    },
    /// Two layers of a model have the same path.
    #[error(
        "two layers have the path {path:?}: expected unique paths, rename one with #[quantizable(rename = \"..\")]"
    )]
    DuplicatePath {
        /// The path.
        path: String,
    },
    /// A cell or a lock in the model is borrowed or locked while a walk has to look into it.
    #[error("{what} in use: expected one that can be borrowed; drop its guards before")]
    InUse {
        /// The type of cell or lock.
        what: &'static str,
    },
    /// The function given to [`quantize_dynamic_with`](crate::quantize_dynamic_with) asked to stop.
    #[error(
        "quantization cancelled after {layers} of {total_layers} layers; the model is as it was"
    )]
    Cancelled {
        /// Layers that had been quantized.
        layers: usize,
        /// Layers that were to be quantized.
        total_layers: usize,
    },
    /// `visit` and `visit_mut` of a [`Quantizable`](crate::Quantizable) disagree about the tree.
    #[error("inconsistent walk: visit and visit_mut must reach the same layers, {message}")]
    InconsistentWalk {
        /// Where they differ.
        message: String,
    },
    /// A layer does not support a [`QConfig`](crate::QConfig).
    #[error("unsupported qconfig: expected {expected}, got {got}")]
    UnsupportedQConfig {
        /// The configurations supported.
        expected: String,
        /// The configuration requested.
        got: String,
    },
    /// An unknown word.
    #[error(
        "unknown {what}: expected one of {expected}, got {got:?}{}",
        did_you_mean(nearest.as_deref())
    )]
    UnknownName {
        /// The kind of word.
        what: &'static str,
        /// The known words.
        expected: String,
        /// The word found.
        got: String,
        /// The most similar known word.
        nearest: Option<String>,
    },
    /// A configuration in YAML or JSON is invalid.
    #[error("{}{message}", place(*line, *column, key))]
    InvalidConfig {
        /// Line, from 1; 0 where the source has no lines.
        line: usize,
        /// Column, from 1; 0 where the source has no lines.
        column: usize,
        /// The key at fault, from the outermost: `rules[2].qconfig.weight.dtype`.
        key: String,
        /// The value expected and the value found.
        message: String,
    },
    /// A file cannot be read, or its content is invalid.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        error: Box<Error>,
    },
    /// A file or a folder cannot be read or written.
    #[error("cannot {action}: {error}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The header of a safetensors file, an index of shards or a `config.json` is malformed.
    #[error("malformed {what}: expected {expected}, got {got}")]
    MalformedCheckpoint {
        /// The part of the checkpoint.
        what: &'static str,
        /// The value that is expected.
        expected: String,
        /// The value that was found.
        got: String,
    },
    /// A tensor of a checkpoint is missing, or is not what its name or another tensor implies.
    #[error("tensor {tensor:?}: expected {expected}, got {got}")]
    InvalidTensor {
        /// Name of the tensor.
        tensor: String,
        /// The value that is expected.
        expected: String,
        /// The value that was found.
        got: String,
    },
    /// A checkpoint is written in a version or a format that this crate does not read.
    #[error("unsupported {what}: expected {expected}, got {got}")]
    UnsupportedCheckpoint {
        /// The part of the checkpoint.
        what: &'static str,
        /// The versions or formats supported.
        expected: String,
        /// The version or format found.
        got: String,
    },
    /// A layer cannot be saved.
    #[error("cannot save the layer: expected {expected}, got {got}")]
    Unsavable {
        /// The value that is expected.
        expected: String,
        /// The value that was found.
        got: String,
    },
    /// `DYNQUANT_ISA` names an instruction set that this CPU, or this build, lacks.
    #[error("DYNQUANT_ISA={got} is not available on this CPU: expected one of {expected}")]
    UnavailableIsa {
        /// The name found.
        got: String,
        /// The names available on this CPU.
        expected: String,
    },
    /// An invalid argument.
    #[error("invalid {what}: expected {expected}, got {got}")]
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// The values accepted.
        expected: String,
        /// The value found.
        got: String,
    },
    /// An error of candle's own.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Adds the path of the layer; a path that the error already has is relative to that layer.
    #[must_use]
    pub fn at(self, path: &str) -> Self {
        let (path, error) = match self {
            error if path.is_empty() => return error,
            Self::At {
                path: within,
                error,
            } => (format!("{path}.{within}"), error),
            error => (path.to_owned(), Box::new(error)),
        };
        Self::At { path, error }
    }

    /// Adds the file; one that the error already has stays.
    #[must_use]
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            error @ Self::InFile { .. } => error,
            error => Self::InFile {
                path: path.to_owned(),
                error: Box::new(error),
            },
        }
    }
}

pub(crate) fn did_you_mean(nearest: Option<&str>) -> String {
    match nearest {
        Some(word) => format!("; did you mean `{word}`?"),
        None => String::new(),
    }
}

fn place(line: usize, column: usize, key: &str) -> String {
    match (line, key) {
        (0, "") => String::new(),
        (0, key) => format!("{key}: "),
        (line, "") => format!("line {line}, column {column}: "),
        (line, key) => format!("line {line}, column {column}, {key}: "),
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            error => Self::wrap(error),
        }
    }
}
