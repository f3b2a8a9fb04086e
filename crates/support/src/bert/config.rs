//! `config.json` of a BERT, read strictly: every error names the file, the key, the expected and
//! the found value.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use candle_dynquant::FusedActivation;
use candle_dynquant_decoder::json::Keys;
use serde_json::Value;

/// The parameters of the model; field names are the file's keys.
#[derive(Clone, Debug)]
pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub intermediate_size: usize,
    pub max_position_embeddings: usize,
    pub type_vocab_size: usize,
    pub layer_norm_eps: f64,
    pub hidden_act: FusedActivation,
    pub pad_token_id: u32,
    /// The names of the classes, for a model with a classification head.
    pub labels: Vec<String>,
    /// Whether `architectures` says that there is a classification head.
    pub says_classifier: bool,
}

impl Config {
    /// Reads the file and checks that the numbers fit together.
    pub fn read(path: &Path) -> Result<Self> {
        Self::from_keys(&Keys::read(path)?)
    }

    /// Parses `text`, the contents of the file at `path`, as [`read`](Self::read) does.
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        Self::from_keys(&Keys::parse(path, text)?)
    }

    fn from_keys(keys: &Keys) -> Result<Self> {
        must_be(keys, "model_type", "bert")?;
        if keys.get("position_embedding_type").is_some() {
            must_be(keys, "position_embedding_type", "absolute")?;
        }
        if !matches!(keys.get("is_decoder"), None | Some(Value::Null | Value::Bool(false))) {
            return Err(keys.fault("is_decoder", "false (an encoder)"));
        }
        let config = Self {
            vocab_size: keys.size("vocab_size", None)?,
            hidden_size: keys.size("hidden_size", None)?,
            num_hidden_layers: keys.size("num_hidden_layers", None)?,
            num_attention_heads: keys.size("num_attention_heads", None)?,
            intermediate_size: keys.size("intermediate_size", None)?,
            max_position_embeddings: keys.size("max_position_embeddings", None)?,
            type_vocab_size: keys.size("type_vocab_size", Some(2))?,
            layer_norm_eps: epsilon(keys)?,
            hidden_act: activation(keys)?,
            pad_token_id: pad_token_id(keys)?,
            labels: labels(keys)?,
            says_classifier: says_classifier(keys),
        };
        ensure!(
            config.hidden_size.is_multiple_of(config.num_attention_heads),
            "{}: key \"num_attention_heads\": expected a divisor of hidden_size {}, got {}",
            keys.path,
            config.hidden_size,
            config.num_attention_heads,
        );
        Ok(config)
    }
}

fn must_be(keys: &Keys, key: &str, expected: &str) -> Result<()> {
    match keys.get(key) {
        Some(Value::String(got)) if got == expected => Ok(()),
        _ => Err(keys.fault(key, &format!("{expected:?}"))),
    }
}

fn epsilon(keys: &Keys) -> Result<f64> {
    let key = "layer_norm_eps";
    match keys.get(key).map(Value::as_f64) {
        None => Ok(1e-12),
        Some(Some(eps)) if eps >= 0. => Ok(eps),
        _ => Err(keys.fault(key, "a number, 0 or more")),
    }
}

fn activation(keys: &Keys) -> Result<FusedActivation> {
    let key = "hidden_act";
    match keys.get(key) {
        None => Ok(FusedActivation::Gelu),
        Some(Value::String(name)) => match name.as_str() {
            "gelu" => Ok(FusedActivation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Ok(FusedActivation::GeluTanh),
            "relu" => Ok(FusedActivation::Relu),
            _ => Err(keys.fault(key, "gelu, gelu_new, gelu_pytorch_tanh or relu")),
        },
        Some(_) => Err(keys.fault(key, "the name of an activation function")),
    }
}

fn pad_token_id(keys: &Keys) -> Result<u32> {
    let key = "pad_token_id";
    match keys.get(key) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| keys.fault(key, "a token id")),
    }
}

/// `id2label`, which must count from 0 without gaps; without the key there are two nameless
/// classes.
fn labels(keys: &Keys) -> Result<Vec<String>> {
    let key = "id2label";
    let expected = "an object that names the classes \"0\", \"1\", .. without gaps";
    let map = match keys.get(key) {
        None | Some(Value::Null) => return Ok(vec!["LABEL_0".into(), "LABEL_1".into()]),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(keys.fault(key, expected)),
    };
    let mut labels = BTreeMap::new();
    for (id, name) in map {
        let Some(name) = name.as_str() else {
            return Err(keys.fault(key, expected));
        };
        let number = id.parse().ok().filter(|number| *number < map.len());
        let new = number.is_some_and(|n: usize| labels.insert(n, name.to_owned()).is_none());
        ensure!(
            new,
            "{}: key {key:?}: expected each of the numbers 0 to {} once, got {id:?}",
            keys.path,
            map.len() - 1,
        );
    }
    Ok(labels.into_values().collect())
}

fn says_classifier(keys: &Keys) -> bool {
    let names = keys.get("architectures").and_then(Value::as_array);
    names.is_some_and(|names| names.iter().any(|name| name == "BertForSequenceClassification"))
}
