//! Generated texts: many at a time, each with the bits that it has alone.

mod answer;
mod engine;
mod grammar;
mod model;
mod prefixes;
mod reasoning;
mod sequence;
mod stops;

pub use answer::{Answer, Counts, Logged, Piece, Prompted};
pub use engine::{SharedLimits, start};
pub use grammar::{Grammar, Grammars};
pub use model::{Opened, PAGE, is_decoder};
pub use sequence::GenerationJob;
pub use stops::StopStrings;
