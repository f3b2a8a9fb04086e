//! `config.json` of a decoder: the sizes and options in which the models of this family differ.

use std::fmt::Display;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_nn::VarBuilder;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::family::Family;
use crate::json;
use crate::keys;
use crate::names::{LFM2, Names, USUAL};
use crate::rope::Rope;

/// The parameters of the model; field names are the file's keys.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// The family of the architecture.
    pub model_type: Family,
    /// The number of rows of the embedding table.
    pub vocab_size: usize,
    /// The number of features of a token.
    pub hidden_size: usize,
    intermediate_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of heads of queries.
    pub num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    /// The most tokens of a text.
    pub max_position_embeddings: usize,
    /// The term that norms add to the mean square.
    #[serde(default = "default_eps", alias = "norm_eps")]
    pub rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    /// The replacement of the two keys above in newer versions of transformers.
    rope_parameters: Option<Value>,
    /// Whether the file is GGUF: a product has a bias if the file has one, and all families have the
    /// same names.
    #[serde(default)]
    pub(crate) is_gguf: bool,
    /// The scaling factors of wavelengths in GGUF, `[head_dim / 2]`.
    rope_factors: Option<Vec<f64>>,
    pub(crate) tie_word_embeddings: Option<bool>,
    #[serde(default)]
    pub(crate) attention_bias: bool,
    /// Whether the products of an MLP have biases.
    #[serde(default)]
    pub mlp_bias: bool,
    hidden_act: Option<String>,
    final_logit_softcapping: Option<f64>,
    /// The keys of the file that no table has.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// The factor of the cosines and sines of rotary embeddings.
    #[serde(skip, default = "default_scale")]
    pub rotary_scale: f64,
    /// The tokens that end a text.
    #[serde(default)]
    pub eos_token_id: Tokens,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    use_sliding_window: bool,
    max_window_layers: Option<usize>,
    // A key of Gemma.
    hidden_activation: Option<String>,
    query_pre_attn_scalar: Option<f64>,
    sliding_window_pattern: Option<usize>,
    rope_local_base_freq: Option<f64>,
    // Keys of SmolLM3: 0 for a layer without rotary embeddings.
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
    // Keys of Phi-3.
    partial_rotary_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    // Keys of Granite.
    embedding_multiplier: Option<f64>,
    attention_multiplier: Option<f64>,
    pub(crate) residual_multiplier: Option<f64>,
    pub(crate) logits_scaling: Option<f64>,
    shared_intermediate_size: Option<usize>,
    position_embedding_type: Option<String>,
    // Keys of LFM2; the first two are older names.
    pub(crate) tie_embedding: Option<bool>,
    block_ff_dim: Option<usize>,
    block_auto_adjust_ff_dim: Option<bool>,
    block_ffn_dim_multiplier: Option<f64>,
    block_multiple_of: Option<usize>,
    full_attn_idxs: Option<Vec<usize>>,
    #[serde(rename = "conv_L_cache")]
    conv_l_cache: Option<usize>,
    #[serde(default)]
    pub(crate) conv_bias: bool,
    // Keys of mixtures of experts; newer versions of transformers write the second for the first.
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    #[serde(default)]
    norm_topk_prob: bool,
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
}

/// A token or several tokens.
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

const CONVOLUTION: &str = "conv";
const EXPECTED: &str = "a decoder's configuration";

fn default_eps() -> f64 {
    1e-6
}

fn default_scale() -> f64 {
    1.
}

/// Checks a key of the file `name`.
fn expect(
    name: &str,
    key: &str,
    is_fine: bool,
    expected: impl Display,
    got: impl Display,
) -> Result<()> {
    ensure!(is_fine, "{name}: key {key:?}: expected {expected}, got {got}");
    Ok(())
}

