//! The API of text-embeddings-inference.

mod by_model;
mod embed;
mod predict;
mod rerank;
mod similarity;
mod tokenize;
mod truncation;

pub use by_model::by_model;
pub use embed::{embed, embed_all, embed_sparse};
pub use predict::predict;
pub use rerank::rerank;
pub use similarity::similarity;
pub use tokenize::{decode, tokenize};
