//! The encoder of T5, as in sentence-t5 and GTR: norms without a bias before each part, and score
//! terms by distance, without a scale.

use anyhow::Result;
use candle_dynquant::FusedActivation;
use candle_nn::VarBuilder;

use super::bert;
use super::layer::{Expanded, Norm, Parts, Projected, pre_norm};
use super::projections::Heads;
use super::sizes::Sizes;
use super::transformer::{Embeddings, Transformer};
use crate::keys::{Keys, MOST};

const PARTS: Parts = Parts {
    layers: "block",
    inputs: Projected::Each([
        "layer.0.SelfAttention.q",
        "layer.0.SelfAttention.k",
        "layer.0.SelfAttention.v",
    ]),
    head_norms: None,
    attention: "layer.0.SelfAttention.attention",
    scale: Some(1.),
    output: "layer.0.SelfAttention.o",
    up: Expanded::Gated(["layer.1.DenseReluDense.wi_0", "layer.1.DenseReluDense.wi_1"]),
    down: "layer.1.DenseReluDense.wo",
    norms: [pre_norm("layer.0.layer_norm"), pre_norm("layer.1.layer_norm")],
    norm: Norm::Rms { offset: 0. },
    biases: [false; 3],
};

const UNGATED: Parts = Parts { up: Expanded::Plain("layer.1.DenseReluDense.wi"), ..PARTS };

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    let sizes = Sizes::empty(keys.size_as("d_model", "hidden_size")?);
    let heads = keys.size_as("num_heads", "num_attention_heads")?;
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        layers: keys.size_as("num_layers", "num_hidden_layers")?,
        heads: Heads { queries: heads, keys: heads, dim: keys.size_as("d_kv", "head_dim")? },
        inner: keys.size("d_ff")?,
        eps: keys.epsilon("layer_norm_epsilon", 1e-6)?,
        activation: feed_forward(keys)?.1,
        tokens: MOST as usize,
        ..sizes
    })
}

/// Whether the products are gated, and their activation function.
fn feed_forward(keys: &Keys) -> Result<(bool, FusedActivation)> {
    let key = "feed_forward_proj";
    let word = keys.word(key)?.unwrap_or_else(|| "relu".to_owned());
    let gated = word.strip_prefix("gated-");
    let name = match gated {
        Some("gelu") => "gelu_new",
        name => name.unwrap_or(&word),
    };
    // What transformers makes of the word, if it is written down, too.
    if keys.word("dense_act_fn")?.is_some_and(|got| got != name) {
        return Err(keys.fault("dense_act_fn", name));
    }
    if keys.flag("is_gated_act", gated.is_some())? != gated.is_some() {
        return Err(keys.fault("is_gated_act", &gated.is_some().to_string()));
    }
    Ok((gated.is_some(), keys.named_activation(key, name)?))
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let encoder = vb.pp("encoder");
    let furthest = keys.number("relative_attention_max_distance")?;
    let table = encoder.pp("block.0.layer.0.SelfAttention.relative_attention_bias");
    let view = bert::bias(keys, furthest.unwrap_or(128), sizes.heads.queries, table)?;
    let parts = if feed_forward(keys)?.0 { PARTS } else { UNGATED };
    Ok(Transformer {
        embeddings: Embeddings::words_only(sizes.table(sizes.vocab, vb.pp("shared"))?),
        layers: parts.load_all(sizes, &encoder)?,
        norm: Some(parts.norm.load(sizes.hidden, sizes.eps, encoder.pp("final_layer_norm"))?),
        views: vec![view],
    })
}
