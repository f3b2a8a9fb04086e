//! A decoder of text: the family of Llama.

mod chat;
mod config;
mod folder;
mod gguf;
mod model;

pub use chat::{Message, Template};
pub use config::{Config, Family};
pub use folder::{Folder, Texts};
pub use model::{Cache, Decoder, Part, Scores};
