//! The crate's error type: a message that names the fault, the value expected and the value found,
//! its kind, and where it is.

use std::fmt;
use std::path::{Path, PathBuf};

use candle_core::DType;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, and where: its message names what was expected and what was found.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{ErrorKind, QConfigSpec, nn, quantize_dynamic};
///
/// let weight = Tensor::new(&[[1f32, f32::NAN]], &Device::Cpu)?;
/// let mut layers = vec![nn::Linear::new(weight, None)];
/// let error = quantize_dynamic(&mut layers, &QConfigSpec::int8().min_params(0)).unwrap_err();
/// assert_eq!((error.kind(), error.path()), (ErrorKind::NonFinite, Some("0")));
/// # Ok::<(), candle_core::Error>(())
/// ```
pub struct Error(Box<PlacedFault>);

struct PlacedFault {
    fault: Fault,
    /// The places, the innermost first.
    places: Vec<ErrorPlace>,
}

#[derive(Debug)]
enum ErrorPlace {
    /// The path of a layer in the model, or the checkpoint name it was loaded under.
    Path(String),
    File(PathBuf),
}

/// The kind of a fault: what a caller can do about it. The message says which fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A tensor has the wrong shape.
    ShapeMismatch,
    /// A dtype, a device, an instruction set, the format of a checkpoint, or a
    /// [`QConfig`](crate::QConfig) for this layer is not supported; or a layer cannot be saved.
    Unsupported,
    /// A weight or a bias to be quantized, or a batch norm to be folded in, holds a NaN or an
    /// infinity.
    NonFinite,
    /// A layer's dot products could leave the range of an i32.
    AccumulatorOverflow,
    /// A [`QConfigSpec`](crate::QConfigSpec), or one of its rules, matches no layer of the model.
    Unmatched,
    /// A type marked `#[quantizable(strict)]`, or a part of one, holds float tensors that no layer
    /// holds.
    FloatTensors,
    /// Two layers of a model have the same path, its `visit` and `visit_mut` disagree, or a cell or
    /// a lock in it is in use.
    InvalidModel,
    /// The function given to [`quantize_dynamic_with`](crate::quantize_dynamic_with) asked to stop.
    Cancelled,
    /// A configuration in YAML or JSON, a regular expression or a name in a configuration is
    /// invalid.
    InvalidConfig,
    /// A file or a folder cannot be read or written.
    Io,
    /// A file of a checkpoint is malformed, or a tensor is missing or is not what its name or
    /// another tensor implies.
    InvalidCheckpoint,
    /// An invalid argument.
    InvalidArgument,
    /// An error of candle.
    Candle,
}

