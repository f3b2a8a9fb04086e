//! OpenAI's API of generated texts: `/v1/chat/completions` and `/v1/completions`.

mod chat;
mod completions;
mod format;
mod request;
mod stream;
mod tools;

pub use chat::chat;
pub use completions::completions;
