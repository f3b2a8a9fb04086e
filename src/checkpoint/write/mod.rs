//! Writing: a model beside the checkpoint that it was loaded from, and any list of tensors.

mod collect;
pub mod entry;
mod errors;
mod floats;
mod placing;
pub mod rewrite;
mod save;
pub mod targets;
pub mod weight;
pub mod writer;

pub use save::{Beside, Saved, save};
