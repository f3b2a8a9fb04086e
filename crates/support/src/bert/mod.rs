//! The BERT of the examples and of `apps/encoder`: `config` and `folder` read and check files,
//! `model` is the network, `texts` makes batches, `measure` runs them; `rows` is for texts without
//! padding.

pub mod config;
pub mod folder;
pub mod measure;
pub mod model;
pub mod rows;
pub mod texts;

pub use config::Config;
pub use folder::Folder;
pub use model::{Batch, Bert};
