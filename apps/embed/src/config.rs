//! The configuration of a model in the files of its folder.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

use crate::json;
use crate::keys::Keys;
use crate::models::{Architecture, Sizes};
use crate::pooling::Pooling;
use crate::sentence::Sentence;
use crate::tables;

/// The parameters of a model.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of rows of the word table: token ids are smaller.
    pub vocab_size: usize,
    /// The length of a token's vector.
    pub hidden_size: usize,
    /// The length of an embedding: of the pooled vector, or after the folder's dense layers, and at
    /// most `truncate_dim`.
    pub embedding_size: usize,
    /// The way an embedding is made of the tokens' vectors.
    pub pooling: Pooling,
    /// Whether the folder ends with a `Normalize`, which `Model::answer` leaves to its caller.
    pub normalize: bool,
    /// The names of the classes, for a model with a classification head.
    pub labels: Vec<String>,
    /// The most tokens of a text, including special tokens.
    pub max_tokens: usize,
    /// A sentence for each key of the files that nothing reads; programs print these once.
    pub notes: Vec<String>,
    pub(crate) sizes: Sizes,
    pub(crate) keys: Keys,
    /// Whether texts are lower-cased before the tokenizer.
    pub(crate) lower_case: bool,
    pub(crate) tokenizer: TokenizerConfig,
}

/// The text of the files that hold the configuration; `name` is the folder's.
#[derive(Default)]
pub(crate) struct Texts<'a> {
    pub name: &'a str,
    pub config: &'a str,
    /// `config.json` of the pooling, with its path.
    pub pooling: Option<(String, String)>,
    /// The settings of sentence-transformers, which limit the tokens of a text.
    pub sentence: Sentence,
    /// The text of `tokenizer_config.json`, which also limits the tokens.
    pub tokenizer: Option<&'a str>,
    /// The number of bytes of the weights, if known.
    pub weights: Option<u64>,
}

impl Config {
    pub(crate) fn parse(texts: &Texts<'_>) -> Result<Self> {
        let path = format!("{}/config.json", texts.name);
        let mut keys = Keys::parse(&path, texts.config)?;
        if let Some(bytes) = texts.weights {
            keys.limit(bytes);
        }
        let architecture = Architecture::find(&keys)?;
        let mut notes: Vec<String> = unread(&path, keys.check(architecture.tables)?).collect();
        let sizes = architecture.sizes(&keys)?;
        let pooling = texts.pooling.as_ref();
        let pooling = pooling
            .map(|(path, text)| Pooling::parse(path, text))
            .transpose()?;
        let pooling = pooling.unwrap_or_default();
        let tokenizer = TokenizerConfig::parse(texts, &keys, &mut notes)?;
        Ok(Self {
            vocab_size: sizes.vocab,
            hidden_size: sizes.hidden,
            embedding_size: sizes.hidden * pooling.modes.len(),
            pooling,
            normalize: false,
            labels: keys.labels()?,
            max_tokens: max_tokens(texts, &tokenizer, &sizes)?,
            notes,
            sizes,
            keys,
            lower_case: texts.sentence.lower_case,
            tokenizer,
        })
    }
}

/// A note for each key that nothing reads.
pub(crate) fn unread(path: &str, keys: Vec<String>) -> impl Iterator<Item = String> {
    keys.into_iter()
        .map(move |key| format!("{path}: key {key:?} is not read"))
}

/// The settings of `tokenizer_config.json`.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenizerConfig {
    max_tokens: Option<usize>,
    /// Whether the model gets the tokenizer's token types: by `model_input_names`, else by the
    /// tokenizer's class.
    pub gives_types: bool,
    /// The settings of BERT's normalizer, if the tokenizer's class makes one in place of
    /// `tokenizer.json`'s: separate Chinese characters, strip accents, lower case.
    pub bert: Option<(bool, Option<bool>, bool)>,
}

/// The tokenizer classes with BERT's normalizer.
const BERTS: [&str; 3] = ["BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer"];

impl TokenizerConfig {
    fn parse(texts: &Texts<'_>, config: &Keys, notes: &mut Vec<String>) -> Result<Self> {
        let family = config.word("model_type")?;
        let is_bert = family.is_some_and(|it| ["bert", "nomic_bert"].contains(&&*it));
        let Some(text) = texts.tokenizer else {
            let gives_types = is_bert;
            return Ok(Self {
                gives_types,
                ..Self::default()
            });
        };
        let path = format!("{}/tokenizer_config.json", texts.name);
        let map: Map<String, Value> = json::parse(text)
            .with_context(|| format!("{path}: expected the configuration of a tokenizer"))?;
        let (keys, unknown) = Keys::flat_with(&path, map, &tables::TOKENIZER_CONFIG)?;
        notes.extend(unread(&path, unknown));
        let class = match keys.word("tokenizer_class")? {
            None => config.word("tokenizer_class")?,
            class => class,
        };
        let class = class.map(|name| name.trim_end_matches("Fast").to_owned());
        let names: Option<Vec<String>> = keys.optional("model_input_names", "names of inputs")?;
        let gives_types = match (&names, class.as_deref()) {
            (Some(names), _) => names.iter().any(|name| name == "token_type_ids"),
            (None, Some(class)) => class == BERTS[0],
            (None, None) => is_bert,
        };
        let bert = BERTS
            .contains(&class.as_deref().unwrap_or_default())
            .then(|| {
                anyhow::Ok((
                    keys.flag("tokenize_chinese_chars", true)?,
                    keys.optional("strip_accents", "true or false")?,
                    keys.flag("do_lower_case", true)?,
                ))
            });
        // A number too large for usize means no limit.
        let max_tokens: Option<f64> = keys.optional("model_max_length", "a number")?;
        Ok(Self {
            max_tokens: max_tokens
                .filter(|length| *length >= 1.)
                .map(|length| length as usize),
            gives_types,
            bert: bert.transpose()?,
        })
    }
}

fn max_tokens(texts: &Texts<'_>, tokenizer: &TokenizerConfig, sizes: &Sizes) -> Result<usize> {
    let positions = sizes.tokens;
    if let Some(length) = texts.sentence.max_tokens {
        ensure!(
            length <= positions || !sizes.has_table,
            "{}: key \"max_seq_length\": expected 1 to {positions} (max_position_embeddings), got \
             {length}",
            texts.sentence.path,
        );
        return Ok(length);
    }
    let length = tokenizer.max_tokens.unwrap_or(positions);
    Ok(positions.min(length))
}
