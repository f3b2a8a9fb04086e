//! `config.json` of a decoder: the sizes and options in which the models of this family differ.

use std::path::Path;

use anyhow::{Result, ensure};
use candle_nn::VarBuilder;
use serde::Deserialize;

use crate::json;

/// The parameters of the model; field names are the file's keys.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub model_type: Family,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    #[serde(default = "default_eps")]
    pub rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    /// In newer versions of transformers, in place of the two keys above.
    rope_parameters: Option<serde_json::Value>,
    /// GGUF's: a product has a bias where the file has one.
    #[serde(default)]
    biases_of_file: bool,
    /// GGUF's scaling: factors of wavelengths, `[head_dim / 2]`.
    rope_factors: Option<Vec<f64>>,
    tie_word_embeddings: Option<bool>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    hidden_act: Option<String>,
    final_logit_softcapping: Option<f64>,
    #[serde(default)]
    pub eos_token_id: Tokens,
    pub bos_token_id: Option<u32>,
    // Gemma's.
    query_pre_attn_scalar: Option<f64>,
    sliding_window: Option<usize>,
    sliding_window_pattern: Option<usize>,
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    use_sliding_window: bool,
    rope_local_base_freq: Option<f64>,
}

/// The models of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Also TinyLlama and SmolLM.
    Llama,
    /// Every layer sees a window of tokens, if there is one.
    Mistral,
    /// Queries, keys and values have a bias.
    Qwen2,
    /// Queries and keys are normalized.
    Qwen3,
    /// Norms before and after each part, windows of attention, a scaled embedding.
    #[serde(rename = "gemma3_text")]
    Gemma3,
}

/// One token or several.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum Tokens {
    #[default]
    None,
    One(u32),
    Several(Vec<u32>),
}

impl Tokens {
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::None => &[],
            Self::One(token) => std::slice::from_ref(token),
            Self::Several(tokens) => tokens,
        }
    }
}

/// How positions beyond the trained ones become angles.
#[derive(Clone, Debug, Default, Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
}

fn default_eps() -> f64 {
    1e-6
}

impl Config {
    /// Reads the file and checks what the numbers must satisfy together.
    pub fn read(path: &Path) -> Result<Self> {
        let config: Self = json::read(path, "a decoder's configuration")?;
        config.check(&path.display().to_string())?;
        Ok(config)
    }

