//! A model as described by a GGUF file, without its weights: sizes, tokenizer, chat template.

mod keys;
mod tokenizer;

use anyhow::{Context, Result, anyhow, bail, ensure};
use candle_dynquant::Checkpoint;
use candle_dynquant_io::keys::{Table, Treatment};
use serde::de::DeserializeOwned;
use serde_json::{Number, Value, json};

use crate::config::Config;
use crate::tensors::{ROPE_FACTORS, SHORT_FACTORS};
use keys::{BOS, TOKENS};

pub struct Metadata<'a> {
    name: String,
    checkpoint: &'a Checkpoint,
    architecture: String,
    tokens: Vec<String>,
}

const ARCHITECTURE: &str = "general.architecture";
const HEADS: &str = "attention.head_count_kv";

impl<'a> Metadata<'a> {
    /// Checks that the file is a decoder's and that no entry is ignored silently; also returns a
    /// note for each unknown key.
    pub fn read(checkpoint: &'a Checkpoint, name: String) -> Result<(Self, Vec<String>)> {
        let mut metadata =
            Self { name, checkpoint, architecture: String::new(), tokens: Vec::new() };
        metadata.architecture = metadata.get(ARCHITECTURE)?;
        let known = keys::ARCHITECTURES;
        ensure!(
            known.split(", ").any(|it| it == metadata.architecture),
            "{}: expected one of {known}, got {:?}",
            metadata.at(ARCHITECTURE),
            metadata.architecture,
        );
        let notes = metadata.check_keys()?;
        metadata.tokens = metadata.get(TOKENS)?;
        Ok((metadata, notes))
    }

