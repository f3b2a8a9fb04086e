//! Generated texts: many at a time, each with the bits that it has alone.

mod answer;
mod calls;
mod engine;
mod grammar;
mod json;
mod marks;
mod model;
mod prefixes;
mod reasoning;
mod sequence;
mod stops;
mod xml;

pub use answer::{Answer, Counts, Logged, Piece};
pub use calls::{Call, Functions};
pub use engine::{SharedLimits, start};
pub use grammar::{Form, Grammar, Grammars};
pub use model::{Opened, PAGE};
pub use sequence::GenerationJob;
pub use stops::StopStrings;
