//! Today's encoders of texts on the CPU, quantized by candle-dynquant: [`Embedder`] for vectors,
//! [`Reranker`] for the order of answers, [`Classifier`] for classes, each from a folder of
//! transformers or sentence-transformers.
//!
//! ```
//! use dynquant_embed::{Embedder, Options};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/bert");
//! let embedder = Embedder::open_with(folder, Options::new().batch_size(64))?;
//! let documents = embedder.embed_documents(&["Paris lies on the Seine.", "Snow is cold."])?;
//! let queries = embedder.embed_queries(&["Where is Paris?"])?;
//! let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
//! let scores: Vec<f32> = documents.iter().map(|it| dot(it, &queries[0])).collect();
//! assert_eq!(scores.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Encoder`] stands below these, from tokens to embeddings and logits, for programs with their own
//! queues and limits. The bits of an answer do not depend on the other texts of the call: see
//! [`Model::answer`].
//!
//! ```
//! use dynquant_embed::{Encoder, Head, Input, Preset, Task};
//!
//! let encoder = Encoder::embedded(Preset::Int8)?;
//! let tokens = encoder.tokenizer.encode(Input::Text("Terminal text editor"), None)?;
//! let answers = encoder.model.answer(&[Task { tokens: &tokens, head: Head::Embedding }])?;
//! assert_eq!(answers[0].len(), encoder.config.embedding_size);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Architectures
//!
//! | `model_type` | for example | head |
//! |---|---|---|
//! | `bert` | bge, e5, all-MiniLM, mxbai, arctic-embed | yes |
//! | `bert` with ALiBi | jina-embeddings-v2 | yes |
//! | `roberta`, `xlm-roberta`, `camembert` | bge-m3, multilingual-e5, bge-reranker-v2-m3 | yes |
//! | `distilbert` | multi-qa-distilbert | yes |
//! | `mpnet` | all-mpnet-base | yes |
//! | `modernbert` | gte-modernbert, modernbert-embed, its reranker | yes |
//! | `nomic_bert` | nomic-embed-text-v1.5 (no mixture of experts) | yes |
//! | `new`, `gte` | gte-multilingual, arctic-embed-m-v2.0 | yes |
//! | `qwen3` | Qwen3-Embedding, Qwen3-Reranker | `score`, `LogitScore` |
//! | `gemma3_text` | EmbeddingGemma | `score` |

mod batches;
mod classifier;
mod config;
mod embedder;
mod folder;
mod functions;
#[cfg(feature = "hub")]
pub mod hub;
mod json;
mod keys;
mod loaded;
mod model;
mod models;
mod modules;
mod options;
mod pairs;
mod pooling;
#[cfg(feature = "program")]
pub mod program;
mod prompts;
mod reranker;
mod sentence;
mod tables;
mod tokenizer;

pub use batches::Options;
pub use classifier::Classifier;
pub use config::Config;
pub use embedder::{Embedder, Int8Vector};
pub use folder::Encoder;
pub use functions::{normalized, sigmoid, softmax};
pub use model::{Head, Model, Task};
pub use options::ModelOptions;
pub use pooling::{Mode, Pooling};
pub use prompts::Prompts;
pub use reranker::Reranker;
pub use tokenizer::{Direction, Input, Prompt, Token, Tokenizer, Tokens, TokensError};

use std::fmt;
use std::str::FromStr;

use candle_dynquant::QConfigSpec;

/// The quantization of a float model's weights when it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// int8 weights per channel, activations per token.
    #[default]
    Int8,
    /// int8 weights of 7 bits, which x86-64 CPUs without VNNI multiply faster.
    Int8ReduceRange,
    /// int8 weights and activations in groups of 32 inputs: more accurate, and slower.
    Int8Groups,
    /// 4-bit weights and int8 activations in groups of 32 inputs: half the memory.
    Int4,
    /// bfloat16 weights and activations.
    BFloat16,
    /// float16 weights, f32 activations.
    Float16,
    /// No quantization: the model stays f32.
    None,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 7] = [
        Self::Int8,
        Self::Int8ReduceRange,
        Self::Int8Groups,
        Self::Int4,
        Self::BFloat16,
        Self::Float16,
        Self::None,
    ];

    fn spec(self) -> Option<QConfigSpec> {
        match self {
            Self::Int8 => Some(QConfigSpec::int8()),
            Self::Int8ReduceRange => Some(QConfigSpec::int8_reduce_range()),
            Self::Int8Groups => Some(QConfigSpec::int8_groups()),
            Self::Int4 => Some(QConfigSpec::int4()),
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
            Self::Int8Groups => "int8_groups",
            Self::Int4 => "int4",
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
            let names = Self::ALL.map(|it| it.to_string());
            format!("expected one of {}, got {word:?}", names.join(", "))
        })
    }
}
