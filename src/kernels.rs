//! The instruction sets, and the definition of every result; the kernels are a separate crate.
//!
//! ```
//! use candle_dynquant::Isa;
//!
//! assert!(Isa::available().iter().any(|isa| isa.to_string() == "portable"));
//! ```

pub(crate) use candle_dynquant_kernels::*;
#[doc(inline)]
pub use candle_dynquant_kernels::{InputFactor, Isa};

use crate::error::{self, Error, Fault};
use crate::words::{converted, unknown_name, words};

/// An activation function, under PyTorch's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FusedActivation {
    /// `max(x, 0)`.
    Relu,
    /// `x P(X <= x)` of a standard normal X, `x (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// GELU's approximation `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
    GeluTanh,
    /// GELU's approximation `x sigmoid(1.702 x)`, CLIP's `quick_gelu`.
    QuickGelu,
    /// `x sigmoid(x)`.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `x`, below zero `e^x - 1`.
    Elu,
}

converted!(FusedActivation => candle_dynquant_kernels::Activation {
    Relu, Gelu, GeluTanh, QuickGelu, Silu, Tanh, Sigmoid, Elu
});

/// The precision of the factors that attention multiplies: queries by keys, weights by values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// f32.
    #[default]
    Float32,
    /// bfloat16, with sums in f32.
    BFloat16,
    /// Codes of 8 bits with a scale a row, with sums in i32.
    Int8,
}

words!(Precision, "precision", prefix "", {
    Float32 => "float32", BFloat16 => "bfloat16", Int8 => "int8",
});

impl Precision {
    /// Whether it has fewer bits than f32.
    pub(crate) fn is_reduced(self) -> bool {
        self != Self::Float32
    }
}

converted!(Precision => candle_dynquant_kernels::Precision { Float32, BFloat16, Int8 });

impl From<candle_dynquant_kernels::Error> for Error {
    fn from(error: candle_dynquant_kernels::Error) -> Self {
        use candle_dynquant_kernels::Error as Of;
        Self::from(match error {
            Of::NonFiniteWeight { index, value } => Fault::NonFiniteWeight { index, value },
            Of::AccumulatorOverflow { channel, got } => Fault::AccumulatorOverflow { channel, got },
            Of::UnknownIsa { got, expected } => {
                return unknown_name("instruction set in DYNQUANT_ISA", &got, expected);
            }
            Of::UnavailableIsa { got, expected } => Fault::UnavailableIsa { got, expected },
        })
    }
}

/// Sets the kernels to as many threads as candle has, where no variable sets the number.
fn as_many_threads_as_candle() {
    set_default_threads(candle_core::utils::get_num_threads);
}

/// The instruction set that weights are packed for: see [`Isa::active`].
pub(crate) fn active() -> error::Result<Isa> {
    as_many_threads_as_candle();
    Ok(Isa::active()?)
}

/// [`candle_dynquant_kernels::for_each_row`].
pub(crate) fn for_each_row<T: Send>(
    out: &mut [T],
    k: usize,
    write: impl Fn(usize, &mut [T]) + Sync,
) {
    as_many_threads_as_candle();
    candle_dynquant_kernels::for_each_row(out, k, write);
}

/// [`candle_dynquant_kernels::narrow_f16`].
pub(crate) fn narrow_f16(values: &[f32]) -> Vec<half::f16> {
    as_many_threads_as_candle();
    candle_dynquant_kernels::narrow_f16(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_threads_as_candle_has_and_cores_for() {
        active().expect("an instruction set");
        if std::env::var_os("CANDLE_NUM_THREADS").is_none() {
            let cores = std::thread::available_parallelism().map_or(usize::MAX, Into::into);
            let of_candle = candle_core::utils::get_num_threads().min(cores);
            assert_eq!(threads(), of_candle.min(64));
        }
    }
}
