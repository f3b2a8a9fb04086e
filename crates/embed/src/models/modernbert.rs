//! ModernBERT: norms before each part, gated products, and rotary positions; two of three layers
//! attend to near tokens only.

use anyhow::Result;
use candle_dynquant::FusedActivation;
use candle_nn::VarBuilder;

use super::bert;
use super::head::{ClassHead, Guesses, Source};
use super::layer::{Expanded, Norm, Parts, Projected, pre_norm};
use super::rope::Rope;
use super::sizes::Sizes;
use super::transformer::{Embeddings, Layer, Transformer};
use super::view::{Sees, View};
use crate::keys::Keys;
use crate::pooling::Mode;

pub(super) const GUESSES: Guesses = Guesses {
    dense: "head.dense",
    norm: "head.norm",
    decoder: "decoder",
    bias: "decoder.bias",
    activation: Some(FusedActivation::Gelu),
    function: "classifier_activation",
    biases: [("classifier_bias", false), ("norm_bias", false), ("decoder_bias", true)],
};

const PARTS: Parts = Parts {
    layers: "layers",
    inputs: Projected::Fused("attn.Wqkv"),
    attention: "attn.attention",
    output: "attn.Wo",
    up: Expanded::Fused("mlp.Wi", true),
    down: "mlp.Wo",
    norms: [pre_norm("attn_norm"), pre_norm("mlp_norm")],
    ..bert::BERT
};

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    Ok(Sizes {
        eps: keys.epsilon("norm_eps", 1e-5)?,
        activation: keys.activation("hidden_activation", FusedActivation::Gelu)?,
        ..Sizes::read(keys)?
    })
}

/// The view of layers that attend to all tokens, and of layers that attend to near tokens.
fn views(keys: &Keys, dim: usize) -> Result<Vec<View>> {
    let global = Rope::of_kind(keys, "full_attention", "global_rope_theta", 160_000.)?;
    let local = Rope::of_kind(keys, "sliding_attention", "local_rope_theta", 10_000.)?;
    let reach = keys.number("local_attention")?.unwrap_or(128) / 2;
    Ok(vec![
        View::rotary(Sees::All, global.frequencies(dim)?),
        View::rotary(Sees::Within(reach), local.frequencies(dim)?),
    ])
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let has_bias = keys.flag("norm_bias", false)?;
    let embeddings = vb.pp("embeddings");
    let embeddings = Embeddings {
        norm: Some(sizes.norm_b(has_bias, embeddings.pp("norm"))?),
        ..Embeddings::words_only(sizes.table(sizes.vocab, embeddings.pp("tok_embeddings"))?)
    };
    let every = keys.number("global_attn_every_n_layers")?.unwrap_or(3);
    let local = keys.local_layers(sizes.layers, |layer| !layer.is_multiple_of(every))?;
    let mlp_bias = keys.flag("mlp_bias", false)?;
    let mut parts = Parts {
        norm: Norm::Layer { bias: has_bias },
        biases: [keys.flag("attention_bias", false)?, mlp_bias, mlp_bias],
        // The embeddings are already normalized.
        norms: [[None; 3], PARTS.norms[1]],
        ..PARTS
    };
    let mut layers = Vec::with_capacity(sizes.layers);
    for (index, is_local) in local.into_iter().enumerate() {
        let layer = parts.load(sizes, &vb.pp(parts.layers).pp(index))?;
        layers.push(Layer { view: usize::from(is_local), ..layer });
        parts.norms = PARTS.norms;
    }
    Ok(Transformer {
        embeddings,
        layers,
        norm: Some(sizes.norm_b(has_bias, vb.pp("final_norm"))?),
        views: views(keys, sizes.heads.dim)?,
    })
}

pub(super) fn head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    let has_head = source.is_classifier("classifier");
    has_head.then(|| any_head(source)).transpose()
}

/// The head of the classes of texts or of tokens.
pub(super) fn any_head(source: &Source<'_>) -> Result<ClassHead> {
    let Source { keys, sizes, vb, .. } = source;
    let pooling = match keys.word("classifier_pooling")?.as_deref() {
        Some("mean") => Mode::Mean,
        _ => Mode::Cls,
    };
    let bias = keys.flag("classifier_bias", false)?;
    let dense = source.square(vb.pp("head.dense"), bias)?;
    let activation = keys.activation("classifier_activation", FusedActivation::Gelu)?;
    let norm = sizes.norm_b(keys.flag("norm_bias", false)?, vb.pp("head.norm"))?;
    let head = ClassHead::new(pooling, source.classes("classifier", true)?);
    Ok(head.behind(dense, activation).normalized(norm))
}
