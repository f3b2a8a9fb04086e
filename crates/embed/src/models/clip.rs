//! The towers of CLIP and SigLIP, whose layers have norms before their parts.

use anyhow::Result;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::VarBuilder;

use super::bert::{self, Names};
use super::mlp::Mlp;
use super::projections::Heads;
use super::sizes::Sizes;
use super::transformer::{Embeddings, Layer, Positions, Transformer};
use super::view::{Sees, View};
use crate::keys::Keys;

pub(super) const TOWER: Names = Names {
    layers: "encoder.layers",
    inputs: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.out_proj",
    attention_norm: "layer_norm1",
    up: "mlp.fc1",
    down: "mlp.fc2",
    norm: "layer_norm2",
    mlp: bert::mlp,
};

/// The properties of a tower of texts beside one of pictures.
#[derive(Debug)]
pub(crate) struct Tower {
    /// transformers' values of keys that `config.json` leaves out.
    pub defaults: &'static str,
    /// The beginnings of the names of the other tower's tensors.
    pub others: [&'static str; 2],
    /// Whether texts are padded to the most tokens, and all of these seen, as in SigLIP.
    pub is_padded: bool,
}

pub(super) const CLIP: Tower = Tower {
    defaults: r#"{"vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 8, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        "eos_token_id": 49407}"#,
    others: ["vision_model.", "visual_projection."],
    is_padded: false,
};

pub(super) const SIGLIP: Tower = Tower {
    defaults: r#"{"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 64, "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6}"#,
    others: ["vision_model.", "visual_projection."],
    is_padded: true,
};

impl Tower {
    /// The length of a vector.
    pub fn outputs(&self, keys: &Keys, sizes: &Sizes) -> Result<usize> {
        if self.is_padded {
            return keys.size_or("projection_size", sizes.hidden);
        }
        keys.size_or("projection_dim", 512)
    }

    /// The token whose first occurrence has the vector of a text; by transformers' rule for older
    /// configurations, 2 stands for the largest.
    pub fn ending(&self, keys: &Keys) -> Result<Option<u32>> {
        let ending = (!self.is_padded).then(|| keys.token("eos_token_id", 49407));
        ending.transpose()
    }

    /// Loads the product behind the pooling.
    pub fn project(
        &self,
        keys: &Keys,
        sizes: &Sizes,
        whole: &VarBuilder<'_>,
        tower: &VarBuilder<'_>,
    ) -> Result<nn::Linear> {
        let outputs = self.outputs(keys, sizes)?;
        let place = if self.is_padded { tower.pp("head") } else { whole.pp("text_projection") };
        Ok(sizes.linear(outputs, self.is_padded, place)?)
    }
}

/// The sizes of a tower of texts.
pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        tokens: keys.positions("max_position_embeddings")?,
        ..tower_sizes(keys, keys.size("intermediate_size")?)?
    })
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let layer =
        |place: VarBuilder<'_>| layer(sizes, &TOWER, bert::mlp(sizes, &TOWER, &place)?, place);
    let layers = (0..sizes.layers).map(|i| layer(vb.pp(TOWER.layers).pp(i)));
    let parts = vb.pp("embeddings");
    let table = sizes.table(sizes.tokens, parts.pp("position_embedding"))?;
    let words = sizes.table(sizes.vocab, parts.pp("token_embedding"))?;
    let is_clip = keys.word("model_type")?.is_some_and(|it| it == "clip");
    Ok(Transformer {
        embeddings: Embeddings {
            positions: Some(Positions { table, pad: None }),
            ..Embeddings::words_only(words)
        },
        layers: layers.collect::<Result<_>>()?,
        norm: Some(sizes.norm(vb.pp("final_layer_norm"))?),
        views: vec![View::plain(if is_clip { Sees::Causal } else { Sees::All })],
    })
}

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
