//! Llama and its relatives: an ordinary candle model of `candle_dynquant::nn`'s layers, with a
//! key-value cache that is appended in place and attention that needs no repeated heads.

use anyhow::Result;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_dynquant::nn::KvCache;
use candle_dynquant::ops::{self, Mask, Precision};
use candle_dynquant::{Quantizable, nn};
use candle_nn::{Module, VarBuilder};

use crate::cache::{Cache, LayerCache, Past};
use crate::config::Config;
use crate::convolution::ShortConvolution;
use crate::family::Family;
use crate::mlp::{Mlp, SharedMlp};

/// A model that maps tokens to scores of the next token.
#[derive(Quantizable, Clone)]
pub struct Decoder {
    model: Model,
    lm_head: nn::Linear,
    /// The divisor of the scores.
    logits_scaling: Option<f64>,
}

/// The layers under the names of the checkpoint.
#[derive(Quantizable, Clone)]
struct Model {
    embed_tokens: nn::Embedding,
    layers: Vec<Layer>,
    norm: nn::RmsNorm,
    embed_scale: Option<f64>,
    /// The factor of the cosines and sines of rotary embeddings.
    rotary_scale: f64,
    /// The rotary embeddings: the angle by which a position rotates each pair of a head's inputs,
    /// `[1, head_dim / 2]`. Layers with equal frequencies share an entry.
    #[quantizable(skip)]
    rotary: Vec<Tensor>,
}

/// The number of tokens in a step of [`next`](Decoder::next).
const STEP: usize = 512;

