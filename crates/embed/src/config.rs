//! The configuration of a model in the files of its folder.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::files::ADDED_TOKENS;
use crate::keys::{Keys, parse};
use crate::lexical::Lexical;
use crate::models::{Architecture, Sizes, TABLE, Tower};
use crate::pooling::Pooling;
use crate::sentence::Sentence;
use crate::splade::Splade;
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
    /// Whether each token has an embedding.
    pub(crate) is_late: bool,
    /// The pooling of sparse vectors, which replaces `pooling`.
    pub(crate) splade: Option<Splade>,
    /// The head of sparse vectors without `splade`.
    pub(crate) lexical: Option<Lexical>,
    /// The file and the key that limit the tokens of a text.
    pub(crate) limited: String,
    pub(crate) sizes: Sizes,
    pub(crate) keys: Keys,
    /// Whether texts are lower-cased before the tokenizer.
    pub(crate) lower_case: bool,
    pub(crate) tokenizer: TokenizerConfig,
    /// The tower of texts, and the token that has a text's vector.
    pub(crate) tower: Option<&'static Tower>,
    pub(crate) ending: Option<u32>,
}

/// The text of the files that hold the configuration; `name` is the folder's.
#[derive(Default)]
pub(crate) struct Texts<'a> {
    pub name: &'a str,
    pub config: &'a str,
    /// `config.json` of the pooling, with its path.
    pub pooling: Option<(String, String)>,
    /// Whether the pooling is SPLADE's.
    pub is_splade: bool,
    /// Whether each token has an embedding.
    pub is_late: bool,
    /// The settings of sentence-transformers, which limit the tokens of a text.
    pub sentence: Sentence,
    /// The text of `tokenizer_config.json`, which also limits the tokens.
    pub tokenizer: Option<&'a str>,
    /// The files beside `tokenizer_config.json` that name tokens, with their paths.
    pub tokens: Vec<(String, String)>,
    /// The number of bytes of the weights, if known.
    pub weights: Option<u64>,
}

impl Config {
    /// Whether the model has sparse vectors: see [`Head::Sparse`](crate::Head::Sparse).
    pub fn is_sparse(&self) -> bool {
        self.is_splade() || self.lexical.is_some()
    }

    /// Whether the model has no other embeddings than sparse ones.
    pub fn is_splade(&self) -> bool {
        self.splade.is_some()
    }

    /// Whether each token of a text has an embedding, for late interaction: see
    /// [`Head::TokenEmbeddings`](crate::Head::TokenEmbeddings).
    pub fn is_multi_vector(&self) -> bool {
        self.is_late
    }

    /// The beginnings of the names of tensors that belong to a tower of pictures.
    pub(crate) fn others(&self) -> &'static [&'static str] {
        self.tower.map_or(&[], |_| &Tower::OTHERS)
    }

    pub(crate) fn parse(texts: &Texts<'_>) -> Result<Self> {
        let path = format!("{}/config.json", texts.name);
        let mut keys = Keys::parse(&path, texts.config)?;
        if let Some(bytes) = texts.weights {
            keys.limit(bytes);
        }
        let architecture = Architecture::find(&keys)?;
        let mut notes = Vec::new();
        let tower = architecture.tower;
        if let Some(tower) = tower {
            keys = keys.tower("text_config", tower.defaults, &mut notes)?;
        }
        notes.extend(keys.notes(architecture.tables)?);
        let sizes = architecture.sizes(&keys)?;
        let (splade, pooling) = match &texts.pooling {
            Some((path, text)) if texts.is_splade => (Some(Splade::parse(path, text)?), None),
            pooling => (None, pooling.as_ref()),
        };
        let pooling =
            pooling.map(|(path, text)| Pooling::parse(path, text, sizes.hidden)).transpose()?;
        ensure!(
            tower.is_none() || pooling.is_none() && splade.is_none(),
            keys.fault("model_type", "another one before a pooling")
        );
        // transformers' pooling of a tower is that of its last token.
        let pooling = pooling.unwrap_or_else(|| match tower {
            Some(_) => Pooling::last_token(),
            None => Pooling::default(),
        });
        let projected = tower.map(|tower| tower.outputs(&keys, &sizes)).transpose()?;
        let tokenizer = TokenizerConfig::parse(texts, &keys, &mut notes)?;
        let (limited, max_tokens) = max_tokens(texts, &tokenizer, &sizes)?;
        Ok(Self {
            vocab_size: sizes.vocab,
            hidden_size: sizes.hidden,
            embedding_size: match splade {
                Some(_) => sizes.vocab,
                None => projected.unwrap_or(sizes.hidden * pooling.modes.len()),
            },
            is_late: texts.is_late,
            splade,
            lexical: None,
            pooling,
            normalize: false,
            labels: keys.labels()?,
            max_tokens,
            limited,
            notes,
            sizes,
            ending: tower.map_or(Ok(None), |tower| tower.ending(&keys))?,
            tower,
            keys,
            lower_case: texts.sentence.lower_case,
            tokenizer,
        })
    }
}

