//! The encoder of T5, as in sentence-t5 and GTR: norms without a bias before each part, and score
//! terms by distance, without a scale.

use anyhow::Result;
use candle_core::Result as CandleResult;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::VarBuilder;

use super::attention::Attention;
use super::bert;
use super::mlp::{Mlp, Up};
use super::projections::{Heads, Inputs};
use super::sizes::Sizes;
use super::transformer::{Embeddings, Layer, Residual, Transformer};
use crate::keys::{Keys, MOST};

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    let hidden = keys.size_as("d_model", "hidden_size")?;
    let heads = keys.size_as("num_heads", "num_attention_heads")?;
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        hidden,
        embedding: hidden,
        layers: keys.size_as("num_layers", "num_hidden_layers")?,
        heads: Heads { queries: heads, keys: heads, dim: keys.size_as("d_kv", "head_dim")? },
        inner: keys.size("d_ff")?,
        eps: keys.epsilon("layer_norm_epsilon", 1e-6)?,
        activation: feed_forward(keys)?.1,
        tokens: MOST as usize,
        has_table: false,
        types: 0,
        takes_pairs: true,
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
    let (is_gated, _) = feed_forward(keys)?;
    let layers = 0..sizes.layers;
    let layers = layers.map(|index| layer(sizes, is_gated, encoder.pp("block").pp(index)));
    Ok(Transformer {
        embeddings: Embeddings::words_only(sizes.table(sizes.vocab, vb.pp("shared"))?),
        layers: layers.collect::<CandleResult<_>>()?,
        norm: Some(norm(sizes, encoder.pp("final_layer_norm"))?),
        views: vec![view],
    })
}

fn norm(sizes: &Sizes, vb: VarBuilder<'_>) -> CandleResult<nn::LayerNorm> {
    Ok(nn::rms_norm(sizes.hidden, sizes.eps, vb)?.into_inner())
}

fn layer(sizes: &Sizes, is_gated: bool, vb: VarBuilder<'_>) -> CandleResult<Layer> {
    let (attention, mlp) = (vb.pp("layer.0"), vb.pp("layer.1"));
    let part = attention.pp("SelfAttention");
    let size = sizes.heads.queries * sizes.heads.dim;
    let input = |name| sizes.linear(size, false, part.pp(name));
    let inputs = [input("q")?, input("k")?, input("v")?];
    let products = mlp.pp("DenseReluDense");
    let up = |name| sizes.linear(sizes.inner, false, products.pp(name));
    Ok(Layer {
        attention: Attention {
            inputs: Inputs::Each(Box::new(inputs)),
            norms: None,
            attention: nn::Attention::load(1., part.pp("attention")),
            disentangled: None,
            output: nn::linear_b(size, sizes.hidden, false, part.pp("o"))?,
            heads: sizes.heads,
        },
        around_attention: Residual::pre_norm(Some(norm(sizes, attention.pp("layer_norm"))?)),
        mlp: Mlp::Products {
            up: if is_gated {
                Up::Gated { gate: up("wi_0")?, value: up("wi_1")?, activation: sizes.activation }
            } else {
                Up::Plain(up("wi")?.with_activation(sizes.activation))
            },
            down: sizes.down(false, products.pp("wo"))?,
        },
        around_mlp: Residual::pre_norm(Some(norm(sizes, mlp.pp("layer_norm"))?)),
        view: 0,
    })
}
