//! Generated texts: many at a time, each with the bits that it has alone.

mod answer;
mod engine;
mod model;
mod sequence;
mod stops;

pub use answer::{Answer, Logged, Piece, Prompted};
pub use engine::{SharedLimits, start};
pub use model::{Opened, PAGE, is_decoder};
pub use sequence::{FinishReason, GenerationJob};
pub use stops::StopStrings;
