//! `config.json` of a BERT, and what sentence-transformers writes beside it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use candle_dynquant_io::json;
use candle_dynquant_support::bert;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The parameters of a model: its BERT's, and the rest.
#[derive(Clone, Debug)]
pub struct Config {
    /// The parameters in `config.json`.
    pub bert: bert::Config,
    /// Length of an embedding: of the mean of the tokens' vectors, or behind the dense layers of the folder.
    pub embedding_size: usize,
    /// How an embedding is made of the tokens' vectors.
    pub pooling: Pooling,
    /// The most tokens that a text may have, special ones included.
    pub max_tokens: usize,
}

/// How an embedding is made of the tokens' vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first one.
    Cls,
}

/// The files that a configuration is read from, as text; `name` is the folder's.
pub(crate) struct Texts<'a> {
    pub name: &'a str,
    pub config: &'a str,
    /// `1_Pooling/config.json`, which says how sentence-transformers trained the embeddings.
    pub pooling: Option<&'a str>,
    /// `sentence_bert_config.json`, which says how many tokens it gave the model at most.
    pub sentence: Option<&'a str>,
}

impl Config {
    pub(crate) fn parse(texts: &Texts<'_>) -> Result<Self> {
        let bert = bert::Config::parse(&format!("{}/config.json", texts.name), texts.config)?;
        Ok(Self {
            embedding_size: bert.hidden_size,
            pooling: pooling(texts)?,
            max_tokens: max_tokens(texts, bert.max_position_embeddings)?,
            bert,
        })
    }
}

/// A file from JSON, as Python or an editor may have written it.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_slice(&json::strict(text.into()))
}

fn pooling(texts: &Texts<'_>) -> Result<Pooling> {
    /// Since release 6 one word, before a flag for each mode.
    #[derive(Deserialize)]
    struct File {
        pooling_mode: Option<serde_json::Value>,
        #[serde(flatten)]
        others: BTreeMap<String, serde_json::Value>,
    }
    let Some(text) = texts.pooling else {
        return Ok(Pooling::Mean);
    };
    let path = format!("{}/1_Pooling/config.json", texts.name);
    let file: File = parse(text)
        .with_context(|| format!("{path}: expected the pooling of sentence-transformers"))?;
    let flags = file.others.into_iter();
    let flags = flags.filter(|(key, value)| key.starts_with("pooling_mode_") && *value == true);
    let modes: Vec<String> = match file.pooling_mode {
        Some(serde_json::Value::String(mode)) => vec![mode],
        Some(got) => vec![got.to_string()],
        None => flags.map(|(key, _)| key).collect(),
    };
    match &modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cls" | "pooling_mode_cls_token"] => Ok(Pooling::Cls),
        ["mean" | "pooling_mode_mean_tokens"] => Ok(Pooling::Mean),
        got => anyhow::bail!("{path}: key \"pooling_mode\": expected cls or mean, got {got:?}"),
    }
}

fn max_tokens(texts: &Texts<'_>, positions: usize) -> Result<usize> {
    #[derive(Deserialize)]
    struct File {
        max_seq_length: Option<usize>,
    }
    let Some(text) = texts.sentence else {
        return Ok(positions);
    };
    let path = format!("{}/sentence_bert_config.json", texts.name);
    let file: File = parse(text).with_context(|| {
        format!("{path}: expected the sentence configuration of sentence-transformers")
    })?;
    match file.max_seq_length {
        None => Ok(positions),
        Some(length) if (1..=positions).contains(&length) => Ok(length),
        Some(length) => anyhow::bail!(
            "{path}: key \"max_seq_length\": expected 1 to {positions} (max_position_embeddings), got {length}"
        ),
    }
}
