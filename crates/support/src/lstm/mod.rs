//! The character model of `examples/lstm`: `config` and `folder` read and check files, `model` is
//! the network, `text` turns characters into numbers.

pub mod config;
pub mod folder;
pub mod model;
pub mod text;

pub use config::Config;
pub use folder::Folder;
pub use model::{CharModel, State};
