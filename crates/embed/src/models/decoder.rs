//! Decoders used as encoders: Qwen3, whose last token attends to all, Gemma 3 without a causal mask,
//! as in EmbeddingGemma, with windows in most layers and norms on both sides of each part, and
//! EuroBERT, Llama's layers without a causal mask.

use anyhow::Result;
use candle_dynquant::FusedActivation;
use candle_nn::VarBuilder;

use super::head::{ClassHead, Source};
use super::layer::{Expanded, Norm, Parts, Projected, pre_norm};
use super::projections::Heads;
use super::rope::Rope;
use super::sizes::Sizes;
use super::transformer::{Embeddings, Transformer};
use super::view::{Sees, View};
use crate::keys::Keys;
use crate::pooling::Mode;

fn sizes(keys: &Keys, activation: FusedActivation) -> Result<Sizes> {
    let sizes = Sizes::empty(keys.size("hidden_size")?);
    let queries = keys.size("num_attention_heads")?;
    let kv_heads = keys.size_or("num_key_value_heads", queries)?;
    keys.divides("num_key_value_heads", kv_heads, "num_attention_heads", queries)?;
    let dim = keys.size_or("head_dim", sizes.hidden / queries)?;
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        layers: keys.size("num_hidden_layers")?,
        heads: Heads { queries, keys: kv_heads, dim },
        inner: keys.size("intermediate_size")?,
        eps: keys.epsilon("rms_norm_eps", 1e-6)?,
        activation,
        tokens: keys.positions("max_position_embeddings")?,
        ..sizes
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

const QWEN3: Parts = Parts {
    layers: "layers",
    inputs: Projected::Each(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    head_norms: Some(["self_attn.q_norm", "self_attn.k_norm"]),
    attention: "self_attn.attention",
    scale: None,
    output: "self_attn.o_proj",
    up: Expanded::Gated(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    norms: [pre_norm("input_layernorm"), pre_norm("post_attention_layernorm")],
    norm: Norm::Rms { offset: 0. },
    biases: [false; 3],
};

const GEMMA3: Parts = Parts {
    norms: [
        [Some("input_layernorm"), Some("post_attention_layernorm"), None],
        [Some("pre_feedforward_layernorm"), Some("post_feedforward_layernorm"), None],
    ],
    norm: Norm::Rms { offset: 1. },
    ..QWEN3
};

pub(super) fn load_qwen3(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    transformer(
        keys,
        sizes,
        (QWEN3, usual_scale(sizes)),
        vec![plain_view(keys, sizes, Sees::Causal)?],
        &vb,
    )
}

pub(super) fn eurobert_sizes(keys: &Keys) -> Result<Sizes> {
    let sizes = sizes(keys, keys.activation("hidden_act", FusedActivation::Silu)?)?;
    let eps = keys.epsilon("rms_norm_eps", 1e-5)?;
    Ok(Sizes { eps, ..sizes })
}

pub(super) fn load_eurobert(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let bias = keys.flag("mlp_bias", false)?;
    let parts = Parts { head_norms: None, biases: [false, bias, bias], ..QWEN3 };
    transformer(
        keys,
        sizes,
        (parts, usual_scale(sizes)),
        vec![plain_view(keys, sizes, Sees::All)?],
        &vb,
    )
}

pub(super) fn load_gemma3(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let scalar = keys.positive("query_pre_attn_scalar")?.unwrap_or(256.);
    // The file states the window of a causal layer; here half of it is on each side.
    let reach = keys.number("sliding_window")?.unwrap_or(4096) / 2;
    let global = Rope::of_kind(keys, "full_attention", "rope_theta", 1_000_000.)?;
    let local = Rope::of_kind(keys, "sliding_attention", "rope_local_base_freq", 10_000.)?;
    let dim = sizes.heads.dim;
    let views = vec![
        View::rotary(Sees::All, global.frequencies(dim)?),
        View::rotary(Sees::Within(reach), local.frequencies(dim)?),
    ];
    let mut model = transformer(keys, sizes, (GEMMA3, 1. / scalar.sqrt()), views, &vb)?;
    model.embeddings.scale = Some((sizes.hidden as f64).sqrt());
    let pattern = keys.number("sliding_window_pattern")?.unwrap_or(6);
    let is_local = keys.local_layers(sizes.layers, |layer| !(layer + 1).is_multiple_of(pattern))?;
    for (layer, is_local) in model.layers.iter_mut().zip(is_local) {
        layer.view = usize::from(is_local);
    }
    Ok(model)
}

fn usual_scale(sizes: &Sizes) -> f64 {
    1. / (sizes.heads.dim as f64).sqrt()
}

/// The view of models whose layers all rotate alike.
fn plain_view(keys: &Keys, sizes: &Sizes, sees: Sees) -> Result<View> {
    Ok(View::rotary(sees, Rope::read(keys, 10_000.)?.frequencies(sizes.heads.dim)?))
}

/// A model of these parts, whose attention has biases on request, and whose scores have a scale.
fn transformer(
    keys: &Keys,
    sizes: &Sizes,
    (mut parts, scale): (Parts, f64),
    views: Vec<View>,
    vb: &VarBuilder<'_>,
) -> Result<Transformer> {
    parts.biases[0] = keys.flag("attention_bias", false)?;
    parts.scale = Some(scale);
    Ok(Transformer {
        embeddings: Embeddings::words_only(sizes.table(sizes.vocab, vb.pp("embed_tokens"))?),
        layers: parts.load_all(sizes, vb)?,
        norm: Some(parts.norm.load(sizes.hidden, sizes.eps, vb.pp("norm"))?),
        views,
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
