//! Nomic BERT: BERT's norms, with rotary positions and products gated by SiLU. `config.json` has
//! GPT-2's keys, or BERT's if transformers wrote it.

use anyhow::Result;
use candle_dynquant::FusedActivation;
use candle_nn::VarBuilder;

use super::attention::Attention;
use super::mlp::{Mlp, Up};
use super::projections::{Heads, Inputs};
use super::rope::Rope;
use super::sizes::Sizes;
use super::transformer::{Embeddings, Layer, Residual, Transformer};
use super::view::{Sees, View};
use crate::keys::Keys;

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    if keys.get("n_embd").is_none() {
        if keys.get("rotary_emb_base").is_some() {
            return Err(keys.fault("rotary_emb_base", "rope_parameters beside the keys of BERT"));
        }
        let types = keys.count_or("type_vocab_size", 2)?;
        let activation = keys.activation("hidden_act", FusedActivation::Silu)?;
        let sizes = Sizes {
            types,
            activation,
            ..Sizes::read(keys)?
        };
        let dim = sizes.heads.dim;
        if keys.size_or("head_dim", dim)? != dim {
            return Err(keys.fault("head_dim", &dim.to_string()));
        }
        return Ok(sizes);
    }
    let hidden = keys.size("n_embd")?;
    let heads = keys.size("n_head")?;
    keys.divides("n_head", heads, "n_embd", hidden)?;
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        hidden,
        embedding: hidden,
        layers: keys.size("n_layer")?,
        heads: Heads::equal(heads, hidden),
        inner: keys.size_or("n_inner", 4 * hidden)?,
        eps: keys.epsilon("layer_norm_epsilon", 1e-12)?,
        activation: FusedActivation::Silu,
        tokens: keys.positions("n_positions")?,
        has_table: false,
        types: keys.count_or("type_vocab_size", 2)?,
        takes_pairs: true,
    })
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let embeddings = vb.pp("embeddings");
    let embeddings = Embeddings {
        types: sizes.types(embeddings.pp("token_type_embeddings"))?,
        norm: Some(sizes.norm(vb.pp("emb_ln"))?),
        ..Embeddings::words_only(sizes.table(sizes.vocab, embeddings.pp("word_embeddings"))?)
    };
    let theta = keys.positive("rotary_emb_base")?.unwrap_or(1000.);
    let frequencies = Rope::read(keys, theta)?.frequencies(sizes.heads.dim)?;
    let layers = 0..sizes.layers;
    let layers = layers.map(|index| layer(keys, sizes, vb.pp("encoder.layers").pp(index)));
    Ok(Transformer {
        embeddings,
        layers: layers.collect::<Result<_>>()?,
        norm: None,
        views: vec![View::rotary(Sees::All, frequencies)],
    })
}

fn layer(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Layer> {
    let bias = keys.flag("qkv_proj_bias", false)?;
    let inputs = sizes.linear(3 * sizes.hidden, bias, vb.pp("attn.Wqkv"))?;
    let output = sizes.linear(sizes.hidden, bias, vb.pp("attn.out_proj"))?;
    let bias = keys.flag("mlp_fc1_bias", false)?;
    let up = |name| sizes.linear(sizes.inner, bias, vb.pp(name));
    Ok(Layer {
        attention: Attention::new(
            Inputs::Fused(inputs),
            output,
            sizes.heads,
            vb.pp("attn.attention"),
        ),
        around_attention: Residual::post_norm(sizes.norm(vb.pp("norm1"))?),
        mlp: Mlp {
            up: Up::Gated {
                gate: up("mlp.fc12")?,
                value: up("mlp.fc11")?,
                activation: sizes.activation,
            },
            down: sizes.down(keys.flag("mlp_fc2_bias", false)?, vb.pp("mlp.fc2"))?,
        },
        around_mlp: Residual::post_norm(sizes.norm(vb.pp("norm2"))?),
        view: 0,
    })
}