impl Config {
    /// Reads the file and checks that the numbers fit together.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse_file(&path.display().to_string(), json::text(path)?)
    }

    /// Parses `text`, the contents of the file `name`.
    pub fn parse_file(name: &str, text: Vec<u8>) -> Result<Self> {
        let all: Map<String, Value> = json::parse(name, text, EXPECTED)?;
        let family = all.get("model_type").unwrap_or(&Value::Null);
        let family = Family::deserialize(family);
        let family = family.with_context(|| format!("{name}: key \"model_type\""))?;
        let (used, notes) = keys::config(family, all).with_context(|| name.to_owned())?;
        let config = serde_json::from_value(used);
        let config: Self = config.with_context(|| format!("{name}: expected {EXPECTED}"))?;
        let config = config.checked(name)?;
        Ok(Self { notes, ..config })
    }

    /// Parses keys that were collected from `name`, a file of another format.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        json::parse::<Self>(name, text.into(), EXPECTED)?.checked(name)
    }

    /// Checks the numbers, and computes those of rotary embeddings.
    fn checked(self, name: &str) -> Result<Self> {
        self.check(name)?;
        let positions = self.max_position_embeddings;
        let computed = self.first_positions()?.unwrap_or(positions);
        Ok(Self {
            rotary_scale: self.rotary_scale()?,
            max_position_embeddings: positions.min(computed),
            ..self
        })
    }

    fn check(&self, name: &str) -> Result<()> {
        const MAX: usize = 1 << 24;
        for (key, size) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size()),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.kv_heads()),
            ("max_position_embeddings", self.max_position_embeddings),
            ("num_experts", self.experts()),
            ("moe_intermediate_size", self.expert_size()),
            ("decoder_sparse_step", self.decoder_sparse_step.unwrap_or(1)),
            ("conv_L_cache", self.kernel_size()),
            ("block_multiple_of", self.block_multiple_of.unwrap_or(1)),
        ] {
            expect(name, key, (1..=MAX).contains(&size), format!("1 to {MAX}"), size)?;
        }
        let (heads, kv, head) = (self.num_attention_heads, self.kv_heads(), self.head_dim());
        let expected = format!("a divisor of num_attention_heads {heads}");
        expect(name, "num_key_value_heads", heads.is_multiple_of(kv), expected, kv)?;
        for (key, size) in [("head_dim", head), ("partial_rotary_factor", self.rotary_dim()?)] {
            let is_fine = (2..=MAX.min(head)).contains(&size) && size.is_multiple_of(2);
            expect(name, key, is_fine, "an even number of features of a head", size)?;
        }
        self.check_layers(name)?;
        self.check_experts(name)?;
        self.check_factors(name)?;
        let (key, act, known) = match self.model_type {
            Family::Gemma3 => ("hidden_activation", &self.hidden_activation, "gelu_pytorch_tanh"),
            _ => ("hidden_act", &self.hidden_act, "silu"),
        };
        let act = act.as_deref().unwrap_or(known);
        expect(name, key, act == known, format!("{known:?}"), format!("{act:?}"))?;
        let pattern = self.sliding_window_pattern;
        expect(name, "sliding_window_pattern", pattern != Some(0), "a number above 0", 0)?;
        let is_local = matches!(self.model_type, Family::Mistral | Family::Mixtral | Family::Phi3);
        let is_whole = is_local && self.sliding_window.is_none();
        let mut layers = 0..self.num_hidden_layers;
        let lacks = |layer| self.is_local(layer) && !is_whole && self.window(layer).is_none();
        if let Some(layer) = layers.find(|layer| lacks(*layer)) {
            let expected = format!("a size from 1 on for layer {layer}");
            expect(name, "sliding_window", false, expected, format!("{:?}", self.sliding_window))?;
        }
        expect(name, "mlp_bias", !self.mlp_bias, false, true)?;
        let is_capped = self.final_logit_softcapping.is_some();
        expect(name, "final_logit_softcapping", !is_capped, "null", "a number")?;
        // At most two kinds of layers: with a window, and without.
        let is_local = |layer: usize| self.is_local(layer);
        let other = (1..self.num_hidden_layers).find(|layer| is_local(*layer) != is_local(0));
        for layer in std::iter::once(0).chain(other) {
            let frequencies = self.frequencies(layer);
            frequencies.map_err(|e| e.context(name.to_owned()))?;
        }
        Ok(())
    }

    fn check_layers(&self, name: &str) -> Result<()> {
        let (key, count) = ("layer_types", self.num_hidden_layers);
        if let Some(kinds) = &self.layer_types {
            let all = ["full_attention", "attention", "sliding_attention"];
            let convolves = |kind: &str| self.model_type == Family::Lfm2 && kind == CONVOLUTION;
            let is_known = |kind: &String| all.contains(&&**kind) || convolves(kind);
            let is_fine = kinds.len() == count && kinds.iter().all(is_known);
            let expected = format!("{count} of full_attention and sliding_attention");
            expect(name, key, is_fine, expected, format!("{kinds:?}"))?;
        }
        let is_stated = self.model_type != Family::GraniteMoeHybrid || self.layer_types.is_some();
        let expected = format!("{count} of full_attention");
        expect(name, key, is_stated, expected, "none, which are Mamba's")?;
        if let Some(layers) = &self.no_rope_layers {
            let got = layers.len();
            expect(name, "no_rope_layers", got == count, format!("{count} numbers"), got)?;
        }
        let got = self.position_embedding_type.as_deref().unwrap_or("rope");
        let (key, is_fine) = ("position_embedding_type", ["rope", "nope"].contains(&got));
        expect(name, key, is_fine, "rope, nope or null", format!("{got:?}"))
    }

    fn check_experts(&self, name: &str) -> Result<()> {
        let (experts, chosen) = (self.experts(), self.experts_per_token());
        let (key, is_fine) = ("num_experts_per_tok", (1..=experts).contains(&chosen));
        expect(name, key, is_fine, format!("1 to {experts}, the number of experts"), chosen)?;
        let got = self.num_local_experts.unwrap_or(experts);
        let expected = format!("{experts} as num_experts");
        expect(name, "num_local_experts", got == experts, expected, got)
    }

    fn check_factors(&self, name: &str) -> Result<()> {
        let eps = self.rms_norm_eps;
        expect(name, "rms_norm_eps", (0. ..=1.).contains(&eps), "0 to 1", eps)?;
        let rope = self.rope(0)?;
        for (key, factor) in [
            ("embedding_multiplier", self.embedding_multiplier),
            ("attention_multiplier", self.attention_multiplier),
            ("residual_multiplier", self.residual_multiplier),
            ("logits_scaling", self.logits_scaling),
            ("query_pre_attn_scalar", self.query_pre_attn_scalar),
            ("attention_factor", rope.attention_factor),
            ("factor", rope.factor),
        ] {
            let factor = factor.unwrap_or(1.);
            let is_fine = (1e-6..=1e6).contains(&factor);
            expect(name, key, is_fine, "a number from 1e-6 to 1e6", factor)?;
        }
        let first = self.first_positions()?.unwrap_or(usize::MAX);
        expect(name, "original_max_position_embeddings", first > 1, "2 or more", first)
    }

    /// The number of heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// The number of features of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// The number of features within an MLP.
    pub fn intermediate_size(&self) -> usize {
        let stated = self.shared_intermediate_size.or(self.block_ff_dim);
        let stated = stated.unwrap_or(self.intermediate_size);
        let is_adjusted = self.block_auto_adjust_ff_dim.unwrap_or(true);
        if self.model_type != Family::Lfm2 || self.is_gguf || !is_adjusted {
            return stated;
        }
        let multiplier = self.block_ffn_dim_multiplier;
        let size = (multiplier.unwrap_or(1.) * (2. * stated as f64 / 3.).trunc()) as usize;
        let multiple = self.block_multiple_of.unwrap_or(256).max(1);
        size.div_ceil(multiple).saturating_mul(multiple)
    }

    /// The names of the parts of the model in its files.
    pub fn names(&self) -> &'static Names {
        match self.model_type {
            Family::Lfm2 if !self.is_gguf => &LFM2,
            _ => &USUAL,
        }
    }

    /// Whether a layer has a convolution in the place of attention.
    pub fn has_convolution(&self, layer: usize) -> bool {
        match (&self.layer_types, &self.full_attn_idxs) {
            _ if self.model_type != Family::Lfm2 => false,
            (Some(kinds), _) => (kinds.get(layer)).is_some_and(|kind| kind == CONVOLUTION),
            (None, Some(attention)) => !attention.contains(&layer),
            (None, None) => false,
        }
    }

    /// The number of tokens of a convolution.
    pub fn kernel_size(&self) -> usize {
        self.conv_l_cache.unwrap_or(3)
    }

    /// The number of experts of a mixture; 1 without mixtures.
    pub fn experts(&self) -> usize {
        self.num_experts.or(self.num_local_experts).unwrap_or(1)
    }

    /// The number of experts that compute a token.
    pub fn experts_per_token(&self) -> usize {
        self.num_experts_per_tok.unwrap_or(1)
    }

    /// The number of features within an expert.
    pub fn expert_size(&self) -> usize {
        self.moe_intermediate_size.unwrap_or(self.intermediate_size)
    }

    /// Whether the MLP of a layer is a mixture of experts.
    pub fn has_experts(&self, layer: usize) -> bool {
        let step = self.decoder_sparse_step.unwrap_or(1).max(1);
        let is_mixture = matches!(
            self.model_type,
            Family::Qwen3Moe | Family::Mixtral | Family::Olmoe | Family::GraniteMoe
        );
        is_mixture && (layer + 1).is_multiple_of(step) && !self.mlp_only_layers.contains(&layer)
    }

    /// Whether the weights of the experts of a token sum to 1.
    pub fn has_normalized_experts(&self) -> bool {
        match self.model_type {
            Family::Mixtral | Family::GraniteMoe => true,
            _ => self.norm_topk_prob,
        }
    }

    /// The names of a mixture, of the router in it, and of the gate, up and down projections of an
    /// expert, or of all experts.
    pub fn expert_names(&self) -> [&'static str; 5] {
        match self.model_type {
            _ if self.has_stacked_experts() => {
                let (both, down) = ("input_linear", "output_linear");
                ["block_sparse_moe", "router.layer", both, both, down]
            }
            Family::Mixtral if !self.is_gguf => ["block_sparse_moe", "gate", "w1", "w3", "w2"],
            _ => ["mlp", "gate", "gate_proj", "up_proj", "down_proj"],
        }
    }

    /// Whether the matrices of all experts are one tensor.
    pub fn has_stacked_experts(&self) -> bool {
        self.model_type == Family::GraniteMoe && !self.is_gguf
    }

    /// The scale of attention scores.
    pub fn scale(&self) -> f64 {
        let size = self.query_pre_attn_scalar;
        let usual = 1. / size.unwrap_or(self.head_dim() as f64).sqrt();
        self.attention_multiplier.unwrap_or(usual)
    }

    /// The factor of embeddings, if there is one.
    pub fn embed_scale(&self) -> Option<f64> {
        let gemma = || (self.hidden_size as f64).sqrt();
        self.is_gemma().then(gemma).or(self.embedding_multiplier)
    }

    /// Whether the gate and up projections of an MLP are one matrix.
    pub fn has_joined_mlp(&self) -> bool {
        self.model_type == Family::GraniteMoeHybrid
    }

    /// The number of features of a head that rotary embeddings rotate, the first ones.
    pub fn rotary_dim(&self) -> Result<usize> {
        let share = self.rope(0)?.partial_rotary_factor;
        let share = share.or(self.partial_rotary_factor).unwrap_or(1.);
        Ok((self.head_dim() as f64 * share) as usize)
    }

    /// The positions of the first training of Phi-3, if longer texts have other angles.
    fn first_positions(&self) -> Result<Option<usize>> {
        let rope = self.rope(0)?;
        let first = rope.original_max_position_embeddings;
        let first = first.or(self.original_max_position_embeddings);
        Ok(first.filter(|_| rope.kind() == "longrope"))
    }

    /// The factor of cosines and sines, as transformers chooses it.
    fn rotary_scale(&self) -> Result<f64> {
        let Some(first) = self.first_positions()? else {
            return Ok(1.);
        };
        let rope = self.rope(0)?;
        let stretched = self.max_position_embeddings as f64 / first as f64;
        let factor = rope.factor.unwrap_or(stretched);
        let scale = if factor > 1. { (1. + factor.ln() / (first as f64).ln()).sqrt() } else { 1. };
        Ok(rope.attention_factor.unwrap_or(scale))
    }

    /// Whether queries, keys and values are one matrix, and the gate and up projections of an MLP.
    pub fn has_joined_projections(&self) -> bool {
        self.model_type == Family::Phi3
    }

    /// Whether a layer rotates queries and keys.
    pub fn has_rotary(&self, layer: usize) -> bool {
        match (self.model_type, &self.no_rope_layers) {
            (Family::SmolLm3, Some(layers)) => layers.get(layer).is_none_or(|rotary| *rotary != 0),
            (Family::SmolLm3, None) => {
                let interval = self.no_rope_layer_interval.unwrap_or(4).max(1);
                !(layer + 1).is_multiple_of(interval)
            }
            (Family::GraniteMoeHybrid, _) => {
                self.position_embedding_type.as_deref() == Some("rope")
            }
            _ => true,
        }
    }

    /// Whether the output projection is the token embedding table.
    pub fn is_tied(&self) -> bool {
        let stated = self.tie_embedding.or(self.tie_word_embeddings);
        stated.unwrap_or(self.is_gemma())
    }

    /// Whether the family is Gemma 3.
    pub fn is_gemma(&self) -> bool {
        self.model_type == Family::Gemma3
    }

    /// Whether a product has a bias; `is_usual` is the answer of the configuration.
    pub fn bias(&self, is_usual: bool, vb: &VarBuilder<'_>) -> bool {
        is_usual || (self.is_gguf && vb.contains_tensor("bias"))
    }

    /// Whether queries, keys and values have a bias.
    pub fn has_bias(&self) -> bool {
        self.attention_bias || self.model_type == Family::Qwen2
    }

    /// Whether queries and keys are normalized.
    pub fn has_qk_norm(&self) -> bool {
        matches!(
            self.model_type,
            Family::Qwen3 | Family::Qwen3Moe | Family::Gemma3 | Family::Olmoe | Family::Lfm2
        )
    }

    /// The number of tokens that a layer attends to; `None` for all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let has_switch = matches!(self.model_type, Family::Qwen2 | Family::Qwen3 | Family::SmolLm3);
        let is_off = has_switch && !self.use_sliding_window;
        let window = self.sliding_window.filter(|window| *window > 0 && !is_off);
        window.filter(|_| self.is_local(layer))
    }

    /// Whether a layer attends to a window.
    fn is_local(&self, layer: usize) -> bool {
        let pattern = self.sliding_window_pattern.unwrap_or(6).max(1);
        match (&self.layer_types, self.model_type) {
            (Some(kinds), _) => (kinds.get(layer)).is_some_and(|kind| kind == "sliding_attention"),
            (None, Family::Gemma3) => !(layer + 1).is_multiple_of(pattern),
            (None, Family::Mistral | Family::Mixtral | Family::Phi3) => true,
            (None, Family::Qwen2 | Family::Qwen3) => {
                self.use_sliding_window && layer >= self.max_window_layers.unwrap_or(28)
            }
            (None, Family::SmolLm3) => self.use_sliding_window && !self.has_rotary(layer),
            (None, _) => false,
        }
    }

    /// The angles by which one position rotates each pair of a head's inputs, in a layer.
    pub fn frequencies(&self, layer: usize) -> Result<Vec<f32>> {
        let rope = self.rope(layer)?;
        let local = self.rope_local_base_freq.filter(|_| self.is_local(layer));
        let theta = rope.rope_theta.or(local).or(self.rope_theta).unwrap_or(10_000.);
        let size = self.rotary_dim()?;
        let plain = (0..size / 2).map(|i| theta.powf(-2. * i as f64 / size as f64));
        let context = self.max_position_embeddings;
        let mut scaled = rope.scaled(plain, context, self.model_type == Family::Phi3)?;
        if let Some(factors) = &self.rope_factors {
            ensure!(
                factors.len() == scaled.len(),
                "factors of rotary embeddings: expected {}, got {}",
                scaled.len(),
                factors.len(),
            );
            scaled.iter_mut().zip(factors).for_each(|(f, by)| *f /= by);
        }
        let scaled: Vec<f32> = scaled.into_iter().map(|f| f as f32).collect();
        ensure!(
            scaled.iter().all(|f| f.is_finite() && *f > 0.),
            "rotary embeddings: expected finite numbers above 0, got {scaled:?}"
        );
        Ok(scaled)
    }

    /// The parameters of a layer's rotary embeddings, chosen among the keys as transformers does.
    fn rope(&self, layer: usize) -> Result<Rope> {
        let kinds = ["full_attention", "sliding_attention"];
        let stated = self.rope_parameters.as_ref().filter(|value| !value.is_null());
        let of_kind = stated.and_then(|value| value.get(kinds[usize::from(self.is_local(layer))]));
        ensure!(
            !self.is_gemma() || self.rope_scaling.is_none() || stated.is_none(),
            "key \"rope_scaling\": expected none beside \"rope_parameters\", with which transformers joins it"
        );
        if let (Some(scaling), false) =
            (&self.rope_scaling, self.is_gemma() && self.is_local(layer))
        {
            // Gemma's local layers are not scaled.
            return Ok(scaling.clone());
        }
        let is_nested =
            stated.is_some_and(|value| kinds.iter().any(|kind| value.get(kind).is_some()));
        if let Some(got) = stated.filter(|_| is_nested != self.is_gemma()) {
            let kinds = "full_attention and sliding_attention";
            let expected = ["an object of numbers", kinds][usize::from(self.is_gemma())];
            bail!("key \"rope_parameters\": expected {expected}, got {got}");
        }
        let value = of_kind.or(stated.filter(|_| !is_nested)).filter(|value| !value.is_null());
        let rope = value.map(Rope::deserialize).transpose();
        Ok(rope
            .context("key \"rope_parameters\": expected an object of numbers")?
            .unwrap_or_default())
    }
}
