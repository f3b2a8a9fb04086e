//! `config.json` of a BERT, and what sentence-transformers writes beside it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use candle_dynquant::Activation;
use candle_dynquant_io::json;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The parameters of a BERT, under the names that `config.json` has for them.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of tokens that the table of words has.
    pub vocab_size: usize,
    /// Length of a token's vector.
    pub hidden_size: usize,
    /// Length of an embedding: of those vectors' mean, or behind the dense layers of the folder.
    pub embedding_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of attention heads; divides `hidden_size`.
    pub num_attention_heads: usize,
    /// Width between the two products of a layer.
    pub intermediate_size: usize,
    /// The most tokens that a text may have.
    pub max_position_embeddings: usize,
    /// Number of token types; 2 where pairs of texts are known.
    pub type_vocab_size: usize,
    /// Added to variances by the norms.
    pub layer_norm_eps: f64,
    /// Between the two products of a layer.
    pub hidden_act: Activation,
    /// Names of the classes, for a model with a classification head.
    pub labels: Vec<String>,
    /// Whether `architectures` names a model with a classification head.
    pub says_classifier: bool,
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

#[derive(Deserialize)]
struct File {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    #[serde(default = "two")]
    type_vocab_size: usize,
    #[serde(default = "bert_epsilon")]
    layer_norm_eps: f64,
    #[serde(default = "gelu")]
    hidden_act: String,
    #[serde(default = "absolute")]
    position_embedding_type: String,
    #[serde(default)]
    is_decoder: bool,
    #[serde(default)]
    architectures: Vec<String>,
    id2label: Option<BTreeMap<String, String>>,
}

fn two() -> usize {
    2
}

fn bert_epsilon() -> f64 {
    1e-12
}

fn gelu() -> String {
    "gelu".to_owned()
}

fn absolute() -> String {
    "absolute".to_owned()
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
        let path = format!("{}/config.json", texts.name);
        let file: File = parse(texts.config)
            .with_context(|| format!("{path}: expected the configuration of a BERT"))?;
        let expect_word = |key, got: &str, expected| {
            ensure!(
                got == expected,
                "{path}: key {key:?}: expected {expected:?}, got {got:?}"
            );
            Ok(())
        };
        expect_word("model_type", &file.model_type, "bert")?;
        let positions = &file.position_embedding_type;
        expect_word("position_embedding_type", positions, "absolute")?;
        ensure!(
            !file.is_decoder,
            "{path}: key \"is_decoder\": expected false (an encoder), got true"
        );
        check_sizes(&path, &file)?;
        let hidden_act = match file.hidden_act.as_str() {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            got => anyhow::bail!(
                "{path}: key \"hidden_act\": expected gelu, gelu_new, gelu_pytorch_tanh or relu, got {got:?}"
            ),
        };
        let says_classifier =
            (file.architectures.iter()).any(|name| name == "BertForSequenceClassification");
        Ok(Self {
            labels: labels(&path, file.id2label)?,
            pooling: pooling(texts)?,
            max_tokens: max_tokens(texts, file.max_position_embeddings)?,
            says_classifier,
            hidden_act,
            vocab_size: file.vocab_size,
            hidden_size: file.hidden_size,
            embedding_size: file.hidden_size,
            num_hidden_layers: file.num_hidden_layers,
            num_attention_heads: file.num_attention_heads,
            intermediate_size: file.intermediate_size,
            max_position_embeddings: file.max_position_embeddings,
            type_vocab_size: file.type_vocab_size,
            layer_norm_eps: file.layer_norm_eps,
        })
    }
}

/// A file from JSON, as Python or an editor may have written it.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_slice(&json::strict(text.into()))
}

fn check_sizes(path: &str, file: &File) -> Result<()> {
    let sizes = [
        ("vocab_size", file.vocab_size),
        ("hidden_size", file.hidden_size),
        ("num_hidden_layers", file.num_hidden_layers),
        ("num_attention_heads", file.num_attention_heads),
        ("intermediate_size", file.intermediate_size),
        ("max_position_embeddings", file.max_position_embeddings),
        ("type_vocab_size", file.type_vocab_size),
    ];
    for (key, size) in sizes {
        // No real model comes near the limit, and products of two sizes stay in a usize.
        ensure!(
            (1..=0x7fff_ffff).contains(&size),
            "{path}: key {key:?}: expected a positive integer below 2^31, got {size}"
        );
    }
    ensure!(
        file.hidden_size.is_multiple_of(file.num_attention_heads),
        "{path}: key \"num_attention_heads\": expected a divisor of hidden_size {}, got {}",
        file.hidden_size,
        file.num_attention_heads,
    );
    ensure!(
        file.layer_norm_eps >= 0.,
        "{path}: key \"layer_norm_eps\": expected a number, 0 or more, got {}",
        file.layer_norm_eps,
    );
    Ok(())
}

/// The names in the order of their numbers, which must count from 0; two nameless ones by default, as
/// transformers has it.
fn labels(path: &str, id2label: Option<BTreeMap<String, String>>) -> Result<Vec<String>> {
    let Some(map) = id2label else {
        return Ok(vec!["LABEL_0".to_owned(), "LABEL_1".to_owned()]);
    };
    let count = map.len();
    let mut labels = BTreeMap::new();
    for (id, name) in map {
        let number = id.parse::<usize>().ok().filter(|number| *number < count);
        let Some(number) = number else {
            anyhow::bail!(
                "{path}: key \"id2label\": expected the numbers 0 to {}, got {id:?}",
                count - 1
            );
        };
        labels.insert(number, name);
    }
    ensure!(
        labels.len() == count && count > 0,
        "{path}: key \"id2label\": expected each number from 0 on once, got {count} entries with {} numbers",
        labels.len(),
    );
    Ok(labels.into_values().collect())
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
