//! Texts of a decoder: many are generated at a time, each with the bits that it has alone.

mod answer;
mod engine;
mod model;
mod sequence;
mod stops;

pub use answer::{Answer, Logged, Piece, Prompted};
pub use engine::{Room, start};
pub use model::{Opened, PAGE, is_decoder};
pub use sequence::{Finish, Job};
pub use stops::StopStrings;
