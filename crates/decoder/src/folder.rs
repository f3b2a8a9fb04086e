//! A decoder's files, read and checked together: a Hugging Face folder, or a GGUF file.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device};
use candle_dynquant::Checkpoint;
use candle_dynquant_io::keys::Table;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::normalizers::NFC;
use tokenizers::{AddedToken, Tokenizer};

use crate::chat::Template;
use crate::config::{Config, Tokens};
use crate::family::Family;
use crate::gguf::Metadata;
use crate::json::Keys;
use crate::model::Decoder;
use crate::sampling::Sampling;
use crate::special::Special;
use crate::template::{Message, Variables};
use crate::{json, tokenizer};
use crate::{keys, tensors};

/// Checks that the folder exists, in which `files` are expected.
pub fn check_folder(dir: &Path, files: &str) -> Result<()> {
    let name = dir.display();
    let got = if dir.exists() { "a file" } else { "no such folder" };
    ensure!(dir.is_dir(), "{name}: expected a folder with {files}, got {got}");
    Ok(())
}

/// Everything needed to generate texts.
pub struct Folder {
    /// The folder, or the GGUF file.
    pub path: PathBuf,
    /// The configuration of the model.
    pub config: Config,
    /// The tokenizer and the chat template.
    pub texts: Texts,
    /// The weights.
    pub checkpoint: Checkpoint,
    /// The tokens that end a text.
    pub ends: Vec<u32>,
    /// The sampling that the model's author recommends.
    pub sampling: Option<Sampling>,
    /// A line for each key of the files that nothing here uses.
    pub notes: Vec<String>,
}

/// The conversion of texts to tokens and back.
pub struct Texts {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if the model has one.
    pub template: Option<Template>,
    vocab_size: usize,
    special: Special,
}

impl Folder {
    /// Whether a folder's `config.json` is of a decoder; false if it cannot be read.
    pub fn is_decoder(dir: &Path) -> bool {
        #[derive(Deserialize)]
        struct Kind {
            #[serde(rename = "model_type")]
            _family: Family,
        }
        json::read::<Kind>(&dir.join("config.json"), "a configuration").is_ok()
    }

    /// Opens a folder with `config.json`, `tokenizer.json` and weights, or a GGUF file. `tokenizer`
    /// replaces the tokenizer.
    pub fn open(path: &Path, tokenizer: Option<&Path>) -> Result<Self> {
        if path.is_dir() {
            check_folder(path, "config.json, tokenizer.json and weights")?;
        }
        let checkpoint = Checkpoint::open(path)?;
        let (mut ends, mut sampling, mut notes) = (Vec::new(), None, Vec::new());
        let (mut named, mut begin) = (BTreeMap::new(), None);
        let (config, tokenizer, template) = if path.is_dir() {
            let mut config = Config::read(&path.join("config.json"))?;
            let beside = path.join("tokenizer.json");
            let mut tokenizer = tokenizer::read(tokenizer.unwrap_or(&beside))?;
            if config.is_tied() && tensors::has_other_head(&checkpoint)? {
                (config.tie_embedding, config.tie_word_embeddings) = (None, Some(false));
            }
            let unknown = config.notes.iter();
            notes.extend(unknown.map(|key| format!("config.json: key {key:?}: not known")));
            (ends, sampling) = generation(path, &mut notes)?;
            named = settings(path, &mut tokenizer, &mut notes)?;
            compose(path, config.model_type, &mut tokenizer)?;
            (config, tokenizer, Template::source(path)?)
        } else {
            let metadata;
            (metadata, notes) = Metadata::read(&checkpoint, path.display().to_string())?;
            begin = metadata.begin()?;
            let from_metadata = || metadata.tokenizer();
            let tokenizer = tokenizer.map_or_else(from_metadata, tokenizer::read)?;
            (metadata.config()?, tokenizer, metadata.chat_template()?)
        };
        tensors::check(path, &config, &checkpoint)?;
        notes.extend_from_slice(checkpoint.notes());
        tokenizer::check(path, &tokenizer, config.vocab_size, true)?;
        ends.extend(config.eos_token_id.as_slice());
        ends.sort_unstable();
        ends.dedup();
        if named.is_empty() {
            let eos = config.eos_token_id.as_slice().first().copied();
            for (name, id) in [("bos_token", config.bos_token_id), ("eos_token", eos)] {
                let token = id.and_then(|id| tokenizer.id_to_token(id));
                named.insert(name.to_owned(), token.unwrap_or_default());
            }
        }
        let known = named.values().filter_map(|token| tokenizer.token_to_id(token));
        let also: Vec<u32> = known.chain(ends.iter().copied()).collect();
        let template = template.map(|source| {
            let mut template = Template::naming(&source, named)?;
            template.begin = begin.and_then(|id| tokenizer.id_to_token(id));
            anyhow::Ok(template)
        });
        Ok(Self {
            path: path.to_owned(),
            checkpoint,
            texts: Texts {
                template: template.transpose().with_context(|| path.display().to_string())?,
                vocab_size: config.vocab_size,
                special: Special::new(&tokenizer, &also)?,
                tokenizer,
            },
            config,
            ends,
            sampling,
            notes,
        })
    }

