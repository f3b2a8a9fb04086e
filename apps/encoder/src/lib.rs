//! A BERT with its tokenizer, quantized by candle-dynquant: texts in, embeddings and logits out.
//!
//! ```
//! use dynquant_encoder::{Encoder, Head, Input, Preset, Task};
//!
//! let encoder = Encoder::embedded(Preset::Int8)?;
//! let tokens = encoder.tokenizer.encode(Input::Text("Terminal text editor"), None)?;
//! let answers = encoder.model.answer(&[Task { tokens: &tokens, head: Head::Embedding }])?;
//! assert_eq!(answers[0].len(), encoder.config.embedding_size);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The bits of an answer do not depend on the other texts of its call: see [`Model::answer`].

mod config;
mod dense;
mod folder;
mod model;
mod options;
#[cfg(feature = "program")]
pub mod program;
mod tokenizer;

pub use config::{Config, Pooling};
pub use folder::Encoder;
pub use model::{Head, Model, Task};
pub use options::ModelOptions;
pub use tokenizer::{Direction, Input, Tokenizer, Tokens, TokensError};

use std::fmt;
use std::str::FromStr;

use candle_dynquant::QConfigSpec;

/// How the weights of a float model are quantized when it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// int8 weights per channel, activations per token.
    #[default]
    Int8,
    /// The same with weights of half the codes, which x86-64 CPUs without VNNI multiply faster.
    Int8ReduceRange,
    /// bfloat16 weights and activations.
    BFloat16,
    /// float16 weights, f32 activations.
    Float16,
    /// Nothing: the model stays f32.
    None,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Int8,
        Self::Int8ReduceRange,
        Self::BFloat16,
        Self::Float16,
        Self::None,
    ];

    fn spec(self) -> Option<QConfigSpec> {
        match self {
            Self::Int8 => Some(QConfigSpec::int8()),
            Self::Int8ReduceRange => Some(QConfigSpec::int8_reduce_range()),
            Self::BFloat16 => Some(QConfigSpec::bfloat16()),
            Self::Float16 => Some(QConfigSpec::float16()),
            Self::None => None,
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Int8 => "int8",
            Self::Int8ReduceRange => "int8_reduce_range",
            Self::BFloat16 => "bfloat16",
            Self::Float16 => "float16",
            Self::None => "none",
        })
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|it| it.to_string() == word);
        known.ok_or_else(|| {
            format!("expected int8, int8_reduce_range, bfloat16, float16 or none, got {word:?}")
        })
    }
}
