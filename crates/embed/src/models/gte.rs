//! GTE of 2024 and later, including Snowflake's Arctic Embed 2: BERT's norms, with rotary positions
//! and gated products.

use anyhow::Result;
use candle_nn::VarBuilder;

use super::attention::Attention;
use super::bert;
use super::mlp::{Mlp, Up};
use super::projections::Inputs;
use super::rope::Rope;
use super::sizes::Sizes;
use super::transformer::{Layer, Residual, Transformer};
use super::view::{Sees, View};
use crate::keys::Keys;

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    let types = keys.count_or("type_vocab_size", 1)?;
    let sizes = Sizes::read(keys)?;
    Ok(Sizes { types, ..sizes })
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let tables = vb.pp("embeddings");
    let embeddings = bert::embeddings(sizes, None, &tables, tables.pp("LayerNorm"))?;
    let frequencies = Rope::read(keys, 160_000.)?.frequencies(sizes.heads.dim)?;
    let layers = 0..sizes.layers;
    let layers = layers.map(|index| layer(sizes, vb.pp("encoder.layer").pp(index)));
    Transformer::new(embeddings, layers, View::rotary(Sees::All, frequencies))
}

fn layer(sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Layer> {
    let inputs = sizes.linear(3 * sizes.hidden, true, vb.pp("attention.qkv_proj"))?;
    let output = sizes.linear(sizes.hidden, true, vb.pp("attention.o_proj"))?;
    let place = vb.pp("attention.attention");
    Ok(Layer {
        attention: Attention::new(Inputs::Fused(inputs), output, sizes.heads, place),
        around_attention: Residual::post_norm(sizes.norm(vb.pp("attn_ln"))?),
        mlp: Mlp::Products {
            up: Up::Fused {
                both: sizes.linear(2 * sizes.inner, false, vb.pp("mlp.up_gate_proj"))?,
                activation: sizes.activation,
                gate_first: false,
            },
            down: sizes.down(true, vb.pp("mlp.down_proj"))?,
        },
        around_mlp: Residual::post_norm(sizes.norm(vb.pp("mlp_ln"))?),
        view: 0,
    })
}
