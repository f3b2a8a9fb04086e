//! Text decoders of the Llama family on candle-dynquant: a Hugging Face folder or a GGUF file is
//! opened, checked and loaded, and writes text.
//!
//! | module | contents |
//! |---|---|
//! | [`Folder`] | the files: configuration, tokenizer, chat template, weights |
//! | [`Generator`], [`Generation`] | texts, token by token |
//! | [`Chat`], [`Reply`] | turns of a chat |
//! | [`Texts`] | texts and chats to tokens and back |
//! | [`Decoder`] | the model: tokens to scores, with a [`Cache`] |
//! | `hub` | models by their names on the Hugging Face hub (feature `hub`) |
//! | [`sampling`] | scores to a token |
//! | [`json`] | JSON files of untrusted sources |
//! | [`tokenizer`] | `tokenizer.json` |
//!
//! # A text
//! A float model is quantized as it is loaded; a file in 4 or 8 bits runs as it is.
//!
//! ```no_run
//! use candle_dynquant::{QConfigSpec, quantize_dynamic};
//! use candle_dynquant_decoder::{Folder, GenerationConfig, Generator};
//!
//! let folder = Folder::open("SmolLM2-135M-Instruct".as_ref(), None)?; // or a GGUF file
//! let mut decoder = folder.load()?;
//! quantize_dynamic(&mut decoder, &QConfigSpec::int8())?;
//! let generator = Generator::new(&decoder, &folder)?;
//! let prompt = folder.texts.prompt("The capital of France is")?;
//! let mut generation = generator.generate(&prompt, &GenerationConfig::default())?;
//! for piece in &mut generation {
//!     print!("{}", piece?.text);
//! }
//! println!("\n{:?}", generation.finish());
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! Where the text repeats itself, the next tokens are guessed by those that followed before, and
//! checked in one step ([`GenerationConfig::drafts`]). The text and its log probabilities are those
//! of a token a step, bit for bit, with any way of drawing: a token's scores have the same bits
//! beside any others. A smaller model with the same tokens can guess instead
//! ([`Generator::with_draft`]). Without this property
//! ([`Decoder::has_independent_rows`]) nothing is guessed.
//!
//! # A chat
//! Each turn reads only what is new; dropping a reply ends it.
//!
//! ```no_run
//! use candle_dynquant_decoder::{Chat, Folder, GenerationConfig, Generator, Message};
//!
//! let folder = Folder::open("SmolLM2-135M-Instruct.Q4_1.gguf".as_ref(), None)?;
//! let decoder = folder.load()?;
//! let generator = Generator::new(&decoder, &folder)?;
//! let config = GenerationConfig {
//!     sampling: folder.sampling.unwrap_or_default(),
//!     ..GenerationConfig::default()
//! };
//! let mut chat = Chat::new(&generator);
//! chat.messages.push(Message::new("system", "Answer in one sentence."));
//! for question in ["What is gravity?", "Who found it?"] {
//!     for piece in &mut chat.say(question, &config)? {
//!         print!("{}", piece?.text);
//!     }
//!     println!();
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! # Many texts at a time
//! [`Decoder::step`] reads parts of several texts in one step, each with a [`Cache`], and returns
//! the scores after the tokens that are asked for. A clone of a cache shares its pages of 128 tokens,
//! so texts with a common beginning read and keep it once:
//!
//! ```no_run
//! use candle_core::{Device, Tensor};
//! use candle_dynquant_decoder::sampling::highest;
//! use candle_dynquant_decoder::{Folder, Part, Scores};
//!
//! let folder = Folder::open("SmolLM2-135M-Instruct.Q4_1.gguf".as_ref(), None)?;
//! let decoder = folder.load()?;
//! let tokens = |text| -> anyhow::Result<Tensor> {
//!     Ok(Tensor::new(folder.texts.encode(text)?, &Device::Cpu)?.unsqueeze(0)?)
//! };
//! let mut first = decoder.cache();
//! decoder.next(&tokens("Translate to French: ")?, &mut first)?;
//! let mut second = first.clone();
//! let texts = [tokens("cat")?, tokens("dog")?];
//! let parts = texts.iter().zip([&mut first, &mut second]);
//! let mut parts: Vec<_> = parts
//!     .map(|(tokens, cache)| Part { tokens, cache, scores: Scores::Last })
//!     .collect();
//! for scores in decoder.step(&mut parts)?.to_vec2()? {
//!     println!("{:?}", folder.texts.tokenizer.id_to_token(highest(&scores) as u32));
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

mod apart;
mod cache;
mod chat;
mod config;
mod conversation;
mod convolution;
mod drafts;
mod dumps;
mod family;
mod folder;
mod generation;
mod gguf;
#[cfg(feature = "hub")]
pub mod hub;
pub mod json;
mod keys;
mod mlp;
mod model;
mod names;
mod rope;
pub mod sampling;
mod source;
mod special;
mod template;
mod tensors;
pub mod tokenizer;

pub use apart::isolate_templates;
pub use cache::Cache;
pub use chat::{Template, ToolFormat};
pub use config::Config;
pub use conversation::{Chat, Reply};
pub use drafts::{DraftModel, Drafts, Draws};
pub use family::Family;
pub use folder::{Folder, Texts, check_folder};
pub use generation::{Decoding, FinishReason, Generation, GenerationConfig, Generator, Piece};
pub use model::{Decoder, Part, Scores};
pub use sampling::are_numbers;
pub use template::{Message, Variables};
