//! Nomic BERT, Jina embeddings v3, and GTE of 2024 and later, including Snowflake's Arctic Embed 2:
//! BERT's norms, with rotary positions. GTE's products are gated by the model's function, Nomic's
//! by SiLU, and its `config.json` has GPT-2's keys, or BERT's if transformers wrote it; its second
//! version has GELU without gates, and experts in every second layer.

use anyhow::Result;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::VarBuilder;
use serde_json::Value;

use super::bert;
use super::layer::{Expanded, Parts, Projected, post_norm};
use super::mlp::{Mixture, Mlp};
use super::rope::Rope;
use super::sizes::Sizes;
use super::transformer::Transformer;
use super::view::{Sees, View};
use crate::keys::Keys;

const NOMIC: Parts = Parts {
    layers: "encoder.layers",
    inputs: Projected::Fused("attn.Wqkv"),
    attention: "attn.attention",
    output: "attn.out_proj",
    up: Expanded::Plain("mlp.fc1"),
    down: "mlp.fc2",
    norms: [post_norm("norm1"), post_norm("norm2")],
    ..bert::BERT
};

const JINA: Parts = Parts {
    inputs: Projected::Fused("mixer.Wqkv"),
    attention: "mixer.attention",
    output: "mixer.out_proj",
    ..NOMIC
};

const GTE: Parts = Parts {
    inputs: Projected::Fused("attention.qkv_proj"),
    attention: "attention.attention",
    output: "attention.o_proj",
    up: Expanded::Fused("mlp.up_gate_proj", false),
    down: "mlp.down_proj",
    norms: [post_norm("attn_ln"), post_norm("mlp_ln")],
    biases: [true, false, true],
    ..bert::BERT
};

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    if keys.get("n_embd").is_none() {
        if keys.get("rotary_emb_base").is_some() {
            return Err(keys.fault("rotary_emb_base", "rope_parameters beside the keys of BERT"));
        }
        let types = keys.count_or("type_vocab_size", 2)?;
        let activation = keys.activation("hidden_act", FusedActivation::Silu)?;
        let sizes = Sizes { types, activation, ..Sizes::read(keys)? };
        let dim = sizes.heads.dim;
        if keys.size_or("head_dim", dim)? != dim {
            return Err(keys.fault("head_dim", &dim.to_string()));
        }
        return Ok(sizes);
    }
    let layers = Sizes::of_layers(keys, ["n_embd", "n_head", "n_layer"].map(|name| [name; 2]))?;
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        inner: keys.size_or("n_inner", 4 * layers.hidden)?,
        eps: keys.epsilon("layer_norm_epsilon", 1e-12)?,
        activation: [FusedActivation::Gelu, FusedActivation::Silu][usize::from(has_gate(keys))],
        tokens: keys.positions("n_positions")?,
        types: keys.count_or("type_vocab_size", 2)?,
        ..layers
    })
}

pub(super) fn gte_sizes(keys: &Keys) -> Result<Sizes> {
    let types = keys.count_or("type_vocab_size", 1)?;
    Ok(Sizes { types, ..Sizes::read(keys)? })
}

pub(super) fn load_gte(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let frequencies = Rope::read(keys, 160_000.)?.frequencies(sizes.heads.dim)?;
    bert::transformer(sizes, &GTE, None, View::rotary(Sees::All, frequencies), &vb)
}

fn has_gate(keys: &Keys) -> bool {
    keys.get("activation_function").is_none_or(|it| it != "gelu")
}

pub(super) fn jina_sizes(keys: &Keys) -> Result<Sizes> {
    let eps = keys.epsilon("layer_norm_eps", 1e-5)?;
    Ok(Sizes { eps, ..gte_sizes(keys)? })
}