    fn check_keys(&self) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for key in self.checkpoint.metadata_keys() {
            let rest = key.strip_prefix(&self.architecture);
            let rest = rest.filter(|rest| rest.starts_with('.'));
            let row = rest.map_or(key.to_owned(), |rest| format!("{{arch}}{rest}"));
            let mut special = keys::SPECIAL.iter();
            let is_special = |(known, table): &(&[&str], Table)| {
                known.contains(&&*self.architecture) && table.treatment(&row).is_some()
            };
            if special.any(is_special) {
                continue;
            }
            let value = match keys::METADATA.treatment(&row) {
                Some(Treatment::Only(_)) => self.get::<Value>(key)?.to_string(),
                _ => String::new(),
            };
            let at = self.at(key);
            match keys::METADATA.check([(&*row, value)]) {
                Err(refused) => bail!("{at}: expected {}, got {}", refused.expected, refused.got),
                Ok(unknown) if unknown.is_empty() => {}
                Ok(_) if rest.is_some() || key.starts_with("tokenizer.ggml.") => {
                    bail!("{at}: expected no such key, which may change what the model answers")
                }
                Ok(_) => notes.push(format!("{at}: not known, and not used")),
            }
        }
        Ok(notes)
    }

    /// The number of experts of a mixture; 0 without mixtures.
    fn experts(&self) -> Result<usize> {
        let key = self.key("expert_count");
        let experts = self.find(&key)?.unwrap_or(0);
        let can = self.architecture.ends_with("moe");
        ensure!(
            can && experts > 0 || self.architecture == "llama" || !can && experts == 0,
            "{}: expected {} of a {}, got {experts}",
            self.at(&key),
            if can { "1 or more" } else { "0" },
            self.architecture,
        );
        Ok(experts)
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn at(&self, key: &str) -> String {
        format!("{}: key {key:?}", self.name)
    }

    fn find<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let value = self.checkpoint.metadata(key);
        let value = value.with_context(|| self.at(key))?;
        let value = value.map(serde_json::from_value).transpose();
        value.map_err(|error| anyhow!("{}: {error}", self.at(key)))
    }

    fn get<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        let missing = || format!("{}: expected a value, got no such key", self.at(key));
        self.find(key)?.with_context(missing)
    }

    /// The sizes of the model in the form of `config.json`.
    pub fn config(&self) -> Result<Config> {
        let [is_gemma, is_phi] = ["gemma3", "phi3"].map(|name| self.architecture == name);
        let is_granite = self.architecture.starts_with("granite");
        let has = |name: &str| self.checkpoint.tensors().any(|tensor| tensor.name == name);
        let experts = self.experts()?;
        let mut config = json!({
            "model_type": match &*self.architecture {
                "gemma3" => "gemma3_text",
                "qwen3moe" => "qwen3_moe",
                "llama" if experts > 0 => "mixtral",
                other => other,
            },
            "norm_topk_prob": self.architecture == "qwen3moe",
            "is_gguf": true,
            "tie_word_embeddings": !has("lm_head.weight"),
            "rope_scaling": self.scaling()?,
            "vocab_size": self.tokens.len(),
            "eos_token_id": self.ends()?,
            "bos_token_id": self.token(BOS)?,
        });
        for (to, from, is_required) in [
            ("hidden_size", "embedding_length", true),
            ("intermediate_size", "feed_forward_length", true),
            ("num_hidden_layers", "block_count", true),
            ("num_attention_heads", "attention.head_count", true),
            ("max_position_embeddings", "context_length", true),
            ("rms_norm_eps", "attention.layer_norm_rms_epsilon", true),
            ("num_key_value_heads", HEADS, false),
            ("conv_L_cache", "shortconv.l_cache", false),
            ("num_experts_per_tok", "expert_used_count", experts > 0),
            ("moe_intermediate_size", "expert_feed_forward_length", false),
            ("head_dim", "attention.key_length", false),
            ("rope_theta", "rope.freq_base", false),
            ("sliding_window", "attention.sliding_window", false),
            ("sliding_window_pattern", "attention.sliding_window_pattern", false),
            ("rope_local_base_freq", "rope.freq_base_swa", false),
            ("attention_multiplier", "attention.scale", false),
            ("embedding_multiplier", "embedding_scale", false),
            ("residual_multiplier", "residual_scale", false),
            ("logits_scaling", "logit_scale", false),
        ] {
            let is_scale = from.ends_with("scale");
            if is_scale && !is_granite || from.starts_with("expert") && experts == 0 {
                continue;
            }
            let key = self.key(from);
            if from == HEADS && self.architecture == "lfm2" {
                self.complete_lfm2(&key, &mut config)?;
                continue;
            }
            let is_float = ["freq", "epsilon", "scale"].iter().any(|part| from.contains(part));
            let number: Option<Value> = if is_float {
                // As in llama.cpp, a scale of 0 is none.
                let number = self.find::<f64>(&key)?;
                number.filter(|number| !is_scale || *number != 0.).map(Value::from)
            } else {
                self.find::<u64>(&key)?.map(Value::from)
            };
            match number {
                Some(number) => config[to] = number,
                None if is_required => drop(self.get::<Value>(&key)?),
                None => {}
            }
        }
        if is_gemma {
            complete_gemma(&mut config);
        }
        if experts > 0 {
            config["num_experts"] = json!(experts);
        }
        if is_phi {
            self.complete_phi3(&mut config)?;
        }
        if has(ROPE_FACTORS) {
            config["rope_factors"] = json!(self.checkpoint.floats(ROPE_FACTORS)?);
        }
        let config = Config::parse(&self.name, &config.to_string())?;
        self.check_sizes(&config)?;
        Ok(config)
    }

    /// Checks the sizes that the configuration does not hold.
    fn check_sizes(&self, config: &Config) -> Result<()> {
        let has_windows = ["gemma3", "phi3"].contains(&&*self.architecture);
        let (head, all) = (config.head_dim(), config.max_position_embeddings);
        for (key, least, most) in [
            ("attention.value_length", head, head),
            ("attention.key_length_swa", head, head),
            ("attention.value_length_swa", head, head),
            ("rope.dimension_count", config.rotary_dim()?, head),
            ("rope.dimension_count_swa", head, head),
            ("attention.sliding_window", if has_windows { 0 } else { all }, usize::MAX),
        ] {
            let key = self.key(key);
            if let Some(got) = self.find(&key)?.filter(|got| !(least..=most).contains(got)) {
                bail!("{}: expected {least}, got {got}", self.at(&key));
            }
        }
        Ok(())
    }

    /// Adds the types of LFM2's layers: a layer without heads of keys has a convolution.
    fn complete_lfm2(&self, key: &str, config: &mut Value) -> Result<()> {
        let heads: Vec<u64> = self.get(key)?;
        let most = heads.iter().copied().max().unwrap_or_default();
        let kind = |heads: &u64| match *heads {
            0 => Ok("conv"),
            got if got == most => Ok("full_attention"),
            got => bail!("{}: expected {most} or 0, got {got}", self.at(key)),
        };
        let kinds = heads.iter().map(kind).collect::<Result<Vec<_>>>()?;
        config["layer_types"] = json!(kinds);
        config["num_key_value_heads"] = json!(most);
        Ok(())
    }

    /// Adds the rotary embeddings of Phi-3; a window of 0 is none.
    fn complete_phi3(&self, config: &mut Value) -> Result<()> {
        let size = |key: &str| config[key].as_u64().unwrap_or_default();
        let head = size("hidden_size") / size("num_attention_heads").max(1);
        let window = size("sliding_window");
        if let Some(rotated) = self.find::<u64>(&self.key("rope.dimension_count"))? {
            config["partial_rotary_factor"] = json!(rotated as f64 / head as f64);
        }
        config["sliding_window"] = (window > 0).then_some(window).into();
        let mut tensors = self.checkpoint.tensors();
        if tensors.any(|tensor| tensor.name == SHORT_FACTORS) {
            let [first, factor] = ["original_context_length", "attn_factor"]
                .map(|key| self.key(&format!("rope.scaling.{key}")));
            config["rope_scaling"] = json!({
                "rope_type": "longrope",
                "short_factor": self.checkpoint.floats(SHORT_FACTORS)?,
                "original_max_position_embeddings": self.get::<u64>(&first)?,
                "attention_factor": self.find::<f64>(&factor)?.unwrap_or(1.),
            });
        }
        Ok(())
    }

    /// The scaling of rotary embeddings; as in llama.cpp, a factor without a type is linear.
    fn scaling(&self) -> Result<Value> {
        let [kind, factor] = ["type", "factor"].map(|key| self.key(&format!("rope.scaling.{key}")));
        let has_factor = self.find::<Number>(&factor)?.is_some();
        let linear = || Ok(json!({"rope_type": "linear", "factor": self.get::<Number>(&factor)?}));
        match self.find::<String>(&kind)?.as_deref() {
            None if has_factor => linear(),
            None | Some("none") => Ok(Value::Null),
            Some("linear") => linear(),
            Some(got) => bail!("{}: expected none or linear, got {got:?}", self.at(&kind)),
        }
    }

    pub fn chat_template(&self) -> Result<Option<String>> {
        self.find("tokenizer.chat_template")
    }
}

/// Adds the numbers of Gemma 3 that its files omit.
fn complete_gemma(config: &mut Value) {
    if config.get("rope_local_base_freq").is_none() {
        config["rope_local_base_freq"] = json!(10_000.);
    }
    let size = |key: &str| config[key].as_u64().unwrap_or_default();
    // The 27B model, with 62 layers, has a different scale.
    if size("num_hidden_layers") == 62 {
        let of_head = size("hidden_size") / size("num_attention_heads").max(1);
        config["query_pre_attn_scalar"] = json!(of_head);
    }
}
