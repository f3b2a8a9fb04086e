//! Decoders used as encoders: Qwen3, whose last token attends to all, Gemma 3 without a causal mask,
//! as in EmbeddingGemma, with windows in most layers and norms on both sides of each part, and
//! EuroBERT, Llama's layers without a causal mask.

use anyhow::Result;
use candle_core::Result as CandleResult;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::VarBuilder;

use super::attention::Attention;
use super::head::{ClassHead, Source};
use super::mlp::{Mlp, Up};
use super::projections::{Heads, Inputs};
use super::rope::Rope;
use super::sizes::Sizes;
use super::transformer::{Embeddings, Layer, Residual, Transformer};
use super::view::{Sees, View};
use crate::keys::Keys;
use crate::pooling::Mode;

fn sizes(keys: &Keys, activation: FusedActivation) -> Result<Sizes> {
    let hidden = keys.size("hidden_size")?;
    let queries = keys.size("num_attention_heads")?;
    let kv_heads = keys.size_or("num_key_value_heads", queries)?;
    keys.divides("num_key_value_heads", kv_heads, "num_attention_heads", queries)?;
    let dim = keys.size_or("head_dim", hidden / queries)?;
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        hidden,
        embedding: hidden,
        layers: keys.size("num_hidden_layers")?,
        heads: Heads { queries, keys: kv_heads, dim },
        inner: keys.size("intermediate_size")?,
        eps: keys.epsilon("rms_norm_eps", 1e-6)?,
        activation,
        tokens: keys.positions("max_position_embeddings")?,
        has_table: false,
        types: 0,
        takes_pairs: true,
    })
}

pub(super) fn qwen3_sizes(keys: &Keys) -> Result<Sizes> {
    let sizes = sizes(keys, keys.activation("hidden_act", FusedActivation::Silu)?)?;
    if keys.local_layers(sizes.layers, |_| false)?.contains(&true) {
        return Err(keys.fault("layer_types", "full_attention for each layer"));
    }
    Ok(sizes)
}

pub(super) fn gemma3_sizes(keys: &Keys) -> Result<Sizes> {
    if !keys.flag("use_bidirectional_attention", false)? {
        return Err(keys.fault("use_bidirectional_attention", "true"));
    }
    let default = FusedActivation::GeluTanh;
    sizes(keys, keys.activation("hidden_activation", default)?)
}

/// The differences between the models.
struct Style {
    /// The offset that is added to the stored weights of norms.
    norm_offset: f64,
    /// The scale of attention scores.
    scale: f64,
    /// Whether each part is also followed by a norm.
    sandwich: bool,
    bias: bool,
    /// Whether the products of the feed-forward part have a bias.
    mlp_bias: bool,
    /// Whether queries and keys are normalized.
    head_norms: bool,
}

impl Style {
    fn norm(&self, size: usize, eps: f64, vb: VarBuilder<'_>) -> CandleResult<nn::LayerNorm> {
        let norm = nn::rms_norm(size, eps, vb)?;
        if self.norm_offset == 0. {
            return Ok(norm.into_inner());
        }
        let weight = (norm.weight() + self.norm_offset)?;
        Ok(nn::RmsNorm::new(weight, eps).into_inner())
    }
}

pub(super) fn load_qwen3(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let style = Style {
        norm_offset: 0.,
        scale: 1. / (sizes.heads.dim as f64).sqrt(),
        sandwich: false,
        bias: keys.flag("attention_bias", false)?,
        mlp_bias: false,
        head_norms: true,
    };
    let frequencies = Rope::read(keys, 10_000.)?.frequencies(sizes.heads.dim)?;
    let views = vec![View::rotary(Sees::Causal, frequencies)];
    transformer(sizes, &style, None, views, &vec![0; sizes.layers], &vb)
}

pub(super) fn eurobert_sizes(keys: &Keys) -> Result<Sizes> {
    let sizes = sizes(keys, keys.activation("hidden_act", FusedActivation::Silu)?)?;
    let eps = keys.epsilon("rms_norm_eps", 1e-5)?;
    Ok(Sizes { eps, ..sizes })
}

pub(super) fn load_eurobert(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let style = Style {
        norm_offset: 0.,
        scale: 1. / (sizes.heads.dim as f64).sqrt(),
        sandwich: false,
        bias: keys.flag("attention_bias", false)?,
        mlp_bias: keys.flag("mlp_bias", false)?,
        head_norms: false,
    };
    let frequencies = Rope::read(keys, 10_000.)?.frequencies(sizes.heads.dim)?;
    let views = vec![View::rotary(Sees::All, frequencies)];
    transformer(sizes, &style, None, views, &vec![0; sizes.layers], &vb)
}

