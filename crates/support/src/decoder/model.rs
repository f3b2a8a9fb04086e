//! Llama and its relatives: an ordinary candle model of `candle_dynquant::nn`'s layers, with a
//! key-value cache that is appended in place and attention that needs no repeated heads.

use anyhow::Result;
use candle_core::{D, Device, Result as CandleResult, Tensor};
use candle_dynquant::nn::KvCache;
use candle_dynquant::ops::{self, Mask};
use candle_dynquant::{FusedActivation, Quantizable, nn};
use candle_nn::{Module, VarBuilder};

use super::config::Config;

/// Tokens in, scores of the next token out.
#[derive(Quantizable, Clone)]
pub struct Decoder {
    model: Model,
    lm_head: nn::Linear,
}

/// By the names of the checkpoint.
#[derive(Quantizable, Clone)]
struct Model {
    embed_tokens: nn::Embedding,
    layers: Vec<Layer>,
    norm: nn::RmsNorm,
    /// The factor of the embeddings.
    embed_scale: Option<f64>,
}

/// Keys and values of the tokens that were read.
#[derive(Clone)]
pub struct Cache(Vec<KvCache>);

impl Cache {
    /// Tokens that were read.
    pub fn len(&self) -> usize {
        self.0.first().map_or(0, KvCache::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(KvCache::bytes).sum()
    }
}

impl Decoder {
    pub fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let model = Model::load(config, vb.pp("model"))?;
        let lm_head = if config.is_tied() {
            nn::Linear::tied(&model.embed_tokens, None)
        } else {
            nn::linear_no_bias(config.hidden_size, config.vocab_size, vb.pp("lm_head"))?
        };
        Ok(Self { model, lm_head })
    }

    /// An empty cache, in the precision of the attention layers.
    pub fn cache(&self) -> Cache {
        let of = |layer: &Layer| layer.self_attn.attention.cache();
        Cache(self.model.layers.iter().map(of).collect())
    }

    /// Reads `[batch, tokens]` after those in the cache; returns the scores that follow the last of
    /// them, `[batch, vocabulary]`.
    pub fn next(&self, tokens: &Tensor, cache: &mut Cache) -> CandleResult<Tensor> {
        let hidden = self.model.forward(tokens, cache)?;
        let last = hidden.narrow(1, hidden.dim(1)? - 1, 1)?.squeeze(1)?;
        self.lm_head.forward(&self.model.norm.forward(&last)?)
    }

    /// As [`next`](Self::next), after each token: `[batch, tokens, vocabulary]`.
    pub fn all(&self, tokens: &Tensor, cache: &mut Cache) -> CandleResult<Tensor> {
        let hidden = self.model.forward(tokens, cache)?;
        self.lm_head.forward(&self.model.norm.forward(&hidden)?)
    }
}

impl Model {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let size = config.hidden_size;
        let layers = 0..config.num_hidden_layers;
        let layers = layers.map(|i| Layer::load(config, i, vb.pp("layers").pp(i)));
        Ok(Self {
            embed_tokens: nn::embedding(config.vocab_size, size, vb.pp("embed_tokens"))?,
            layers: layers.collect::<Result<_>>()?,
            norm: norm(config, size, vb.pp("norm"))?,
            embed_scale: config.is_gemma().then(|| (size as f64).sqrt()),
        })
    }

    fn forward(&self, tokens: &Tensor, cache: &mut Cache) -> CandleResult<Tensor> {
        let mut hidden = self.embed_tokens.forward(tokens)?;
        if let Some(scale) = self.embed_scale {
            hidden = (hidden * scale)?;
        }
        for (layer, cache) in self.layers.iter().zip(&mut cache.0) {
            hidden = layer.forward(&hidden, cache)?;
        }
        Ok(hidden)
    }
}

/// RMS norm; Gemma stores what its weight has beyond 1.
fn norm(config: &Config, size: usize, vb: VarBuilder<'_>) -> CandleResult<nn::RmsNorm> {
    if config.is_gemma() {
        let weight = (vb.get(size, "weight")? + 1.)?;
        return Ok(nn::RmsNorm::new(weight, config.rms_norm_eps));
    }
    nn::rms_norm(size, config.rms_norm_eps, vb)
}

#[derive(Quantizable, Clone)]
struct Layer {
    input_layernorm: nn::RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: nn::RmsNorm,
    pre_feedforward_layernorm: Option<nn::RmsNorm>,
    mlp: Mlp,
    post_feedforward_layernorm: Option<nn::RmsNorm>,
}

impl Layer {
    fn load(config: &Config, index: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let norm = |name| norm(config, config.hidden_size, vb.pp(name));
        let gemmas = |name| config.is_gemma().then(|| norm(name)).transpose();
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: SelfAttention::load(config, index, vb.pp("self_attn"))?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: gemmas("pre_feedforward_layernorm")?,
            mlp: Mlp::load(config, vb.pp("mlp"))?,
            post_feedforward_layernorm: gemmas("post_feedforward_layernorm")?,
        })
    }

    fn forward(&self, xs: &Tensor, cache: &mut KvCache) -> CandleResult<Tensor> {
        let attended = self.input_layernorm.forward(xs)?;
        let attended = self.self_attn.forward(&attended, cache)?;
        match (
            &self.pre_feedforward_layernorm,
            &self.post_feedforward_layernorm,
        ) {
            (Some(before), Some(after)) => {
                let xs = (xs + self.post_attention_layernorm.forward(&attended)?)?;
                &xs + after.forward(&self.mlp.forward(&before.forward(&xs)?)?)?
            }
            _ => {
                let xs = (xs + attended)?;
                &xs + self
                    .mlp
                    .forward(&self.post_attention_layernorm.forward(&xs)?)?
            }
        }
    }
}

