//! The towers of CLIP and SigLIP, whose layers have norms before their parts.

use anyhow::Result;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::VarBuilder;

use super::bert;
use super::layer::{Expanded, Parts, Projected, pre_norm};
use super::sizes::Sizes;
use super::transformer::{Embeddings, Positions, Transformer};
use super::view::{Sees, View};
use crate::keys::Keys;

pub(super) const TOWER: Parts = Parts {
    layers: "encoder.layers",
    inputs: Projected::Each(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    output: "self_attn.out_proj",
    up: Expanded::Plain("mlp.fc1"),
    down: "mlp.fc2",
    norms: [pre_norm("layer_norm1"), pre_norm("layer_norm2")],
    ..bert::BERT
};

/// The properties of a tower of texts beside one of pictures.
#[derive(Debug)]
pub(crate) struct Tower {
    /// transformers' values of keys that `config.json` leaves out.
    pub defaults: &'static str,
    /// Whether texts are padded to the most tokens, and all of these seen, as in SigLIP.
    pub is_padded: bool,
}

pub(super) const CLIP: Tower = Tower {
    defaults: r#"{"vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 8, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        "eos_token_id": 49407}"#,
    is_padded: false,
};

pub(super) const SIGLIP: Tower = Tower {
    defaults: r#"{"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 64, "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6}"#,
    is_padded: true,
};

impl Tower {
    /// The beginnings of the names of the other tower's tensors.
    pub const OTHERS: [&str; 2] = ["vision_model.", "visual_projection."];

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

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        tokens: keys.positions("max_position_embeddings")?,
        ..tower_sizes(keys, keys.size("intermediate_size")?)?
    })
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let parts = vb.pp("embeddings");
    let table = sizes.table(sizes.tokens, parts.pp("position_embedding"))?;
    let words = sizes.table(sizes.vocab, parts.pp("token_embedding"))?;
    let is_clip = keys.word("model_type")?.is_some_and(|it| it == "clip");
    Ok(Transformer {
        embeddings: Embeddings {
            positions: Some(Positions { table, pad: None }),
            ..Embeddings::words_only(words)
        },
        layers: TOWER.load_all(sizes, &vb)?,
        norm: Some(sizes.norm(vb.pp("final_layer_norm"))?),
        views: vec![View::plain(if is_clip { Sees::Causal } else { Sees::All })],
    })
}

/// The sizes of a tower, without those of texts.
pub(super) fn tower_sizes(keys: &Keys, inner: usize) -> Result<Sizes> {
    Ok(Sizes {
        inner,
        eps: keys.epsilon("layer_norm_eps", 1e-5)?,
        activation: keys.activation("hidden_act", FusedActivation::QuickGelu)?,
        has_table: true,
        takes_pairs: false,
        ..Sizes::of_bert_layers(keys)?
    })
}