pub(super) fn load_gemma3(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let scalar = keys.positive("query_pre_attn_scalar")?.unwrap_or(256.);
    let style = Style {
        norm_offset: 1.,
        scale: 1. / scalar.sqrt(),
        sandwich: true,
        bias: keys.flag("attention_bias", false)?,
        mlp_bias: false,
        head_norms: true,
    };
    // The file states the window of a causal layer; here half of it is on each side.
    let reach = keys.number("sliding_window")?.unwrap_or(4096) / 2;
    let global = Rope::of_kind(keys, "full_attention", "rope_theta", 1_000_000.)?;
    let local = Rope::of_kind(keys, "sliding_attention", "rope_local_base_freq", 10_000.)?;
    let dim = sizes.heads.dim;
    let views = vec![
        View::rotary(Sees::All, global.frequencies(dim)?),
        View::rotary(Sees::Within(reach), local.frequencies(dim)?),
    ];
    let pattern = keys.number("sliding_window_pattern")?.unwrap_or(6);
    let is_local = keys.local_layers(sizes.layers, |layer| !(layer + 1).is_multiple_of(pattern))?;
    let view_of: Vec<usize> = is_local.into_iter().map(usize::from).collect();
    let scale = (sizes.hidden as f64).sqrt();
    transformer(sizes, &style, Some(scale), views, &view_of, &vb)
}

fn transformer(
    sizes: &Sizes,
    style: &Style,
    scale: Option<f64>,
    views: Vec<View>,
    view_of: &[usize],
    vb: &VarBuilder<'_>,
) -> Result<Transformer> {
    let layers = view_of.iter().enumerate();
    let layers = layers.map(|(i, &view)| layer(sizes, style, view, vb.pp("layers").pp(i)));
    Ok(Transformer {
        embeddings: Embeddings {
            scale,
            ..Embeddings::words_only(sizes.table(sizes.vocab, vb.pp("embed_tokens"))?)
        },
        layers: layers.collect::<CandleResult<_>>()?,
        norm: Some(style.norm(sizes.hidden, sizes.eps, vb.pp("norm"))?),
        views,
    })
}

fn layer(sizes: &Sizes, style: &Style, view: usize, vb: VarBuilder<'_>) -> CandleResult<Layer> {
    let norm = |name| style.norm(sizes.hidden, sizes.eps, vb.pp(name));
    let (behind_attention, before_mlp, behind_mlp) = if style.sandwich {
        (
            Some(norm("post_attention_layernorm")?),
            norm("pre_feedforward_layernorm")?,
            Some(norm("post_feedforward_layernorm")?),
        )
    } else {
        (None, norm("post_attention_layernorm")?, None)
    };
    Ok(Layer {
        attention: attention(sizes, style, vb.pp("self_attn"))?,
        around_attention: Residual {
            before: Some(norm("input_layernorm")?),
            after: behind_attention,
            ..Residual::default()
        },
        mlp: Mlp::Products {
            up: Up::Gated {
                gate: sizes.linear(sizes.inner, style.mlp_bias, vb.pp("mlp.gate_proj"))?,
                value: sizes.linear(sizes.inner, style.mlp_bias, vb.pp("mlp.up_proj"))?,
                activation: sizes.activation,
            },
            down: sizes.down(style.mlp_bias, vb.pp("mlp.down_proj"))?,
        },
        around_mlp: Residual { before: Some(before_mlp), after: behind_mlp, ..Residual::default() },
        view,
    })
}

fn attention(sizes: &Sizes, style: &Style, vb: VarBuilder<'_>) -> CandleResult<Attention> {
    let heads = sizes.heads;
    let (queries, keys) = (heads.queries * heads.dim, heads.keys * heads.dim);
    let linear = |out, name| sizes.linear(out, style.bias, vb.pp(name));
    let inputs = [linear(queries, "q_proj")?, linear(keys, "k_proj")?, linear(keys, "v_proj")?];
    let norm = |name| style.norm(heads.dim, sizes.eps, vb.pp(name));
    Ok(Attention {
        inputs: Inputs::Each(Box::new(inputs)),
        norms: (style.head_norms)
            .then(|| CandleResult::Ok([norm("q_norm")?, norm("k_norm")?]))
            .transpose()?,
        attention: nn::Attention::load(style.scale, vb.pp("attention")),
        disentangled: None,
        output: nn::linear_b(queries, sizes.hidden, style.bias, vb.pp("o_proj"))?,
        heads,
    })
}

/// A head that multiplies the last token's vector.
pub(super) fn head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    if !source.is_classifier("score") {
        return Ok(None);
    }
    let mut head = ClassHead::new(Mode::LastToken, source.classes("score", false)?);
    head.pad = source.keys.optional("pad_token_id", "a token id")?;
    Ok(Some(head))
}

/// A product, GELU and the classifier, of which `late` also multiplies each token.
pub(super) fn eurobert_head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    if !source.is_classifier("classifier") {
        return Ok(None);
    }
    let key = "classifier_pooling";
    let (pooling, is_late) = match source.keys.word(key)?.as_deref() {
        None | Some("late") => (Mode::Mean, true),
        Some("mean") => (Mode::Mean, false),
        Some("bos") => (Mode::Cls, false),
        Some(_) => return Err(source.keys.fault(key, "late, mean or bos")),
    };
    let dense = source.square(source.vb.pp("dense"), true)?;
    let head = ClassHead::new(pooling, source.classes("classifier", true)?);
    let mut head = head.behind(dense, FusedActivation::Gelu);
    head.is_late = is_late;
    Ok(Some(head))
}
