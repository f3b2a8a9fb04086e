//! ModernBERT: norms before each part, gated products, and rotary positions; two of three layers
//! attend to near tokens only.

use anyhow::Result;
use candle_dynquant::FusedActivation;
use candle_nn::VarBuilder;

use super::attention::Attention;
use super::head::{ClassHead, Guesses, Source};
use super::mlp::{Mlp, Up};
use super::projections::Inputs;
use super::rope::Rope;
use super::sizes::Sizes;
use super::transformer::{Embeddings, Layer, Residual, Transformer};
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
    let layers = local.into_iter().enumerate();
    let layers = layers.map(|(index, is_local)| {
        let (vb, view) = (vb.pp("layers").pp(index), usize::from(is_local));
        layer(keys, sizes, index, view, vb)
    });
    Ok(Transformer {
        embeddings,
        layers: layers.collect::<Result<_>>()?,
        norm: Some(sizes.norm_b(has_bias, vb.pp("final_norm"))?),
        views: views(keys, sizes.heads.dim)?,
    })
}

fn layer(
    keys: &Keys,
    sizes: &Sizes,
    index: usize,
    view: usize,
    vb: VarBuilder<'_>,
) -> Result<Layer> {
    let has_bias = keys.flag("norm_bias", false)?;
    let norm = |name| sizes.norm_b(has_bias, vb.pp(name));
    let bias = keys.flag("attention_bias", false)?;
    let inputs = sizes.linear(3 * sizes.hidden, bias, vb.pp("attn.Wqkv"))?;
    let output = sizes.linear(sizes.hidden, bias, vb.pp("attn.Wo"))?;
    let bias = keys.flag("mlp_bias", false)?;
    // The embeddings are already normalized.
    let first = (index > 0).then(|| norm("attn_norm")).transpose()?;
    Ok(Layer {
        attention: Attention::new(
            Inputs::Fused(inputs),
            output,
            sizes.heads,
            vb.pp("attn.attention"),
        ),
        around_attention: Residual::pre_norm(first),
        mlp: Mlp::Products {
            up: Up::Fused {
                both: sizes.linear(2 * sizes.inner, bias, vb.pp("mlp.Wi"))?,
                activation: sizes.activation,
                gate_first: true,
            },
            down: sizes.down(bias, vb.pp("mlp.Wo"))?,
        },
        around_mlp: Residual::pre_norm(Some(norm("mlp_norm")?)),
        view,
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
