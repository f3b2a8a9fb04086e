//! What the files of a folder say of its model.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::json;
use crate::keys::Keys;
use crate::models::{Architecture, Sizes};
use crate::pooling::Pooling;

/// The parameters of a model.
#[derive(Clone, Debug)]
pub struct Config {
    /// Rows of the table of words: token ids are smaller.
    pub vocab_size: usize,
    /// Length of a token's vector.
    pub hidden_size: usize,
    /// Length of an embedding: of the pooled vector, or behind the dense layers of the folder.
    pub embedding_size: usize,
    /// How an embedding is made of the tokens' vectors.
    pub pooling: Pooling,
    /// Whether the folder has a `Normalize` behind all else. `Model::answer` leaves it to its
    /// caller.
    pub normalize: bool,
    /// Names of the classes, for a model with a classification head.
    pub labels: Vec<String>,
    /// The most tokens that a text may have, special ones included.
    pub max_tokens: usize,
    pub(crate) sizes: Sizes,
    pub(crate) keys: Keys,
}

/// The files that a configuration is read from, as text; `name` is the folder's.
#[derive(Default)]
pub(crate) struct Texts<'a> {
    pub name: &'a str,
    pub config: &'a str,
    /// `config.json` of the pooling, with its path.
    pub pooling: Option<(String, String)>,
    /// `sentence_bert_config.json`, which says how many tokens sentence-transformers gave the model
    /// at most.
    pub sentence: Option<&'a str>,
    /// `tokenizer_config.json`, which says it, too.
    pub tokenizer: Option<&'a str>,
}

impl Config {
    pub(crate) fn parse(texts: &Texts<'_>) -> Result<Self> {
        let keys = Keys::parse(&format!("{}/config.json", texts.name), texts.config)?;
        let sizes = Architecture::of(&keys)?.sizes(&keys)?;
        let pooling = texts.pooling.as_ref();
        let pooling = pooling
            .map(|(path, text)| Pooling::parse(path, text))
            .transpose()?;
        let pooling = pooling.unwrap_or_default();
        Ok(Self {
            vocab_size: sizes.vocab,
            hidden_size: sizes.hidden,
            embedding_size: sizes.hidden * pooling.modes.len(),
            pooling,
            normalize: false,
            labels: keys.labels()?,
            max_tokens: max_tokens(texts, &sizes)?,
            sizes,
            keys,
        })
    }
}

fn max_tokens(texts: &Texts<'_>, sizes: &Sizes) -> Result<usize> {
    #[derive(Deserialize)]
    struct Sentence {
        max_seq_length: Option<usize>,
    }
    /// A number that no usize holds stands for no limit.
    #[derive(Deserialize)]
    struct Tokenizer {
        model_max_length: Option<f64>,
    }
    let positions = sizes.tokens;
    if let Some(text) = texts.sentence {
        let path = format!("{}/sentence_bert_config.json", texts.name);
        let file: Sentence = json::parse(text).with_context(|| {
            format!("{path}: expected the sentence configuration of sentence-transformers")
        })?;
        if let Some(length) = file.max_seq_length {
            ensure!(
                length > 0 && (length <= positions || !sizes.has_table),
                "{path}: key \"max_seq_length\": expected 1 to {positions} \
                 (max_position_embeddings), got {length}"
            );
            return Ok(length);
        }
    }
    let Some(text) = texts.tokenizer else {
        return Ok(positions);
    };
    let path = format!("{}/tokenizer_config.json", texts.name);
    let file: Tokenizer = json::parse(text)
        .with_context(|| format!("{path}: expected the configuration of a tokenizer"))?;
    let length = file.model_max_length.filter(|length| *length >= 1.);
    Ok(length.map_or(positions, |length| positions.min(length as usize)))
}