/// A fault and its message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("shape mismatch in {op}: expected {expected}, got {got:?}")]
    ShapeMismatch { op: &'static str, expected: String, got: Vec<usize> },
    #[error("unsupported dtype in {op}: expected {expected}, got {got:?}")]
    UnsupportedDType { op: &'static str, expected: &'static str, got: DType },
    #[error(
        "unsupported device in {op}: expected cpu, got {got}; dynamic quantization runs on the CPU only, move the tensor with `to_device(&Device::Cpu)`"
    )]
    UnsupportedDevice { op: &'static str, got: String },
    #[error("non-finite weight: expected finite numbers, got {value} at index {index:?}")]
    NonFiniteWeight { index: Vec<usize>, value: f32 },
    #[error("non-finite {what}: expected finite numbers, got {value} at index {index}")]
    NonFinite { what: &'static str, index: usize, value: f32 },
    #[error(
        "output channel {channel} can overflow the i32 accumulator: expected 255 * sum|codes| < 2^31, got {got}; keep this layer float"
    )]
    AccumulatorOverflow { channel: usize, got: i64 },
    #[error("rule {rule} matches no layer: {hint}")]
    UnmatchedRule { rule: String, hint: String },
    #[error("nothing to quantize: {hint}")]
    NothingMatched { hint: String },
    #[error(
        "float tensors in no layer, in a type marked #[quantizable(strict)]: expected none, got {got}"
    )]
    FloatTensors { got: String },
    #[error("malformed regex {pattern:?}: {message}")]
    InvalidRegex { pattern: String, message: String },
    #[error(
        "two layers have the path {path:?}: expected unique paths, rename one with #[quantizable(rename = \"..\")]"
    )]
    DuplicatePath { path: String },
    #[error("{what} is already borrowed or locked; drop the guard first")]
    InUse { what: &'static str },
    #[error(
        "quantization cancelled after {layers} of {total_layers} layers; the model is as it was"
    )]
    Cancelled { layers: usize, total_layers: usize },
    #[error("inconsistent walk: visit and visit_mut must reach the same layers, {message}")]
    InconsistentWalk { message: String },
    #[error("unsupported qconfig: expected {expected}, got {got}")]
    UnsupportedQConfig { expected: String, got: String },
    #[error(
        "unknown {what}: expected one of {expected}, got {got:?}{}",
        did_you_mean(nearest.as_deref())
    )]
    UnknownName { what: &'static str, expected: String, got: String, nearest: Option<String> },
    #[error("{}{message}", place(*line, *column, key))]
    InvalidConfig { line: usize, column: usize, key: String, message: String },
    #[error("cannot {action}: {error}")]
    Io { action: &'static str, error: std::io::Error },
    #[error("malformed {what}: expected {expected}, got {got}")]
    MalformedCheckpoint { what: &'static str, expected: String, got: String },
    #[error("tensor {tensor:?}: expected {expected}, got {got}")]
    InvalidTensor { tensor: String, expected: String, got: String },
    #[error("unsupported {what}: expected {expected}, got {got}")]
    UnsupportedCheckpoint { what: &'static str, expected: String, got: String },
    #[error("cannot save the layer: expected {expected}, got {got}")]
    Unsavable { expected: String, got: String },
    #[error("DYNQUANT_ISA={got} is not available on this CPU: expected one of {expected}")]
    UnavailableIsa { got: String, expected: String },
    #[error("invalid {what}: expected {expected}, got {got}")]
    InvalidArgument { what: &'static str, expected: String, got: String },
    #[error("{message}")]
    Custom { kind: ErrorKind, message: String },
    #[error(transparent)]
    Candle(candle_core::Error),
}

impl Fault {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Custom { kind, .. } => *kind,
            Self::ShapeMismatch { .. } => ErrorKind::ShapeMismatch,
            Self::UnsupportedDType { .. }
            | Self::UnsupportedDevice { .. }
            | Self::UnsupportedQConfig { .. }
            | Self::UnsupportedCheckpoint { .. }
            | Self::Unsavable { .. }
            | Self::UnavailableIsa { .. } => ErrorKind::Unsupported,
            Self::NonFiniteWeight { .. } | Self::NonFinite { .. } => ErrorKind::NonFinite,
            Self::AccumulatorOverflow { .. } => ErrorKind::AccumulatorOverflow,
            Self::UnmatchedRule { .. } | Self::NothingMatched { .. } => ErrorKind::Unmatched,
            Self::FloatTensors { .. } => ErrorKind::FloatTensors,
            Self::InvalidRegex { .. } | Self::UnknownName { .. } | Self::InvalidConfig { .. } => {
                ErrorKind::InvalidConfig
            }
            Self::DuplicatePath { .. } | Self::InUse { .. } | Self::InconsistentWalk { .. } => {
                ErrorKind::InvalidModel
            }
            Self::Cancelled { .. } => ErrorKind::Cancelled,
            Self::Io { .. } => ErrorKind::Io,
            Self::MalformedCheckpoint { .. } | Self::InvalidTensor { .. } => {
                ErrorKind::InvalidCheckpoint
            }
            Self::InvalidArgument { .. } => ErrorKind::InvalidArgument,
            Self::Candle(_) => ErrorKind::Candle,
        }
    }
}

impl Error {
    /// An error of a layer, an observer or an evaluation of your own.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::from(Fault::Custom { kind, message })
    }

    pub(crate) fn shape(op: &'static str, expected: impl fmt::Display, got: &[usize]) -> Self {
        let (expected, got) = (expected.to_string(), got.to_vec());
        Self::from(Fault::ShapeMismatch { op, expected, got })
    }

    /// Checks the values of a tensor `what`, which are one for each channel.
    pub(crate) fn check_finite(what: &'static str, values: &[f32]) -> Result<()> {
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(index) => Err(Self::from(Fault::NonFinite { what, index, value: values[index] })),
        }
    }

    pub(crate) fn dtype(op: &'static str, expected: &'static str, got: DType) -> Self {
        Self::from(Fault::UnsupportedDType { op, expected, got })
    }

    /// The error of an action, for `map_err`.
    pub(crate) fn io(action: &'static str) -> impl Fn(std::io::Error) -> Self + Copy {
        move |error| Self::from(Fault::Io { action, error })
    }

    /// The kind of a fault.
    pub fn kind(&self) -> ErrorKind {
        self.0.fault.kind()
    }

    /// The path of the layer in the model, or the checkpoint name that it was loaded under.
    pub fn path(&self) -> Option<&str> {
        self.0.places.iter().rev().find_map(|place| match place {
            ErrorPlace::Path(path) => Some(&**path),
            ErrorPlace::File(_) => None,
        })
    }

    /// The file that cannot be read, or whose content is at fault.
    pub fn file(&self) -> Option<&Path> {
        self.0.places.iter().rev().find_map(|place| match place {
            ErrorPlace::Path(_) => None,
            ErrorPlace::File(file) => Some(&**file),
        })
    }

    /// Adds the path of the layer; a path that the error already has is relative to that layer.
    #[doc(hidden)]
    #[must_use]
    pub fn at(mut self, path: &str) -> Self {
        match self.0.places.last_mut() {
            _ if path.is_empty() => {}
            Some(ErrorPlace::Path(within)) => *within = format!("{path}.{within}"),
            _ => self.0.places.push(ErrorPlace::Path(path.to_owned())),
        }
        self
    }

    /// Adds the file; a file that the error already has stays.
    #[must_use]
    pub(crate) fn in_file(mut self, path: &Path) -> Self {
        if !self.is_in_file() {
            self.0.places.push(ErrorPlace::File(path.to_owned()));
        }
        self
    }

    /// Whether a file is the outermost place.
    pub(crate) fn is_in_file(&self) -> bool {
        matches!(self.0.places.last(), Some(ErrorPlace::File(_)))
    }

    pub(crate) fn fault(&self) -> &Fault {
        &self.0.fault
    }

    pub(crate) fn fault_mut(&mut self) -> &mut Fault {
        &mut self.0.fault
    }
}

