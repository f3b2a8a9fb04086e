//! The framework of a benchmark.

pub mod args;
pub mod candle_attention;
pub mod interleaved;
pub mod table;

pub use args::Args;
pub use interleaved::{interleaved, median};

use candle_core::Tensor;

/// The signal-to-noise ratio of a tensor against the expected one, in decibels.
pub fn sqnr_db(expected: &Tensor, got: &Tensor) -> candle_core::Result<f64> {
    let energy = |of: &Tensor| of.sqr()?.sum_all()?.to_scalar::<f32>();
    Ok(10. * f64::from(energy(expected)? / energy(&(expected - got)?)?).log10())
}