    /// The model, quantized if the checkpoint is quantized.
    pub fn load(&self) -> Result<Decoder> {
        let vb = self.checkpoint.var_builder(DType::F32, &Device::Cpu);
        Decoder::load(&self.config, vb)
    }
}

impl Texts {
    /// The tokens of a text without additions, such as a chat template's output.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokens(text, false)
    }

    /// The tokens of a prompt, after the token that begins every text, if there is one.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>> {
        self.tokens(text, true)
    }

    /// The tokens of messages in the model's chat template; special tokens in the contents are
    /// plain text.
    pub fn chat(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Vec<u32>> {
        self.chat_with(messages, add_generation_prompt, &Variables::new())
    }

    /// [`chat`](Self::chat) with further variables of the template, such as `enable_thinking`.
    ///
    /// # Errors
    /// When the template refuses the messages, or does not read a variable.
    pub fn chat_with(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        variables: &Variables,
    ) -> Result<Vec<u32>> {
        let template = self.template.as_ref();
        let template = template.context("expected a model with a chat template")?;
        let special = &self.special;
        let rest = (add_generation_prompt, variables);
        self.check(special.encode(&self.tokenizer, template, messages, rest)?)
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, special);
        let encoding = encoding.map_err(|e| anyhow::anyhow!("tokenizer: {e}"))?;
        self.check(encoding.get_ids().to_vec())
    }

    /// Checks that each token has a row in the model's table.
    fn check(&self, tokens: Vec<u32>) -> Result<Vec<u32>> {
        let mut ids = tokens.iter();
        if let Some(id) = ids.find(|id| **id as usize >= self.vocab_size) {
            let (token, rows) = (self.tokenizer.id_to_token(*id), self.vocab_size);
            anyhow::bail!("expected token ids below vocab_size {rows}, got {id}, {token:?}");
        }
        Ok(tokens)
    }
}

/// The end tokens and the sampling of `generation_config.json`, or of `config.json` without it.
fn generation(dir: &Path, notes: &mut Vec<String>) -> Result<(Vec<u32>, Option<Sampling>)> {
    const FILES: [&str; 2] = ["generation_config.json", "config.json"];
    let is_separate = dir.join(FILES[0]).exists();
    let file = FILES[usize::from(!is_separate)];
    let mut keys = Keys::read(&dir.join(file))?;
    if !is_separate {
        let known = |key: &str| keys::GENERATION.treatment(key).is_some();
        keys.map.retain(|key, _| known(key));
    }
    let sampling = ["do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"];
    let has_sampling = is_separate || sampling.iter().any(|key| keys.get(key).is_some());
    notes.extend(named_notes(file, keys::GENERATION, &keys.map));
    let is_drawn = keys.get("do_sample") == Some(&Value::Bool(true));
    let number = |key: &str, default: f64, range: RangeInclusive<f64>| {
        let expected =
            || keys.fault(key, &format!("a number from {} to {}", range.start(), range.end()));
        let value = keys.get(key).filter(|value| !value.is_null());
        let value = value.map_or(Some(default), Value::as_f64);
        value.filter(|value| range.contains(value)).with_context(expected)
    };
    let drawn = Sampling {
        temperature: number("temperature", 1., 0. ..=100.)?,
        // The default of transformers.
        top_k: number("top_k", 50., 0. ..=1e9)? as usize,
        top_p: number("top_p", 1., 0. ..=1.)?,
        min_p: number("min_p", 0., 0. ..=1.)?,
        repetition_penalty: number("repetition_penalty", 1., 0.01..=100.)?,
        ..Sampling::default()
    };
    let highest = Sampling { repetition_penalty: drawn.repetition_penalty, ..Sampling::default() };
    let ends = keys.get("eos_token_id").unwrap_or(&Value::Null);
    let ends = Tokens::deserialize(ends).ok();
    let ends = ends.with_context(|| keys.fault("eos_token_id", "a token id, or several"))?;
    let sampling = has_sampling.then_some(if is_drawn { drawn } else { highest });
    Ok((ends.as_slice().to_vec(), sampling))
}

fn named_notes(file: &str, table: Table, keys: &Map<String, Value>) -> Vec<String> {
    let notes = keys::notes(table, keys).into_iter();
    notes.map(|note| format!("{file}: {note}")).collect()
}

