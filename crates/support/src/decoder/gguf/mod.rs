//! A model as a GGUF file describes it, besides its weights: sizes, tokenizer, chat template.

mod tokenizer;

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, Value};
use candle_dynquant_io::input;
use serde_json::{Value as Json, json};

use super::config::Config;

/// The metadata of a file.
pub struct Metadata {
    name: String,
    values: HashMap<String, Value>,
    is_tied: bool,
    rope_factors: Option<Vec<f32>>,
}

/// The tensor of Llama 3's scaling: a factor of the wavelength of each pair of a head's inputs.
const ROPE_FACTORS: &str = "rope_freqs.weight";

impl Metadata {
    /// Reads the head of the file, whose lengths were checked when its weights were opened.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let mut file = std::io::BufReader::new(input::open(path)?);
        let content = Content::read(&mut file).with_context(|| name.clone())?;
        let factors = content.tensor_infos.contains_key(ROPE_FACTORS).then(|| {
            let factors = content.tensor(&mut file, ROPE_FACTORS, &Device::Cpu)?;
            let factors = factors.dequantize(&Device::Cpu)?;
            factors.flatten_all()?.to_vec1::<f32>()
        });
        let at = || format!("{name}: tensor {ROPE_FACTORS:?}");
        Ok(Self {
            rope_factors: factors.transpose().with_context(at)?,
            name,
            is_tied: !content.tensor_infos.contains_key("output.weight"),
            values: content.metadata,
        })
    }

    fn get(&self, key: &str) -> Result<&Value> {
        let missing = || format!("{}: expected a value, got no such key", self.at(key));
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
        let family = match architecture {
            "llama" | "qwen2" | "qwen3" => architecture,
            "gemma3" => "gemma3_text",
            got => bail!(
                "{}: expected llama, qwen2, qwen3 or gemma3, got {got:?}",
                self.at("general.architecture"),
            ),
        };
        let mut config = json!({"model_type": family, "tie_word_embeddings": self.is_tied});
        let scaling = format!("{architecture}.rope.scaling.type");
        if self.values.contains_key(&scaling) {
            match self.text(&scaling)? {
                "none" => {}
                "linear" => {
                    let factor = self.number(&format!("{architecture}.rope.scaling.factor"))?;
                    config["rope_scaling"] = json!({"rope_type": "linear", "factor": factor});
                }
                got => bail!(
                    "{}: expected none or linear, got {got:?}",
                    self.at(&scaling)
                ),
            }
        }
        config["vocab_size"] = json!(self.list(TOKENS)?.len());
        for (to, from, is_required) in [
            ("hidden_size", "embedding_length", true),
            ("intermediate_size", "feed_forward_length", true),
            ("num_hidden_layers", "block_count", true),
            ("num_attention_heads", "attention.head_count", true),
            ("max_position_embeddings", "context_length", true),
            ("rms_norm_eps", "attention.layer_norm_rms_epsilon", true),
            ("num_key_value_heads", "attention.head_count_kv", false),
            ("head_dim", "attention.key_length", false),
            ("rope_theta", "rope.freq_base", false),
            ("sliding_window", "attention.sliding_window", false),
            ("rope_local_base_freq", "rope.freq_base_swa", false),
        ] {
            let key = format!("{architecture}.{from}");
            if is_required || self.values.contains_key(&key) {
                config[to] = self.number(&key)?;
            }
        }
        if architecture == "gemma3" {
            complete_gemma(&mut config);
        }
        let ends = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
        let ends = ends
            .into_iter()
            .filter(|key| self.values.contains_key(*key));
        let ends: Vec<_> = ends.map(|key| self.number(key)).collect::<Result<_>>()?;
        config["eos_token_id"] = json!(ends);
        if let Some(factors) = &self.rope_factors {
            config["rope_factors"] = json!(factors);
        }
        Config::parse(&self.name, &config.to_string())
    }

    pub fn chat_template(&self) -> Option<&str> {
        self.text("tokenizer.chat_template").ok()
    }
}

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Adds the numbers of Gemma 3 that its files do not have.
fn complete_gemma(config: &mut Json) {
    if config.get("rope_local_base_freq").is_none() {
        config["rope_local_base_freq"] = json!(10_000.);
    }
    let size = |key: &str| config[key].as_u64().unwrap_or_default();
    // The model of 27 billion parameters, of 62 layers, has a scale of its own.
    if size("num_hidden_layers") == 62 {
        let of_head = size("hidden_size") / size("num_attention_heads").max(1);
        config["query_pre_attn_scalar"] = json!(of_head);
    }
}
