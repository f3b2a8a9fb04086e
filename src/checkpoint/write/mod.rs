//! Writing: a model beside the checkpoint that it was loaded from, and any list of tensors.

mod collect;
mod entry;
mod floats;
mod placing;
mod rewrite;
mod save;
mod weight;
mod writer;

pub use collect::join;
pub use entry::{Module, entry, last_name};
pub use rewrite::{Contents, Output, rewrite};
pub use save::{Beside, Saved, save};
pub use weight::WrittenWeight;
pub use writer::{Planned, Writer};
