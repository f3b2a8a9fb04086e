//! Writing: a model beside the checkpoint that it was loaded from, and any list of tensors.

mod collect;
mod entry;
mod errors;
mod floats;
mod packed;
mod placing;
mod rewrite;
mod save;
mod targets;
mod weight;
mod writer;

pub use collect::join;
pub use entry::{Module, entry};
pub use rewrite::{Contents, Output, rewrite};
pub use save::{Beside, Saved, save};
pub use targets::last_name;
pub use weight::WrittenWeight;
pub use writer::{Planned, Writer};