impl Decoder {
    /// Loads the model from tensors under the names of transformers.
    pub fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        // The head is loaded before the layers, which gives the allocator time to return the memory
        // of its reading.
        let head = || nn::linear_no_bias(config.hidden_size, config.vocab_size, vb.pp("lm_head"));
        let head = (!config.is_tied()).then(head).transpose()?;
        let model = Model::load(config, vb.pp("model"))?;
        let lm_head = head.unwrap_or_else(|| nn::Linear::tied(&model.embed_tokens, None));
        Ok(Self { model, lm_head, logits_scaling: config.logits_scaling })
    }

    /// An empty cache in the precision of the attention layers, with room for `tokens` tokens of
    /// each sequence.
    pub fn cache_for(&self, tokens: usize) -> Cache {
        let empty = |layer: &Layer| match layer.precision() {
            Some(precision) => LayerCache::Attention(KvCache::with_capacity(precision, tokens)),
            None => LayerCache::Convolution(Past::default()),
        };
        Cache(self.model.layers.iter().map(empty).collect())
    }

    /// The most tokens of a text that attention can handle: in 8 bits the sum over the keys must
    /// fit an i32.
    pub fn most_tokens(&self) -> usize {
        let mut layers = self.model.layers.iter();
        let is_int8 = |layer: &Layer| layer.precision() == Some(Precision::Int8);
        if layers.any(is_int8) { 1 << 16 } else { usize::MAX }
    }

    /// Whether a token has the same scores, bit for bit, read alone and with others: no
    /// scale is shared by the rows of a call, which a few tokens show.
    pub fn has_independent_rows(&self) -> CandleResult<bool> {
        let any = Tensor::zeros((1, 1), DType::U32, &Device::Cpu)?;
        let vocabulary = self.next(&any, &mut self.cache())?.dim(1)?;
        let tokens = [1, 2, 3, 4].map(|i| (i * 7919 % vocabulary) as u32);
        let tokens = Tensor::new(&tokens, &Device::Cpu)?.unsqueeze(0)?;
        let together = self.all(&tokens, &mut self.cache())?.squeeze(0)?;
        let mut cache = self.cache();
        for (row, together) in together.to_vec2::<f32>()?.iter().enumerate() {
            let alone = self.next(&tokens.narrow(1, row, 1)?, &mut cache)?;
            let alone = alone.flatten_all()?.to_vec1::<f32>()?;
            let mut pairs = alone.iter().zip(together);
            if !pairs.all(|(a, b)| a.to_bits() == b.to_bits()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// An empty cache that grows with its tokens.
    pub fn cache(&self) -> Cache {
        self.cache_for(0)
    }

    /// Reads `[batch, tokens]` after the tokens in the cache; returns the scores after the last
    /// token, `[batch, vocabulary]`. Many tokens are read in several steps, with the same bits in
    /// less memory.
    pub fn next(&self, tokens: &Tensor, cache: &mut Cache) -> CandleResult<Tensor> {
        let (batch, mut left) = tokens.dims2()?;
        let most = (STEP / batch.max(1)).max(1);
        loop {
            let count = left.min(most);
            let scores = match left - count {
                0 => Scores::Last,
                _ => Scores::None,
            };
            let found = self.step(&mut [Part {
                tokens: &tokens.narrow(1, tokens.dim(1)? - left, count)?,
                cache,
                scores,
            }])?;
            left -= count;
            if left == 0 {
                return Ok(found);
            }
        }
    }

    /// Reads tokens as [`next`](Self::next) does, and returns the scores after each:
    /// `[batch, tokens, vocabulary]`.
    pub fn all(&self, tokens: &Tensor, cache: &mut Cache) -> CandleResult<Tensor> {
        let scores = Scores::All;
        let all = self.step(&mut [Part { tokens, cache, scores }])?;
        let (batch, tokens) = tokens.dims2()?;
        all.reshape((batch, tokens, ()))
    }

    /// Reads several parts at once: their tokens are rows of one matrix, and only attention
    /// separates the parts. Returns the requested scores, `[rows, vocabulary]`, in the order of the
    /// parts.
    ///
    /// # Errors
    /// When a cache is from another model, or has another batch. The caches are then unusable.
    pub fn step(&self, parts: &mut [Part<'_>]) -> CandleResult<Tensor> {
        let hidden = self.model.forward(parts)?.select(&requested(parts)?)?;
        let (normal, _) = hidden.normal(&self.model.norm)?;
        let scores = self.lm_head.forward(&normal)?;
        match self.logits_scaling {
            Some(scaling) => scores / scaling,
            None => Ok(scores),
        }
    }
}

/// The inputs of a step, for sequences of equal length.
pub struct Part<'a> {
    /// The tokens, `[batch, tokens]`.
    pub tokens: &'a Tensor,
    /// The cache of the tokens before.
    pub cache: &'a mut Cache,
    /// The tokens whose scores are requested.
    pub scores: Scores,
}

/// The tokens of a part whose scores are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// No token.
    None,
    /// The last token.
    Last,
    /// Every token.
    All,
}

fn requested(parts: &[Part<'_>]) -> CandleResult<Tensor> {
    let (mut rows, mut start) = (Vec::new(), 0);
    for part in parts {
        let (batch, tokens) = part.tokens.dims2()?;
        let indices = start..start + (batch * tokens) as u32;
        start = indices.end;
        match part.scores {
            Scores::None => {}
            Scores::Last => rows.extend(indices.skip(tokens - 1).step_by(tokens)),
            Scores::All => rows.extend(indices),
        }
    }
    let count = rows.len();
    Tensor::from_vec(rows, count, &Device::Cpu)
}

impl Model {
    fn load(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let size = config.hidden_size;
        let (mut layers, mut frequencies) = (Vec::new(), Vec::new());
        for index in 0..config.num_hidden_layers {
            let mut rotary = None;
            if config.has_rotary(index) {
                let angles = config.frequencies(index)?;
                let known = frequencies.iter().position(|known| *known == angles);
                rotary = known.or(Some(frequencies.len()));
                if known.is_none() {
                    frequencies.push(angles);
                }
            }
            let vb = vb.pp("layers").pp(index);
            layers.push(Layer::load(config, (index, rotary), vb)?);
        }
        let rotary =
            (frequencies.iter()).map(|row| Tensor::from_slice(row, (1, row.len()), &Device::Cpu));
        Ok(Self {
            embed_tokens: nn::embedding(config.vocab_size, size, vb.pp("embed_tokens"))?,
            layers,
            norm: norm(config, size, vb.pp(config.names().norm))?,
            embed_scale: config.embed_scale(),
            rotary_scale: config.rotary_scale,
            rotary: rotary.collect::<CandleResult<_>>()?,
        })
    }

    /// The last hidden states of all tokens.
    fn forward(&self, parts: &mut [Part<'_>]) -> CandleResult<Hidden> {
        let (mut tokens, mut positions, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        for part in &*parts {
            let (batch, count) = part.tokens.dims2()?;
            let layers = part.cache.0.len();
            if layers != self.layers.len() {
                let expected = self.layers.len();
                candle_core::bail!("cache: expected one of {expected} layers, got {layers}");
            }
            if count == 0 {
                candle_core::bail!("tokens: expected 1 or more of each sequence, got none");
            }
            tokens.push(part.tokens.flatten_all()?);
            shapes.push([batch, count]);
            let start = part.cache.len() as u32;
            positions.extend((0..batch).flat_map(|_| start..start + count as u32));
        }
        let rows = positions.len();
        let positions = Tensor::from_vec(positions, (rows, 1), &Device::Cpu)?;
        let angles = self.rotary.iter().map(|rotary| {
            let (cos, sin) = angles(rotary, &positions)?;
            if self.rotary_scale == 1. {
                return Ok((cos, sin));
            }
            Ok(((cos * self.rotary_scale)?, (sin * self.rotary_scale)?))
        });
        let angles = angles.collect::<CandleResult<Vec<_>>>()?;
        let mut sum = self.embed_tokens.forward(&Tensor::cat(&tokens, 0)?)?;
        if let Some(scale) = self.embed_scale {
            sum = (sum * scale)?;
        }
        let mut hidden = Hidden { sum, term: None };
        for (index, layer) in self.layers.iter().enumerate() {
            let caches = parts.iter_mut().map(|part| &mut part.cache.0[index]);
            let mut rows = Rows { angles: &angles, shapes: &shapes, caches: caches.collect() };
            hidden = layer.forward(hidden, &mut rows)?;
        }
        Ok(hidden)
    }
}

/// The hidden states, `[rows, hidden]`: a sum, and a term that the next norm adds to it.
struct Hidden {
    sum: Tensor,
    term: Option<Tensor>,
}

impl Hidden {
    /// The norm of the complete sum, and the sum.
    fn normal(self, norm: &nn::RmsNorm) -> CandleResult<(Tensor, Tensor)> {
        match &self.term {
            Some(term) => norm.forward_add(term, &self.sum),
            None => Ok((norm.forward(&self.sum)?, self.sum)),
        }
    }

    fn select(&self, rows: &Tensor) -> CandleResult<Self> {
        let select = |xs: &Tensor| xs.index_select(rows, 0);
        Ok(Self { sum: select(&self.sum)?, term: self.term.as_ref().map(select).transpose()? })
    }
}

/// The assignment of the rows of a step to parts, for one layer.
struct Rows<'a> {
    /// The cosines and sines, `[rows, head_dim / 2]`, of each of the model's frequencies.
    angles: &'a [(Tensor, Tensor)],
    /// The batch size and number of tokens of each part.
    shapes: &'a [[usize; 2]],
    caches: Vec<&'a mut LayerCache>,
}

/// An RMS norm; Gemma stores its weight minus 1.
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
    self_attn: Option<SelfAttention>,
    /// A convolution, in the place of attention.
    conv: Option<ShortConvolution>,
    post_attention_layernorm: nn::RmsNorm,
    pre_feedforward_layernorm: Option<nn::RmsNorm>,
    mlp: Option<Mlp>,
    shared_mlp: Option<SharedMlp>,
    post_feedforward_layernorm: Option<nn::RmsNorm>,
    /// The factor of the results of attention and MLP.
    residual_scale: Option<f64>,
}

impl Layer {
    fn load(config: &Config, indices: (usize, Option<usize>), vb: VarBuilder<'_>) -> Result<Self> {
        let norm = |name| norm(config, config.hidden_size, vb.pp(name));
        let (joined, names) = (config.has_joined_mlp(), config.names());
        let convolves = config.has_convolution(indices.0);
        let attention = || SelfAttention::load(config, indices, &vb);
        let gemmas = |name| config.is_gemma().then(|| norm(name)).transpose();
        Ok(Self {
            input_layernorm: norm(names.input_norm)?,
            self_attn: (!convolves).then(attention).transpose()?,
            conv: convolves.then(|| ShortConvolution::load(config, &vb)).transpose()?,
            post_attention_layernorm: norm(names.post_norm)?,
            pre_feedforward_layernorm: gemmas("pre_feedforward_layernorm")?,
            mlp: (!joined).then(|| Mlp::load(config, indices.0, &vb)).transpose()?,
            shared_mlp: joined.then(|| SharedMlp::load(config, vb.pp("shared_mlp"))).transpose()?,
            post_feedforward_layernorm: gemmas("post_feedforward_layernorm")?,
            residual_scale: config.residual_multiplier,
        })
    }

    fn precision(&self) -> Option<Precision> {
        let attention = self.self_attn.as_ref()?;
        Some(attention.attention.precision())
    }

    fn forward(&self, hidden: Hidden, rows: &mut Rows<'_>) -> CandleResult<Hidden> {
        let (normal, sum) = hidden.normal(&self.input_layernorm)?;
        let mut attended = match (&self.self_attn, &self.conv) {
            (Some(attention), _) => attention.forward(&normal, rows)?,
            (None, Some(conv)) => conv.forward(&normal, rows.shapes, &mut rows.caches)?,
            (None, None) => normal,
        };
        let mut before = &self.post_attention_layernorm;
        if let Some(norm) = &self.pre_feedforward_layernorm {
            attended = before.forward(&attended)?;
            before = norm;
        }
        if let Some(scale) = self.residual_scale {
            attended = (attended * scale)?;
        }
        let (normal, sum) = before.forward_add(&attended, &sum)?;
        let mut term = match (&self.mlp, &self.shared_mlp) {
            (Some(mlp), _) => mlp.forward(&normal)?,
            (None, Some(mlp)) => mlp.forward(&normal)?,
            (None, None) => normal,
        };
        if let Some(scale) = self.residual_scale {
            term = (term * scale)?;
        }
        if let Some(after) = &self.post_feedforward_layernorm {
            term = after.forward(&term)?;
        }
        let term = Some(term);
        Ok(Hidden { sum, term })
    }
}

#[derive(Quantizable, Clone)]
struct SelfAttention {
    q_proj: Option<nn::Linear>,
    k_proj: Option<nn::Linear>,
    v_proj: Option<nn::Linear>,
    /// The three projections as one, in their place.
    qkv_proj: Option<nn::Linear>,
    o_proj: nn::Linear,
    q_norm: Option<nn::RmsNorm>,
    k_norm: Option<nn::RmsNorm>,
    /// Whether the norms are of all heads together.
    is_wide: bool,
    attention: nn::Attention,
    /// The index of the layer's rotary embeddings in the model, if it has some.
    rotary: Option<usize>,
    head_dim: usize,
    /// The features of a head that are rotated.
    rotary_dim: usize,
    heads: usize,
    kv_heads: usize,
    window: Option<usize>,
}

impl SelfAttention {
    fn load(
        config: &Config,
        (index, rotary): (usize, Option<usize>),
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let (size, head_dim, names) = (config.hidden_size, config.head_dim(), config.names());
        let vb = vb.pp("self_attn");
        let (q, kv) = (config.num_attention_heads * head_dim, config.kv_heads() * head_dim);
        let linear = |inputs, out, is_usual, name| {
            let vb = vb.pp(name);
            nn::linear_b(inputs, out, config.bias(is_usual, &vb), vb)
        };
        let bias = config.has_bias();
        let is_wide = config.model_type == Family::Olmoe;
        let norm = |name, all| {
            let norm = || norm(config, if is_wide { all } else { head_dim }, vb.pp(name));
            config.has_qk_norm().then(norm).transpose()
        };
        let joined = config.has_joined_projections();
        let separate = |out, name| {
            let linear = || linear(size, out, bias, name);
            (!joined).then(linear).transpose()
        };
        let both = || linear(size, q + 2 * kv, false, "qkv_proj");
        Ok(Self {
            q_proj: separate(q, "q_proj")?,
            k_proj: separate(kv, "k_proj")?,
            v_proj: separate(kv, "v_proj")?,
            qkv_proj: joined.then(both).transpose()?,
            o_proj: linear(q, size, config.attention_bias, names.output)?,
            q_norm: norm(names.q_norm, q)?,
            k_norm: norm(names.k_norm, kv)?,
            is_wide,
            attention: nn::Attention::load(config.scale(), vb.pp("attention")),
            rotary,
            head_dim,
            rotary_dim: config.rotary_dim()?,
            heads: config.num_attention_heads,
            kv_heads: config.kv_heads(),
            window: config.window(index),
        })
    }

    fn forward(&self, xs: &Tensor, rows: &mut Rows<'_>) -> CandleResult<Tensor> {
        let [mut q, mut k, v] = self.heads(xs)?;
        if let (Some(of_q), Some(of_k)) = (&self.q_norm, &self.k_norm) {
            let normal = |xs: &Tensor, norm: &nn::RmsNorm| {
                if self.is_wide {
                    norm.forward(&xs.flatten_from(2)?)?.reshape(xs.shape())
                } else {
                    norm.forward(xs)
                }
            };
            (q, k) = (normal(&q, of_q)?, normal(&k, of_k)?);
        }
        if let Some(rotary) = self.rotary {
            let (cos, sin) = &rows.angles[rotary];
            (q, k) = (self.rotated(q, cos, sin)?, self.rotated(k, cos, sin)?);
        }
        let (mut start, mut contexts) = (0, Vec::with_capacity(rows.shapes.len()));
        for (&[batch, tokens], cache) in rows.shapes.iter().zip(&mut rows.caches) {
            let LayerCache::Attention(cache) = cache else {
                candle_core::bail!("cache: expected one of attention, got one of a convolution");
            };
            let part = |all: &Tensor| {
                let rows = all.narrow(1, start, batch * tokens)?;
                rows.reshape((batch, tokens, (), self.head_dim))?.transpose(1, 2)
            };
            let ys = self.attend([part(&q)?, part(&k)?, part(&v)?], cache)?;
            contexts.push(ys.transpose(1, 2)?.flatten_from(2)?.flatten_to(1)?);
            start += batch * tokens;
        }
        self.o_proj.forward(&Tensor::cat(&contexts, 0)?)
    }

    /// Queries, keys and values, `[1, tokens, heads, head_dim]`.
    fn heads(&self, xs: &Tensor) -> CandleResult<[Tensor; 3]> {
        let heads = |xs: &Tensor| xs.reshape((1, xs.dim(0)?, (), self.head_dim));
        if let (Some(q), Some(k), Some(v)) = (&self.q_proj, &self.k_proj, &self.v_proj) {
            let [q, k, v] = nn::Linear::forward_each([q, k, v], xs)?;
            return Ok([heads(&q)?, heads(&k)?, heads(&v)?]);
        }
        let all = match &self.qkv_proj {
            Some(projection) => projection.forward(xs)?,
            None => candle_core::bail!("attention: expected projections, got none"),
        };
        let all = heads(&all)?;
        let (q, kv) = (self.heads, self.kv_heads);
        let part = |start, count| all.narrow(2, start, count)?.contiguous();
        Ok([part(0, q)?, part(q, kv)?, part(q + kv, kv)?])
    }

    /// Queries or keys with their first features rotated.
    fn rotated(&self, xs: Tensor, cos: &Tensor, sin: &Tensor) -> CandleResult<Tensor> {
        let rest = self.head_dim - self.rotary_dim;
        if rest == 0 {
            return ops::rope_thd(&xs, cos, sin);
        }
        let first = xs.narrow(3, 0, self.rotary_dim)?.contiguous()?;
        let first = ops::rope_thd(&first, cos, sin)?;
        Tensor::cat(&[first, xs.narrow(3, self.rotary_dim, rest)?], 3)
    }

    /// The attention of tokens to themselves and all before, `[batch, heads, tokens, head_dim]`.
    fn attend(&self, [q, k, v]: [Tensor; 3], cache: &mut KvCache) -> CandleResult<Tensor> {
        cache.append(&k, &v)?;
        let Some(window) = self.window.filter(|window| cache.len() > *window) else {
            return self.attention.forward_cached(&q, cache, Mask::Causal);
        };
        let mask = within(window, q.dim(2)?, cache.len())?;
        self.attention.forward_cached(&q, cache, Mask::Include(&mask))
    }
}

/// A mask of the last `queries` over `keys`, 1 where a query attends: to itself and the keys before
/// it, `window` in all.
fn within(window: usize, queries: usize, keys: usize) -> CandleResult<Tensor> {
    let sees = |i| {
        let position = keys - queries + i;
        (0..keys).map(move |key| u8::from(key <= position && key + window > position))
    };
    let mask: Vec<u8> = (0..queries).flat_map(sees).collect();
    Tensor::from_vec(mask, (queries, keys), &Device::Cpu)
}

/// The cosines and sines of positions, `[rows, 1]` in u32: `[rows, head_dim / 2]` each.
fn angles(frequencies: &Tensor, positions: &Tensor) -> CandleResult<(Tensor, Tensor)> {
    let positions = positions.to_dtype(frequencies.dtype())?;
    let angles = positions.matmul(frequencies)?;
    Ok((angles.cos()?, angles.sin()?))
}
