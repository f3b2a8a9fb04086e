//! Text decoders of the Llama family on candle-dynquant: a Hugging Face folder or a GGUF file is
//! opened, checked and loaded, and writes text.
//!
//! | module | contents |
//! |---|---|
//! | [`Folder`] | the files: configuration, tokenizer, chat template, weights |
//! | [`Texts`] | texts and chats to tokens and back |
//! | [`Decoder`] | the model: tokens to scores, with a [`Cache`] |
//! | [`sampling`] | scores to a token |
//! | [`json`] | JSON files of untrusted sources |
//! | [`tokenizer`] | `tokenizer.json` |
//!
//! ```no_run
//! use candle_core::{Device, Tensor};
//! use candle_dynquant_decoder::Folder;
//! use candle_dynquant_decoder::sampling::highest;
//!
//! let folder = Folder::open("SmolLM2-135M-Instruct.Q4_1.gguf".as_ref(), None)?;
//! let decoder = folder.load()?;
//! let (mut cache, mut text) = (decoder.cache(), Vec::new());
//! let mut tokens = folder.texts.prompt("The capital of France is")?;
//! while text.len() < 32 {
//!     let scores = decoder.next(&Tensor::new(&tokens[..], &Device::Cpu)?.unsqueeze(0)?, &mut cache)?;
//!     let token = highest(&scores.squeeze(0)?.to_vec1()?) as u32;
//!     if folder.ends.contains(&token) {
//!         break;
//!     }
//!     text.push(token);
//!     tokens = vec![token];
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

mod apart;
mod chat;
mod config;
mod dumps;
mod family;
mod folder;
mod gguf;
pub mod json;
mod keys;
mod model;
pub mod sampling;
mod source;
mod special;
mod template;
mod tensors;
pub mod tokenizer;

pub use apart::isolate_templates;
pub use chat::Template;
pub use config::Config;
pub use family::Family;
pub use folder::{Folder, Texts, check_folder};
pub use model::{Cache, Decoder, Part, Scores};
pub use template::Message;
