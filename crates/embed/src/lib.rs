//! Today's encoders of texts and pictures on the CPU, quantized by candle-dynquant: [`Embedder`] for
//! vectors, [`MultiVectorEmbedder`] for vectors of tokens, [`SparseEmbedder`] for weights of tokens,
//! [`Reranker`] for the order of answers, [`Classifier`] and [`TokenClassifier`] for classes, each from
//! a folder of transformers or sentence-transformers.
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
//! let encoder = Encoder::embedded(Preset::default())?;
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
//! | `xlm-roberta` with rotary positions, `jina_embeddings_v3` | jina-embeddings-v3, a model for each [task](Options::task) | yes |
//! | `electra`, `albert` | ELECTRA rerankers, paraphrase-albert | yes |
//! | `deberta-v2` | DeBERTa v2 and v3: NLI, mxbai-rerank-v1 (no convolution) | yes |
//! | `t5` | sentence-t5, gtr-t5: the encoder | no |
//! | `eurobert` | EuroBERT | yes |
//! | `distilbert` | multi-qa-distilbert | yes |
//! | `mpnet` | all-mpnet-base | yes |
//! | `modernbert` | gte-modernbert, modernbert-embed, its reranker | yes |
//! | `nomic_bert` | nomic-embed-text-v1.5, nomic-embed-text-v2-moe | yes |
//! | `new`, `gte` | gte-multilingual, arctic-embed-m-v2.0 | yes |
//! | `qwen3` | Qwen3-Embedding, Qwen3-Reranker | `score`, `LogitScore` |
//! | `gemma3_text` | EmbeddingGemma | `score` |
//! | none: `StaticEmbedding` | static-retrieval-mrl, potion of model2vec | no |
//! | `clip`, `siglip`: texts | clip-ViT-B-32, SigLIP, SigLIP 2 of a fixed size | no |
//!
//! # Pictures
//!
//! `ImageEmbedder`, with the feature `images`, makes vectors of pictures:
//!
//! | `model_type` | for example | vector |
//! |---|---|---|
//! | `clip`, `clip_vision_model` | clip-ViT-B-32 | the projection of the pooled token |
//! | `siglip`, `siglip_vision_model` | SigLIP, SigLIP 2 of a fixed size | the pooling by attention |
//! | `dinov2`, `dinov2_with_registers` | DINOv2 | the first token |
//!
//! Texts and pictures of CLIP and SigLIP are in one space:
//!
#![cfg_attr(feature = "images", doc = "```")]
#![cfg_attr(not(feature = "images"), doc = "```ignore")]
//! use dynquant_embed::{Embedder, ImageEmbedder, Picture, normalized};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/images/clip");
//! # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/images/pictures/wide.png");
//! let texts = Embedder::open(folder)?.embed(&["a photo of a cat", "a photo of a dog"])?;
//! let pictures = ImageEmbedder::open(folder)?.embed(&[Picture::Path(file.as_ref())])?;
//! let picture = normalized(pictures[0].clone());
//! let cosine = |text: Vec<f32>| -> f32 {
//!     normalized(text).iter().zip(&picture).map(|(a, b)| a * b).sum()
//! };
//! let cosines: Vec<f32> = texts.into_iter().map(cosine).collect();
//! assert_eq!(cosines.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`SparseEmbedder`] takes `bert`, `distilbert`, `roberta`, `xlm-roberta`, `camembert` and
//! `modernbert`, or any by the head of bge-m3; [`MultiVectorEmbedder`] all but `StaticEmbedding`;
//! [`TokenClassifier`] those with a head.

mod batches;
mod classifier;
mod config;
mod embedder;
mod files;
mod folder;
mod functions;
#[cfg(feature = "hub")]
pub mod hub;
#[cfg(feature = "images")]
mod images;
mod keys;
mod late;
mod lexical;
mod loaded;
mod model;
mod models;
mod modules;
mod multi_vector;
mod options;
mod pairs;
mod pooling;
mod preset;
#[cfg(feature = "program")]
pub mod program;
mod prompts;
mod reranker;
mod sentence;
mod sparse;
mod splade;
mod state_dict;
mod tables;
mod token_classifier;
mod tokenizer;
mod tokens;

pub use batches::Options;
pub use classifier::Classifier;
pub use config::Config;
pub use embedder::{Embedder, Int8Vector};
pub use folder::Encoder;
pub use functions::{normalized, sigmoid, softmax};
#[cfg(feature = "images")]
pub use images::{ImageEmbedder, Picture};
pub use model::{Head, Model, Task};
pub use multi_vector::{MultiVector, MultiVectorEmbedder};
pub use options::ModelOptions;
pub use pooling::{Mode, Pooling};
pub use preset::Preset;
pub use prompts::Prompts;
pub use reranker::Reranker;
pub use sparse::{SparseEmbedder, SparseVector};
pub use token_classifier::{ClassifiedToken, Entity, TokenClassifier};
pub use tokenizer::Tokenizer;
pub use tokens::{Direction, Input, Prompt, Token, Tokens, TokensError};
