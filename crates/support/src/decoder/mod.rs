//! Text decoders of the Llama family.

mod apart;
mod chat;
mod config;
mod dumps;
mod folder;
mod gguf;
mod keys;
mod model;
mod source;
mod special;
mod tensors;

pub use apart::isolate_templates;
pub use chat::{Message, Template};
pub use config::{Config, Family};
pub use folder::{Folder, Texts};
pub use model::{Cache, Decoder, Part, Scores};
