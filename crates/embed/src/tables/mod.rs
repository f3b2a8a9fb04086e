//! The keys that other programs write into the files of a model, and its tensors, each with its
//! treatment: a file for each format. `assets/reference/encoder_keys.py` writes down which keys
//! transformers and sentence-transformers know, and a test that all of them have a row.

mod config;
mod images;
mod sentence_transformers;
mod tensors;
mod tokenizer_config;

pub(crate) use config::*;
pub(crate) use images::*;
pub(crate) use sentence_transformers::*;
pub(crate) use tensors::TENSORS;
pub(crate) use tokenizer_config::TOKENIZER_CONFIG;

#[cfg(test)]
mod tests;