/// Errors of what was expected and what was found.
macro_rules! constructors {
    ($($name:ident($($what:ident)?) -> $fault:ident;)+) => {
        impl Error {
            $(pub(crate) fn $name(
                $($what: &'static str,)?
                expected: impl fmt::Display,
                got: impl fmt::Display,
            ) -> Self {
                let (expected, got) = (expected.to_string(), got.to_string());
                Self::from(Fault::$fault { $($what,)? expected, got })
            })+
        }
    };
}

constructors! {
    argument(what) -> InvalidArgument;
    malformed(what) -> MalformedCheckpoint;
    qconfig() -> UnsupportedQConfig;
    unsavable() -> Unsavable;
    unsupported(what) -> UnsupportedCheckpoint;
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let places = Vec::new();
        Self(Box::new(PlacedFault { fault, places }))
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::from(Fault::Candle(error))
    }
}

/// The places, the outermost first, then the message of the fault.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in self.0.places.iter().rev() {
            match place {
                ErrorPlace::Path(path) => write!(f, "{path}: ")?,
                ErrorPlace::File(file) => write!(f, "{}: ", file.display())?,
            }
        }
        self.0.fault.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlacedFault { fault, places } = &*self.0;
        let debug = &mut f.debug_struct("Error");
        debug.field("fault", fault).field("places", places).finish()
    }
}

/// The source is candle's or the operating system's; the message has its text, too.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.fault {
            Fault::Candle(error) => error.source(),
            Fault::Io { error, .. } => error.source(),
            _ => None,
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
        if error.0.places.is_empty()
            && let Fault::Candle(error) = error.0.fault
        {
            return error;
        }
        Self::wrap(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guide quotes them; no machine has all of these faults.
    #[test]
    fn faults_of_the_machine_are_told_as_the_guide_says() {
        let unavailable =
            Fault::UnavailableIsa { got: "amx_int8".into(), expected: "portable, avx2".into() };
        assert_eq!(
            Error::from(unavailable).to_string(),
            "DYNQUANT_ISA=amx_int8 is not available on this CPU: expected one of portable, avx2"
        );
        let device = Fault::UnsupportedDevice { op: "forward", got: "Cuda { gpu_id: 0 }".into() };
        assert_eq!(
            Error::from(device).at("head").to_string(),
            "head: unsupported device in forward: expected cpu, got Cuda { gpu_id: 0 }; dynamic \
             quantization runs on the CPU only, move the tensor with `to_device(&Device::Cpu)`"
        );
    }

    #[test]
    fn places_are_told_from_the_outermost() {
        let error = || Error::new(ErrorKind::InvalidArgument, "no");
        let file = Path::new("a.safetensors");
        let cases = [
            (error().at(""), "no", None),
            (error().at("w").at("layer"), "layer.w: no", Some("layer.w")),
            (error().at("w").in_file(file), "a.safetensors: w: no", Some("w")),
            (error().in_file(file).in_file(Path::new("b")), "a.safetensors: no", None),
            (error().in_file(file).at("m"), "m: a.safetensors: no", Some("m")),
        ];
        for (error, expected, path) in cases {
            assert_eq!((error.to_string().as_str(), error.path()), (expected, path));
            assert_eq!(error.file().is_some(), expected.contains("safetensors"));
        }
    }
}
