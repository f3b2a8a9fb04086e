//! A model as a GGUF file describes it, besides its weights: sizes, tokenizer, chat template.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_dynquant_io::input;
use serde_json::{Map, Value as Json, json};
use tokenizers::Tokenizer;

use super::config::Config;

/// The metadata of a file.
pub struct Metadata {
    name: String,
    values: HashMap<String, Value>,
    is_tied: bool,
}

/// A token that is matched as a whole and not shown: `tokenizer.ggml.token_type`.
const CONTROL: u32 = 3;

impl Metadata {
    /// Reads the head of the file, whose lengths were checked when its weights were opened.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let mut file = std::io::BufReader::new(input::open(path)?);
        let content = Content::read(&mut file).with_context(|| name.clone())?;
        if content.tensor_infos.contains_key("rope_freqs.weight") {
            bail!("{name}: tensor \"rope_freqs.weight\": expected no factors of frequencies");
        }
        Ok(Self {
            name,
            is_tied: !content.tensor_infos.contains_key("output.weight"),
            values: content.metadata,
        })
    }

    fn get(&self, key: &str) -> Result<&Value> {
        let missing = || {
            format!(
                "{}: key {key:?}: expected a value, got no such key",
                self.name
            )
        };
        self.values.get(key).with_context(missing)
    }

    fn text(&self, key: &str) -> Result<&str> {
        Ok(self.get(key)?.to_string().with_context(|| self.at(key))?)
    }

    fn at(&self, key: &str) -> String {
        format!("{}: key {key:?}", self.name)
    }

    fn number(&self, key: &str) -> Result<Json> {
        Ok(match self.get(key)? {
            Value::F32(x) => json!(x),
            Value::F64(x) => json!(x),
            other => json!(other.to_u64().with_context(|| self.at(key))?),
        })
    }

    fn list(&self, key: &str) -> Result<&Vec<Value>> {
        self.get(key)?.to_vec().with_context(|| self.at(key))
    }

    /// The sizes of the model, as `config.json` has them.
    pub fn config(&self) -> Result<Config> {
        let architecture = self.text("general.architecture")?;
        ensure!(
            ["llama", "qwen2", "qwen3"].contains(&architecture),
            "{}: expected llama, qwen2 or qwen3, got {architecture:?}",
            self.at("general.architecture"),
        );
        let scaling = format!("{architecture}.rope.scaling.type");
        if self.values.contains_key(&scaling) && self.text(&scaling)? != "none" {
            bail!(
                "{}: expected none, got {:?}",
                self.at(&scaling),
                self.text(&scaling)?
            );
        }
        let mut config = Map::new();
        config.insert("model_type".into(), json!(architecture));
        config.insert("tie_word_embeddings".into(), json!(self.is_tied));
        config.insert("vocab_size".into(), json!(self.list(TOKENS)?.len()));
        let required = [
            ("hidden_size", "embedding_length"),
            ("intermediate_size", "feed_forward_length"),
            ("num_hidden_layers", "block_count"),
            ("num_attention_heads", "attention.head_count"),
            ("max_position_embeddings", "context_length"),
            ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        ];
        for (to, from) in required {
            config.insert(to.into(), self.number(&format!("{architecture}.{from}"))?);
        }
        let optional = [
            ("num_key_value_heads", "attention.head_count_kv"),
            ("head_dim", "attention.key_length"),
            ("rope_theta", "rope.freq_base"),
        ];
        for (to, from) in optional {
            let key = format!("{architecture}.{from}");
            if self.values.contains_key(&key) {
                config.insert(to.into(), self.number(&key)?);
            }
        }
        let ends = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
        let ends = ends
            .into_iter()
            .filter(|key| self.values.contains_key(*key));
        let ends: Vec<_> = ends.map(|key| self.number(key)).collect::<Result<_>>()?;
        config.insert("eos_token_id".into(), Json::Array(ends));
        Config::parse(&self.name, &Json::Object(config).to_string())
    }

    pub fn chat_template(&self) -> Option<&str> {
        self.text("tokenizer.chat_template").ok()
    }

    /// The tokenizer, if it is a byte-level BPE whose way to cut texts is known.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let other = |key: &str, got: &str| {
            anyhow::anyhow!(
                "{}: expected a known tokenizer, got {got:?}; pass its tokenizer.json",
                self.at(key)
            )
        };
        let model = self.text("tokenizer.ggml.model")?;
        if model != "gpt2" {
            return Err(other("tokenizer.ggml.model", model));
        }
        let key = "tokenizer.ggml.pre";
        let pre = self.text(key).unwrap_or("gpt-2");
        let (normalizer, pre_tokenizer) = cuts(pre).ok_or_else(|| other(key, pre))?;
        let texts = |key: &str| -> Result<Vec<&String>> {
            let texts = self.list(key)?.iter().map(Value::to_string);
            texts
                .collect::<candle_core::Result<_>>()
                .with_context(|| self.at(key))
        };
        let tokens = texts(TOKENS)?;
        let kinds = self.list("tokenizer.ggml.token_type")?;
        let is_control = |id: usize| {
            let kind = kinds.get(id).and_then(|kind| kind.to_i32().ok());
            kind == Some(CONTROL as i32)
        };
        let control = tokens.iter().enumerate().filter(|(id, _)| is_control(*id));
        let added: Vec<_> = control
            .map(|(id, content)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": true})
            })
            .collect();
        let vocab: Map<_, _> = tokens
            .iter()
            .enumerate()
            .map(|(id, token)| (token.to_string(), json!(id)))
            .collect();
        let text = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
            "decoder": byte_level(true),
            "model": {"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "ignore_merges": pre == "llama-bpe", "vocab": vocab,
                "merges": texts("tokenizer.ggml.merges")?},
        });
        Tokenizer::from_bytes(text.to_string())
            .map_err(|e| anyhow::anyhow!("{}: expected a tokenizer, got {e}", self.name))
    }
}

const TOKENS: &str = "tokenizer.ggml.tokens";

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex})
}

/// How a text is normalized and cut before its parts are encoded, by the name of the rule.
fn cuts(pre: &str) -> Option<(Json, Json)> {
    let sequence = |first: Json, use_regex| json!({"type": "Sequence", "pretokenizers": [first, byte_level(use_regex)]});
    let split = |digits: &str| {
        let pattern = format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": false})
    };
    Some(match pre {
        "gpt-2" | "default" => (Json::Null, byte_level(true)),
        "smollm" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            (Json::Null, sequence(digits, true))
        }
        "qwen2" => (json!({"type": "NFC"}), sequence(split(""), false)),
        "llama-bpe" => (Json::Null, sequence(split("{1,3}"), false)),
        _ => return None,
    })
}