/// A note for each key that nothing reads.
pub(crate) fn unread(path: &str, keys: Vec<String>) -> impl Iterator<Item = String> {
    keys.into_iter().map(move |key| format!("{path}: key {key:?} is not read"))
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TokenizerConfig {
    pub path: String,
    max_tokens: Option<usize>,
    /// Whether the model gets the tokenizer's token types: by `model_input_names`, else by the
    /// tokenizer's class.
    pub gives_types: bool,
    /// The settings of BERT's normalizer, if the tokenizer's class makes one in place of
    /// `tokenizer.json`'s: separate Chinese characters, strip accents, lower case.
    pub bert: Option<(bool, Option<bool>, bool)>,
    /// The tokens that files name, each once for each place.
    pub named: Vec<NamedToken>,
    /// The keys of the first and the last token of a text, if the tokenizer's class adds these in
    /// place of `tokenizer.json`'s.
    pub ends: Option<[&'static str; 2]>,
    /// The setting of a tokenizer whose class makes the spaces before words.
    pub prefix_space: Option<bool>,
    /// The keys of a tokenizer whose class makes these parts, and whether it makes them.
    pub parts: Vec<(&'static str, &'static str, bool)>,
    /// Whether texts get no special tokens, and have the limit of `tokenizer.json`.
    pub is_bare: bool,
    /// The named class, and the model that it makes.
    pub model: Option<(String, &'static str)>,
}

/// A token in another file than `tokenizer.json`.
#[derive(Clone, Debug)]
pub(crate) struct NamedToken {
    /// The file and the key.
    pub place: String,
    pub key: String,
    pub token: AddedToken,
    /// Whether the place says how the token is found in texts.
    pub is_described: bool,
}

impl NamedToken {
    /// The tokens under the keys of a file that name some.
    fn all(path: &str, map: &Map<String, Value>) -> Result<Vec<Self>> {
        let mut named = Vec::new();
        let has_tokens = |key: &str| {
            let mut endings = ["_token", "_special_tokens", "_tokens_decoder"].iter();
            endings.any(|it| key.ends_with(it))
        };
        for (key, value) in map.iter().filter(|(key, _)| has_tokens(key)) {
            let place = format!("{path}: key {key:?}");
            Self::add(&place, key, value, &mut named)?;
        }
        Ok(named)
    }

    fn add(place: &str, key: &str, value: &Value, to: &mut Vec<Self>) -> Result<()> {
        let inner: Vec<&Value> = match value {
            Value::Array(all) => all.iter().collect(),
            Value::Object(map) if !map.contains_key("content") => map.values().collect(),
            Value::Object(_) | Value::String(_) => {
                let (place, key) = (place.to_owned(), key.to_owned());
                let content = value.get("content").unwrap_or(value).as_str();
                let content = content.with_context(|| format!("{place}: expected a token"))?;
                // Only this key says so of each token; others are added as they are.
                let is_described = key == "added_tokens_decoder";
                let token = if is_described {
                    AddedToken::deserialize(value).with_context(|| place.clone())?
                } else {
                    AddedToken::from(content, true)
                };
                to.push(Self { place, key, token, is_described });
                Vec::new()
            }
            _ => Vec::new(),
        };
        let mut inner = inner.into_iter();
        inner.try_for_each(|value| Self::add(place, key, value, to))
    }
}

/// The tokenizer classes of transformers: the models for which it takes a class, the model that the
/// class makes, and the keys of the tokens at the ends of a text. Those with WordPiece also make BERT's
/// normalizer.
type Class = (&'static str, &'static [&'static str], &'static str, Option<[&'static str; 2]>);

const CLS: Option<[&str; 2]> = Some(["cls_token", "sep_token"]);
const BOS: Option<[&str; 2]> = Some(["bos_token", "eos_token"]);
const EOS: Option<[&str; 2]> = Some(["", "eos_token"]);
const BERTS: &[&str] = &["bert", "nomic_bert", "distilbert", "electra"];
static CLASSES: [Class; 10] = [
    ("BertTokenizer", BERTS, "WordPiece", CLS),
    ("DistilBertTokenizer", &[], "WordPiece", CLS),
    ("MPNetTokenizer", &["mpnet"], "WordPiece", CLS),
    ("RobertaTokenizer", &["roberta"], "BPE", CLS),
    ("XLMRobertaTokenizer", &["xlm-roberta", "jina_embeddings_v3"], "Unigram", BOS),
    ("CamembertTokenizer", &[], "Unigram", BOS),
    ("AlbertTokenizer", &["albert"], "Unigram", CLS),
    ("DebertaV2Tokenizer", &["deberta-v2"], "Unigram", CLS),
    ("T5Tokenizer", &["t5"], "Unigram", EOS),
    ("Qwen2Tokenizer", &[], "BPE", None),
];

impl TokenizerConfig {
    fn parse(texts: &Texts<'_>, config: &Keys, notes: &mut Vec<String>) -> Result<Self> {
        let family = config.word("model_type")?;
        let family = family.unwrap_or_default();
        let is_bert = ["bert", "nomic_bert", "electra"].contains(&&*family);
        let path = format!("{}/tokenizer_config.json", texts.name);
        let text = texts.tokenizer.unwrap_or("{}");
        let map: Map<String, Value> = parse(&path, text, "the configuration of a tokenizer")?;
        let named = named_tokens(texts, &path, &map)?;
        let (keys, unknown) = Keys::flat_with(&path, map, &tables::TOKENIZER_CONFIG)?;
        notes.extend(unread(&path, unknown));
        let class = match keys.word("tokenizer_class")? {
            None => config.word("tokenizer_class")?,
            class => class,
        };
        let named_class = class.map(|name| name.trim_end_matches("Fast").to_owned());
        let known = CLASSES.iter().find(|(name, families, ..)| match &named_class {
            Some(class) => class == name,
            None => families.contains(&&*family),
        });
        let class = named_class.clone().or_else(|| known.map(|(name, ..)| (*name).to_owned()));
        let class = class.as_deref();
        let names: Option<Vec<String>> = keys.optional("model_input_names", "names of inputs")?;
        let gives_types = match (&names, class) {
            (Some(names), _) => names.iter().any(|name| name == "token_type_ids"),
            (None, Some("DebertaV2Tokenizer")) => true,
            (None, Some("BertTokenizer")) => is_bert || texts.tokenizer.is_some(),
            (None, Some(_)) => false,
            (None, None) => is_bert,
        };
        let bert = known.is_some_and(|(_, _, model, _)| *model == "WordPiece").then(|| {
            anyhow::Ok((
                keys.flag("tokenize_chinese_chars", true)?,
                keys.optional("strip_accents", "true or false")?,
                keys.flag("do_lower_case", true)?,
            ))
        });
        let prefix_space: Option<bool> = keys.optional("add_prefix_space", "true or false")?;
        let stem = class.and_then(|class| class.strip_suffix("Tokenizer")).unwrap_or_default();
        let makes_spaces = ["Roberta", "XLMRoberta", "Camembert", "Qwen2"].contains(&stem);
        // A number too large for usize means no limit.
        let max_tokens: Option<f64> = keys.optional("model_max_length", "a number")?;
        Ok(Self {
            path,
            max_tokens: max_tokens.filter(|length| *length >= 1.).map(|length| length as usize),
            gives_types,
            bert: bert.transpose()?,
            named,
            ends: known.and_then(|(.., ends)| *ends),
            prefix_space: prefix_space.filter(|_| makes_spaces),
            parts: parts(class, &keys)?,
            is_bare: config.get(TABLE).is_some(),
            model: named_class.zip(known.map(|(_, _, model, _)| *model)),
        })
    }
}

fn named_tokens(
    texts: &Texts<'_>,
    path: &str,
    map: &Map<String, Value>,
) -> Result<Vec<NamedToken>> {
    let mut named = NamedToken::all(path, map)?;
    for (path, text) in &texts.tokens {
        let map = parse(path, text, "tokens")?;
        named.extend(NamedToken::all(path, &map)?);
        if path.ends_with(ADDED_TOKENS) {
            named.extend(map.keys().map(|key| NamedToken {
                place: path.clone(),
                key: ADDED_TOKENS.to_owned(),
                token: AddedToken::from(key.as_str(), false),
                is_described: false,
            }));
        }
    }
    Ok(named)
}

/// The parts that a class's settings switch on or off: key, part, and whether it is on.
fn parts(class: Option<&str>, keys: &Keys) -> Result<Vec<(&'static str, &'static str, bool)>> {
    let is_albert = class == Some("AlbertTokenizer");
    let (key, part, is_on) = match class {
        Some("AlbertTokenizer") => {
            ("keep_accents", "StripAccents", !keys.flag("keep_accents", false)?)
        }
        Some("DebertaV2Tokenizer") => {
            ("split_by_punct", "Punctuation", keys.flag("split_by_punct", false)?)
        }
        _ => return Ok(Vec::new()),
    };
    let lower = keys.flag("do_lower_case", is_albert)?;
    Ok(vec![("do_lower_case", "Lowercase", lower), (key, part, is_on)])
}

/// The most tokens of a text, with the place that says so.
fn max_tokens(
    texts: &Texts<'_>,
    tokenizer: &TokenizerConfig,
    sizes: &Sizes,
) -> Result<(String, usize)> {
    let positions = sizes.tokens;
    if let Some((place, length)) = &texts.sentence.max_tokens {
        ensure!(
            *length <= positions || !sizes.has_table,
            "{place}: expected 1 to {positions} (max_position_embeddings), got {length}"
        );
        return Ok((place.clone(), *length));
    }
    let length = tokenizer.max_tokens.unwrap_or(positions);
    let place = format!("{}: key \"model_max_length\"", tokenizer.path);
    Ok((place, positions.min(length)))
}