/// The special tokens by name of `tokenizer_config.json` and its companion; those that
/// `tokenizer.json` does not add are added, as transformers does.
fn settings(
    dir: &Path,
    tokenizer: &mut Tokenizer,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, String>> {
    let mut named = BTreeMap::new();
    for file in ["special_tokens_map.json", "tokenizer_config.json"] {
        let path = dir.join(file);
        if !path.exists() {
            continue;
        }
        let keys = Keys::read(&path)?;
        notes.extend(named_notes(file, keys::TOKENIZER, &keys.map));
        let single = keys.map.iter().filter(|(key, _)| key.ends_with("_token"));
        let extra = keys.get("extra_special_tokens").and_then(Value::as_object);
        let mut tokens = Vec::new();
        for (key, value) in single.chain(extra.into_iter().flatten()) {
            if let Some(token) = special_token(value) {
                named.insert(key.clone(), token.content.clone());
                tokens.push(token);
            }
        }
        for key in ["additional_special_tokens", "extra_special_tokens"] {
            let listed = keys.get(key).and_then(Value::as_array);
            tokens.extend(listed.into_iter().flatten().filter_map(special_token));
        }
        let added = keys.get("added_tokens_decoder").and_then(Value::as_object);
        let added = || added.into_iter().flatten();
        tokens.extend(added().filter_map(|(_, value)| special_token(value)));
        add(tokenizer, tokens)?;
        let known = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        for (id, value) in added() {
            let token = special_token(value).unwrap_or_default();
            let known = id.parse().ok().and_then(|id: u32| known.get(&id));
            let cuts = |token: &AddedToken| (token.lstrip, token.rstrip, token.single_word);
            ensure!(
                known.is_some_and(|known| *known == token && cuts(known) == cuts(&token)),
                "{}: key \"added_tokens_decoder\": expected token {id} as tokenizer.json has it, got {value}",
                keys.path,
            );
        }
        let class = keys.get("tokenizer_class").and_then(Value::as_str);
        let rebuilds =
            class.is_some_and(|class| class.starts_with("GPT2") || class.starts_with("Qwen2"));
        ensure!(
            !rebuilds || keys.get("add_prefix_space") != Some(&Value::Bool(true)),
            "{}: key \"add_prefix_space\": expected false with {}, which does not take it from tokenizer.json, \
             got true",
            keys.path,
            class.unwrap_or_default(),
        );
    }
    Ok(named)
}

/// Composes characters where transformers 5 makes a `Qwen2Tokenizer`, whatever normalizer
/// `tokenizer.json` has.
fn compose(dir: &Path, family: Family, tokenizer: &mut Tokenizer) -> Result<()> {
    let path = dir.join("tokenizer_config.json");
    let keys = path.exists().then(|| Keys::read(&path)).transpose()?;
    let class = keys.iter().find_map(|keys| keys.get("tokenizer_class")?.as_str());
    let is_qwen = class.map(|class| ["Qwen2Tokenizer", "Qwen2TokenizerFast"].contains(&class));
    if match family {
        Family::Mistral | Family::Mixtral => false,
        Family::Qwen2 => true,
        Family::Qwen3 | Family::Qwen3Moe => is_qwen != Some(false),
        Family::Llama
        | Family::Gemma3
        | Family::SmolLm3
        | Family::Phi3
        | Family::Granite
        | Family::Olmoe
        | Family::GraniteMoe
        | Family::GraniteMoeHybrid
        | Family::Lfm2 => is_qwen == Some(true),
    } {
        let composed = tokenizer.with_normalizer(Some(NFC));
        composed.map_err(|e| anyhow::anyhow!("tokenizer: {e}"))?;
    }
    Ok(())
}

/// A special token, written as its text or as an object.
fn special_token(value: &Value) -> Option<AddedToken> {
    let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
    let flag = |key: &str| value.get(key).and_then(Value::as_bool).unwrap_or(false);
    let token = AddedToken::from(text, true);
    Some(
        token
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .single_word(flag("single_word"))
            .normalized(flag("normalized")),
    )
}

/// Adds tokens of the vocabulary, unless the tokenizer matches them as a whole.
fn add(tokenizer: &mut Tokenizer, mut tokens: Vec<AddedToken>) -> Result<()> {
    let added = tokenizer.get_added_vocabulary().get_vocab();
    tokens.retain(|token| {
        let is_known = tokenizer.token_to_id(&token.content).is_some();
        is_known && !added.contains_key(&token.content)
    });
    let added = tokenizer.add_special_tokens(tokens);
    added.map_err(|e| anyhow::anyhow!("tokenizer: {e}"))?;
    Ok(())
}