/// The sizes by the keys of Jina's code, which must say how fast positions rotate.
pub(super) fn published_jina_sizes(keys: &Keys) -> Result<Sizes> {
    let key = "rotary_emb_base";
    let base = keys.positive(key)?;
    base.ok_or_else(|| keys.fault(key, "a number above 0"))?;
    gte_sizes(keys)
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let biases = ["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"];
    let [attention, up_bias, down] = biases.map(|key| keys.flag(key, false));
    let up = if has_gate(keys) { Expanded::Gated(["mlp.fc12", "mlp.fc11"]) } else { NOMIC.up };
    let parts = Parts { up, biases: [attention?, up_bias?, down?], ..NOMIC };
    transformer(keys, sizes, &parts, experts(keys)?, 1000., vb)
}

pub(super) fn load_jina(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    transformer(keys, sizes, &JINA, None, 20_000., vb)
}

/// The numbers of experts in every second layer, and of those that compute a token.
fn experts(keys: &Keys) -> Result<Option<[usize; 2]>> {
    if keys.get("moe_every_n_layers").is_none_or(|it| it != 2) {
        return Ok(None);
    }
    for (key, only) in [
        ("activation_function", Value::from("gelu")),
        ("moe_normalize_expert_weights", false.into()),
        ("expert_choice_router", false.into()),
        ("num_shared_experts", 0.into()),
        ("ffn_div", 1.into()),
    ] {
        if keys.get(key) != Some(&only) {
            return Err(keys.fault(key, &only.to_string()));
        }
    }
    let (count, key) = (keys.size("num_experts")?, "moe_top_k");
    let chosen = keys.size(key)?;
    if chosen > count {
        return Err(keys.fault(key, &format!("at most {count}, as num_experts says")));
    }
    Ok(Some([count, chosen]))
}

fn transformer(
    keys: &Keys,
    sizes: &Sizes,
    parts: &Parts,
    experts: Option<[usize; 2]>,
    theta: f64,
    vb: VarBuilder<'_>,
) -> Result<Transformer> {
    let embeddings = bert::embeddings(sizes, None, &vb.pp("embeddings"), vb.pp("emb_ln"))?;
    let theta = keys.positive("rotary_emb_base")?.unwrap_or(theta);
    let frequencies = Rope::read(keys, theta)?.frequencies(sizes.heads.dim)?;
    let places = vb.pp(parts.layers);
    let layers = (0..sizes.layers).map(|index| {
        let place = places.pp(index);
        match experts.filter(|_| index % 2 == 1) {
            Some(experts) => {
                let mixture = mixture(sizes, experts, &place.pp("mlp"))?;
                Ok(parts.load_around(sizes, Mlp::Mixture(mixture), &place)?)
            }
            None => Ok(parts.load(sizes, &place)?),
        }
    });
    Ok(Transformer {
        embeddings,
        layers: layers.collect::<Result<_>>()?,
        norm: None,
        views: vec![View::rotary(Sees::All, frequencies)],
    })
}

/// Experts whose two matrices, `[inner, hidden]` each, follow each other in one tensor for each of both.
fn mixture(sizes: &Sizes, [count, chosen]: [usize; 2], vb: &VarBuilder<'_>) -> Result<Mixture> {
    let (hidden, inner) = (sizes.hidden, sizes.inner);
    let all = |name| vb.get((count * inner, hidden), name);
    let (ups, downs) = (all("experts.mlp.w1")?, all("experts.mlp.w2")?);
    let expert = |index| {
        let [up, down] = [&ups, &downs].map(|all| all.narrow(0, index * inner, inner));
        let [up, down] = [up?, down?.t()?.contiguous()?].map(|it| nn::Linear::new(it, None));
        Ok(nn::Expert::plain(up, down).with_activation(sizes.activation))
    };
    let experts: Result<_> = (0..count).map(expert).collect();
    Ok(Mixture {
        router: nn::router(hidden, count, vb.pp("router.layer"))?,
        experts: nn::Experts::new(experts?),
        chosen,
        bias: vb.get(hidden, "experts.bias")?,
    })
}
