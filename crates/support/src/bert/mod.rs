//! The BERT of the examples: `config` and `folder` read and check files, `model` is the network,
//! `texts` makes batches, `measure` runs them.

pub mod config;
pub mod folder;
pub mod measure;
pub mod model;
pub mod texts;

pub use config::Config;
pub use folder::Folder;
pub use model::{Batch, Bert};
