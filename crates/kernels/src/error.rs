//! The faults of weights, and of the environment variable.

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A fault of a weight, or of `DYNQUANT_ISA`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A weight to be quantized holds a NaN or an infinity.
    #[error("non-finite weight: expected finite numbers, got {value} at index {index:?}")]
    NonFiniteWeight {
        /// Index of the first such element, row first.
        index: Vec<usize>,
        /// The value of that element.
        value: f32,
    },
    /// A layer's dot products could leave the range of an i32.
    #[error(
        "output channel {channel} can overflow the i32 accumulator: expected 255 * sum|codes| < 2^31, got {got}"
    )]
    AccumulatorOverflow {
        /// The output channel.
        channel: usize,
        /// The bound that channel reaches.
        got: i64,
    },
    /// `DYNQUANT_ISA` is not the name of an instruction set.
    #[error("unknown instruction set in DYNQUANT_ISA: expected one of {expected:?}, got {got:?}")]
    UnknownIsa {
        /// The name found.
        got: String,
        /// The names known.
        expected: &'static [&'static str],
    },
    /// `DYNQUANT_ISA` names an instruction set that this CPU, or this build, lacks.
    #[error("DYNQUANT_ISA={got} is not available on this CPU: expected one of {expected}")]
    UnavailableIsa {
        /// The name found.
        got: String,
        /// The names available on this CPU.
        expected: String,
    },
}
