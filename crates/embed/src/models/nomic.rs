//! Nomic BERT and Jina embeddings v3: BERT's norms, with rotary positions. Nomic's products are gated
//! by SiLU, and its `config.json` has GPT-2's keys, or BERT's if transformers wrote it; its second
//! version has GELU without gates, and experts in every second layer.

use anyhow::Result;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::VarBuilder;
use serde_json::Value;

use super::attention::Attention;
use super::mlp::{Mixture, Mlp, Up};
use super::projections::{Heads, Inputs};
use super::rope::Rope;
use super::sizes::Sizes;
use super::transformer::{Layer, Residual, Transformer};
use super::view::{Sees, View};
use super::{bert, gte};
use crate::keys::Keys;

/// The differences between the layers of the two models.
struct Parts {
    /// The name of attention.
    mixer: &'static str,
    has_gate: bool,
    /// Whether attention and the products up and down have biases.
    biases: [bool; 3],
    /// The numbers of experts in every second layer, and of those that compute a token.
    experts: Option<[usize; 2]>,
}

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
        activation: [FusedActivation::Gelu, FusedActivation::Silu][usize::from(has_gate(keys))],
        tokens: keys.positions("n_positions")?,
        has_table: false,
        types: keys.count_or("type_vocab_size", 2)?,
        takes_pairs: true,
    })
}

fn has_gate(keys: &Keys) -> bool {
    keys.get("activation_function").is_none_or(|it| it != "gelu")
}

pub(super) fn jina_sizes(keys: &Keys) -> Result<Sizes> {
    let eps = keys.epsilon("layer_norm_eps", 1e-5)?;
    let sizes = gte::sizes(keys)?;
    Ok(Sizes { eps, ..sizes })
}

/// The sizes by the keys of Jina's code, which must say how fast positions rotate.
pub(super) fn published_jina_sizes(keys: &Keys) -> Result<Sizes> {
    let key = "rotary_emb_base";
    let base = keys.positive(key)?;
    base.ok_or_else(|| keys.fault(key, "a number above 0"))?;
    gte::sizes(keys)
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let biases = ["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"];
    let [attention, up, down] = biases.map(|key| keys.flag(key, false));
    let parts = Parts {
        mixer: "attn",
        has_gate: has_gate(keys),
        biases: [attention?, up?, down?],
        experts: experts(keys)?,
    };
    transformer(keys, sizes, &parts, 1000., vb)
}

pub(super) fn load_jina(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let parts = Parts { mixer: "mixer", has_gate: false, biases: [true; 3], experts: None };
    transformer(keys, sizes, &parts, 20_000., vb)
}

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
    theta: f64,
    vb: VarBuilder<'_>,
) -> Result<Transformer> {
    let embeddings = bert::embeddings(sizes, None, &vb.pp("embeddings"), vb.pp("emb_ln"))?;
    let theta = keys.positive("rotary_emb_base")?.unwrap_or(theta);
    let frequencies = Rope::read(keys, theta)?.frequencies(sizes.heads.dim)?;
    let layers = 0..sizes.layers;
    let layers = layers.map(|index| {
        let experts = parts.experts.filter(|_| index % 2 == 1);
        layer(sizes, parts, experts, vb.pp("encoder.layers").pp(index))
    });
    Transformer::new(embeddings, layers, View::rotary(Sees::All, frequencies))
}

fn layer(
    sizes: &Sizes,
    parts: &Parts,
    experts: Option<[usize; 2]>,
    vb: VarBuilder<'_>,
) -> Result<Layer> {
    let [bias, of_up, of_down] = parts.biases;
    let (mixer, mlp) = (vb.pp(parts.mixer), vb.pp("mlp"));
    let inputs = sizes.linear(3 * sizes.hidden, bias, mixer.pp("Wqkv"))?;
    let output = sizes.linear(sizes.hidden, bias, mixer.pp("out_proj"))?;
    let up = |name| sizes.linear(sizes.inner, of_up, mlp.pp(name));
    let activation = sizes.activation;
    let place = mixer.pp("attention");
    Ok(Layer {
        attention: Attention::new(Inputs::Fused(inputs), output, sizes.heads, place),
        around_attention: Residual::post_norm(sizes.norm(vb.pp("norm1"))?),
        mlp: if let Some(experts) = experts {
            Mlp::Mixture(mixture(sizes, experts, &mlp)?)
        } else {
            Mlp::Products {
                up: if parts.has_gate {
                    Up::Gated { gate: up("fc12")?, value: up("fc11")?, activation }
                } else {
                    Up::Plain(up("fc1")?.with_activation(activation))
                },
                down: sizes.down(of_down, mlp.pp("fc2"))?,
            }
        },
        around_mlp: Residual::post_norm(sizes.norm(vb.pp("norm2"))?),
        view: 0,
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
