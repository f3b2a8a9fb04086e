//! The towers of CLIP and SigLIP, whose layers have norms before their parts.

use anyhow::Result;
use candle_dynquant::FusedActivation;
use candle_nn::VarBuilder;

use super::bert::{self, Names};
use super::mlp::Mlp;
use super::projections::Heads;
use super::sizes::Sizes;
use super::transformer::Layer;
use crate::keys::Keys;

pub(super) const TOWER: Names = Names {
    layers: "encoder.layers",
    inputs: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.out_proj",
    attention_norm: "layer_norm1",
    up: "mlp.fc1",
    down: "mlp.fc2",
    norm: "layer_norm2",
};

/// The sizes of a tower, without those of texts.
pub(super) fn tower_sizes(keys: &Keys, inner: usize) -> Result<Sizes> {
    let hidden = keys.size("hidden_size")?;
    let heads = keys.size("num_attention_heads")?;
    keys.divides("num_attention_heads", heads, "hidden_size", hidden)?;
    Ok(Sizes {
        vocab: 0,
        hidden,
        embedding: hidden,
        layers: keys.size("num_hidden_layers")?,
        heads: Heads::equal(heads, hidden),
        inner,
        eps: keys.epsilon("layer_norm_eps", 1e-5)?,
        activation: keys.activation("hidden_act", FusedActivation::QuickGelu)?,
        tokens: 0,
        has_table: true,
        types: 0,
        takes_pairs: false,
    })
}

/// A layer with the norms before its parts.
pub(super) fn layer(sizes: &Sizes, names: &Names, mlp: Mlp, vb: VarBuilder<'_>) -> Result<Layer> {
    let mut layer = bert::layer_around(sizes, names, mlp, &vb)?;
    for around in [&mut layer.around_attention, &mut layer.around_mlp] {
        around.before = around.last.take();
    }
    Ok(layer)
}