#[derive(Quantizable, Clone)]
struct SelfAttention {
    q_proj: nn::Linear,
    k_proj: nn::Linear,
    v_proj: nn::Linear,
    o_proj: nn::Linear,
    q_norm: Option<nn::RmsNorm>,
    k_norm: Option<nn::RmsNorm>,
    attention: nn::Attention,
    rotary: Rotary,
    head_dim: usize,
    window: Option<usize>,
}

impl SelfAttention {
    fn load(config: &Config, index: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let (size, head_dim) = (config.hidden_size, config.head_dim());
        let (q, kv) = (
            config.num_attention_heads * head_dim,
            config.kv_heads() * head_dim,
        );
        let bias = config.has_bias();
        let linear = |out, name| nn::linear_b(size, out, bias, vb.pp(name));
        let norm = |name| {
            let norm = || norm(config, head_dim, vb.pp(name));
            config.has_qk_norm().then(norm).transpose()
        };
        Ok(Self {
            q_proj: linear(q, "q_proj")?,
            k_proj: linear(kv, "k_proj")?,
            v_proj: linear(kv, "v_proj")?,
            o_proj: nn::linear_b(q, size, config.has_output_bias(), vb.pp("o_proj"))?,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            attention: nn::Attention::load(config.scale(), vb.pp("attention")),
            rotary: Rotary::new(&config.frequencies(index)?)?,
            head_dim,
            window: config.window(index),
        })
    }

    fn forward(&self, xs: &Tensor, cache: &mut KvCache) -> CandleResult<Tensor> {
        let (batch, tokens, _) = xs.dims3()?;
        let projections = [&self.q_proj, &self.k_proj, &self.v_proj];
        let [q, k, v] = nn::Linear::forward_each(projections, xs)?;
        let heads = |xs: Tensor| xs.reshape((batch, tokens, (), self.head_dim));
        let (mut q, mut k, v) = (heads(q)?, heads(k)?, heads(v)?);
        if let (Some(of_q), Some(of_k)) = (&self.q_norm, &self.k_norm) {
            (q, k) = (of_q.forward(&q)?, of_k.forward(&k)?);
        }
        let (cos, sin) = self.rotary.at(cache.len(), tokens)?;
        let q = ops::rope_thd(&q, &cos, &sin)?.transpose(1, 2)?;
        let k = ops::rope_thd(&k, &cos, &sin)?.transpose(1, 2)?;
        cache.append(&k, &v.transpose(1, 2)?)?;
        let ys = match self.window.filter(|window| cache.len() > *window) {
            None => self.attention.forward_cached(&q, cache, Mask::Causal)?,
            Some(window) => {
                let mask = within(window, tokens, cache.len())?;
                self.attention
                    .forward_cached(&q, cache, Mask::Include(&mask))?
            }
        };
        self.o_proj
            .forward(&ys.transpose(1, 2)?.flatten_from(D::Minus2)?)
    }
}

/// 1 for each of `keys` that one of the last `queries` sees: itself and those before it, `window`
/// in all.
fn within(window: usize, queries: usize, keys: usize) -> CandleResult<Tensor> {
    let sees = |i| {
        let own = keys - queries + i;
        (0..keys).map(move |key| u8::from(key <= own && key + window > own))
    };
    let mask: Vec<u8> = (0..queries).flat_map(sees).collect();
    Tensor::from_vec(mask, (queries, keys), &Device::Cpu)
}

/// Rotary embeddings: the angles of each pair of inputs.
#[derive(Quantizable, Clone)]
struct Rotary {
    #[quantizable(skip)]
    frequencies: Tensor,
}

impl Rotary {
    fn new(frequencies: &[f32]) -> CandleResult<Self> {
        let frequencies = Tensor::from_slice(frequencies, (1, frequencies.len()), &Device::Cpu)?;
        Ok(Self { frequencies })
    }

    /// Cosines and sines of the positions from `start` on, `[positions, head_dim / 2]`.
    fn at(&self, start: usize, positions: usize) -> CandleResult<(Tensor, Tensor)> {
        let positions = Tensor::arange(start as u32, (start + positions) as u32, &Device::Cpu)?;
        let positions = positions.to_dtype(self.frequencies.dtype())?.unsqueeze(1)?;
        let angles = positions.matmul(&self.frequencies)?;
        Ok((angles.cos()?, angles.sin()?))
    }
}

/// Two products, their combination, and a third.
#[derive(Quantizable, Clone)]
struct Mlp {
    gate_proj: nn::Linear,
    up_proj: nn::Linear,
    down_proj: nn::Linear,
    is_gelu: bool,
}

impl Mlp {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let (size, inner) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            gate_proj: nn::linear_no_bias(size, inner, vb.pp("gate_proj"))?,
            up_proj: nn::linear_no_bias(size, inner, vb.pp("up_proj"))?,
            down_proj: nn::linear_no_bias(inner, size, vb.pp("down_proj"))?,
            is_gelu: config.is_gemma(),
        })
    }

    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        let [gate, up] = nn::Linear::forward_each([&self.gate_proj, &self.up_proj], xs)?;
        let activation = if self.is_gelu {
            FusedActivation::GeluTanh
        } else {
            FusedActivation::Silu
        };
        self.down_proj
            .forward(&ops::activate_mul(&gate, &up, activation)?)
    }
}