    /// Of a text with the keys of the file, from `name`.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let config: Self = json::parse(name, text.into(), "a decoder's configuration")?;
        config.check(name)?;
        Ok(config)
    }

    fn check(&self, name: &str) -> Result<()> {
        const MAX: usize = 1 << 24;
        let positive = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.kv_heads()),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        for (key, size) in positive {
            ensure!(
                (1..=MAX).contains(&size),
                "{name}: key {key:?}: expected 1 to {MAX}, got {size}"
            );
        }
        let (heads, kv, head) = (self.num_attention_heads, self.kv_heads(), self.head_dim());
        ensure!(
            heads.is_multiple_of(kv),
            "{name}: key \"num_key_value_heads\": expected a divisor of num_attention_heads {heads}, got {kv}"
        );
        ensure!(
            (2..=MAX).contains(&head) && head.is_multiple_of(2),
            "{name}: key \"head_dim\": expected an even number, got {head}"
        );
        if let Some(kinds) = &self.layer_types {
            ensure!(
                kinds.len() == self.num_hidden_layers,
                "{name}: key \"layer_types\": expected {} of them, got {}",
                self.num_hidden_layers,
                kinds.len(),
            );
        }
        let (act, all) = (self.hidden_act.as_deref(), ["silu", "gelu_pytorch_tanh"]);
        let known = all[usize::from(self.is_gemma())];
        ensure!(
            act.is_none_or(|act| act == known),
            "{name}: key \"hidden_act\": expected {known:?}, got {act:?}"
        );
        ensure!(
            !self.use_sliding_window || self.layer_types.is_some(),
            "{name}: key \"use_sliding_window\": expected \"layer_types\" beside it"
        );
        ensure!(
            !self.mlp_bias,
            "{name}: key \"mlp_bias\": expected false, got true"
        );
        ensure!(
            self.final_logit_softcapping.is_none(),
            "{name}: key \"final_logit_softcapping\": expected null, got a number"
        );
        // Layers of two kinds at most: that see a window, and that see all.
        let is_local = |layer: &usize| self.window(*layer).is_some();
        let other = (1..self.num_hidden_layers).find(|layer| is_local(layer) != is_local(&0));
        for layer in std::iter::once(0).chain(other) {
            let frequencies = self.frequencies(layer);
            frequencies.map_err(|e| e.context(name.to_owned()))?;
        }
        Ok(())
    }

    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub fn head_dim(&self) -> usize {
        self.head_dim
            .unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// The factor of attention's scores.
    pub fn scale(&self) -> f64 {
        let of = self.query_pre_attn_scalar;
        1. / of.unwrap_or(self.head_dim() as f64).sqrt()
    }

    /// Whether the output projection is the table of tokens.
    pub fn is_tied(&self) -> bool {
        self.tie_word_embeddings.unwrap_or(self.is_gemma())
    }

    pub fn is_gemma(&self) -> bool {
        self.model_type == Family::Gemma3
    }

    /// Whether a product has a bias, which by the configuration it has or not.
    pub fn bias(&self, is_usual: bool, vb: &VarBuilder<'_>) -> bool {
        if self.biases_of_file {
            vb.contains_tensor("bias")
        } else {
            is_usual
        }
    }

    /// Whether queries, keys and values have a bias.
    pub fn has_bias(&self) -> bool {
        self.attention_bias || self.model_type == Family::Qwen2
    }

    /// Whether the projection of attention's result has a bias.
    pub fn has_output_bias(&self) -> bool {
        self.attention_bias
    }

    /// Whether queries and keys are normalized.
    pub fn has_qk_norm(&self) -> bool {
        matches!(self.model_type, Family::Qwen3 | Family::Gemma3)
    }

    /// The number of tokens that a layer sees, if it does not see all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let pattern = self.sliding_window_pattern.unwrap_or(6).max(1);
        let is_local = match (&self.layer_types, self.model_type) {
            (Some(kinds), _) => kinds
                .get(layer)
                .is_some_and(|kind| kind == "sliding_attention"),
            (None, Family::Gemma3) => !(layer + 1).is_multiple_of(pattern),
            (None, Family::Mistral) => true,
            (None, _) => false,
        };
        self.sliding_window.filter(|window| is_local && *window > 0)
    }

    /// The angle by which one position turns each pair of a head's inputs, in a layer.
    pub fn frequencies(&self, layer: usize) -> Result<Vec<f32>> {
        let parameters = self.parameters(layer)?;
        let theta = parameters.as_ref().and_then(|rope| rope.rope_theta);
        let local = self.window(layer).and(self.rope_local_base_freq);
        let theta = theta.or(local).or(self.rope_theta).unwrap_or(10_000.);
        let head = self.head_dim();
        let plain = (0..head / 2).map(|i| theta.powf(-2. * i as f64 / head as f64));
        let scaling = match (parameters, local) {
            (Some(parameters), _) => Some(parameters),
            // Gemma's local layers are not scaled.
            (None, Some(_)) => None,
            (None, None) => self.rope_scaling.clone(),
        };
        let rope = scaling.unwrap_or_default();
        let kind = rope.rope_type.as_deref().unwrap_or("default");
        let factor = rope.factor.unwrap_or(1.);
        let mut scaled: Vec<f64> = match kind {
            "default" => plain.collect(),
            "linear" => plain.map(|f| f / factor).collect(),
            "llama3" => plain.map(|f| rope.llama3(f, factor)).collect(),
            other => anyhow::bail!(
                "key \"rope_scaling\": expected rope_type default, linear or llama3, got {other:?}"
            ),
        };
        if let Some(factors) = &self.rope_factors {
            ensure!(
                factors.len() == scaled.len(),
                "factors of rotary embeddings: expected {}, got {}",
                scaled.len(),
                factors.len(),
            );
            scaled.iter_mut().zip(factors).for_each(|(f, by)| *f /= by);
        }
        ensure!(
            scaled.iter().all(|f| f.is_finite() && *f > 0.),
            "rotary embeddings: expected finite numbers above 0, got {scaled:?}"
        );
        Ok(scaled.into_iter().map(|f| f as f32).collect())
    }

    /// `rope_parameters` of a layer: one object, or one for each type of layer.
    fn parameters(&self, layer: usize) -> Result<Option<Rope>> {
        let Some(value) = &self.rope_parameters else {
            return Ok(None);
        };
        let kind = if self.window(layer).is_some() {
            "sliding_attention"
        } else {
            "full_attention"
        };
        let value = value.get(kind).unwrap_or(value);
        Ok(Some(serde_json::from_value(value.clone()).map_err(
            |e| anyhow::anyhow!("key \"rope_parameters\": expected an object of numbers, got {e}"),
        )?))
    }
}

impl Rope {
    /// Llama 3's: long waves are slowed down, short ones are not, and there is a slope between.
    fn llama3(&self, frequency: f64, factor: f64) -> f64 {
        let low = self.low_freq_factor.unwrap_or(1.);
        let high = self.high_freq_factor.unwrap_or(4.);
        let context = self.original_max_position_embeddings.unwrap_or(8192) as f64;
        let turns = context * frequency / std::f64::consts::TAU;
        let share = ((turns - low) / (high - low)).clamp(0., 1.);
        frequency * (share + (1. - share) / factor)
    }
}
