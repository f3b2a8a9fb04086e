//! BERT and models with the same layers under other names: RoBERTa, XLM-RoBERTa and CamemBERT
//! (positions from another row on), DistilBERT (no token types), MPNet (score terms by distance),
//! ELECTRA (narrower tables of words), ALBERT (the same, and layers that are used several times) and
//! Jina BERT v2 (scores that decrease with distance, gated products).

use std::sync::Arc;

use anyhow::Result;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::VarBuilder;

use super::head::Guesses;
use super::layer::{Expanded, Norm, Parts, Projected, post_norm};
use super::sizes::Sizes;
use super::transformer::{Embeddings, Positions, Transformer};
use super::view::{Bias, Sees, View};
use crate::keys::{Keys, MOST};

pub(super) const BERT: Parts = Parts {
    layers: "encoder.layer",
    inputs: Projected::Each(["attention.self.query", "attention.self.key", "attention.self.value"]),
    head_norms: None,
    attention: "attention.self.attention",
    scale: None,
    output: "attention.output.dense",
    up: Expanded::Plain("intermediate.dense"),
    down: "output.dense",
    norms: [post_norm("attention.output.LayerNorm"), post_norm("output.LayerNorm")],
    norm: Norm::Layer { bias: true },
    biases: [true; 3],
};

pub(super) const DISTILBERT: Parts = Parts {
    layers: "transformer.layer",
    inputs: Projected::Each(["attention.q_lin", "attention.k_lin", "attention.v_lin"]),
    output: "attention.out_lin",
    up: Expanded::Plain("ffn.lin1"),
    down: "ffn.lin2",
    norms: [post_norm("sa_layer_norm"), post_norm("output_layer_norm")],
    ..BERT
};

const MPNET: Parts = Parts {
    inputs: Projected::Each(["attention.attn.q", "attention.attn.k", "attention.attn.v"]),
    output: "attention.attn.o",
    norms: [post_norm("attention.LayerNorm"), BERT.norms[1]],
    ..BERT
};

const ALBERT: Parts = Parts {
    inputs: Projected::Each(["attention.query", "attention.key", "attention.value"]),
    output: "attention.dense",
    up: Expanded::Plain("ffn"),
    down: "ffn_output",
    norms: [post_norm("attention.LayerNorm"), post_norm("full_layer_layer_norm")],
    ..BERT
};

const JINA: Parts = Parts {
    up: Expanded::Fused("mlp.gated_layers", true),
    down: "mlp.wo",
    norms: [BERT.norms[0], post_norm("mlp.layernorm")],
    biases: [true, false, true],
    ..BERT
};

pub(super) const GUESSES: Guesses = Guesses {
    dense: "cls.predictions.transform.dense",
    norm: "cls.predictions.transform.LayerNorm",
    decoder: "cls.predictions.decoder",
    bias: "cls.predictions.bias",
    activation: None,
    function: "",
    biases: [("", true); 3],
};

pub(super) const ROBERTA_GUESSES: Guesses = Guesses {
    dense: "lm_head.dense",
    norm: "lm_head.layer_norm",
    decoder: "lm_head.decoder",
    bias: "lm_head.bias",
    activation: Some(FusedActivation::Gelu),
    ..GUESSES
};

pub(super) const DISTILBERT_GUESSES: Guesses = Guesses {
    dense: "vocab_transform",
    norm: "vocab_layer_norm",
    decoder: "vocab_projector",
    bias: "vocab_projector.bias",
    ..GUESSES
};

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    let types = keys.size_or("type_vocab_size", 2)?;
    Ok(Sizes { has_table: true, types, takes_pairs: types > 1, ..Sizes::read(keys)? })
}

pub(super) fn roberta_sizes(keys: &Keys) -> Result<Sizes> {
    let sizes = sizes(keys)?;
    let first = pad(keys)? as usize + 1;
    if sizes.tokens <= first {
        let expected = format!("more than {first} rows, of which texts have those behind padding");
        return Err(keys.fault("max_position_embeddings", &expected));
    }
    Ok(Sizes { tokens: sizes.tokens - first, takes_pairs: true, ..sizes })
}

pub(super) fn mpnet_sizes(keys: &Keys) -> Result<Sizes> {
    let sizes = roberta_sizes(keys)?;
    Ok(Sizes { types: 0, ..sizes })
}

pub(super) fn electra_sizes(keys: &Keys) -> Result<Sizes> {
    Ok(Sizes { embedding: keys.size_or("embedding_size", 128)?, ..sizes(keys)? })
}

pub(super) fn albert_sizes(keys: &Keys) -> Result<Sizes> {
    /// The most layers, none of which needs tensors.
    const LAYERS: usize = 1000;
    let sizes = electra_sizes(keys)?;
    if sizes.layers > LAYERS {
        return Err(keys.fault("num_hidden_layers", &format!("at most {LAYERS}")));
    }
    let activation = keys.activation("hidden_act", FusedActivation::GeluTanh)?;
    Ok(Sizes { activation, ..sizes })
}

pub(super) fn distilbert_sizes(keys: &Keys) -> Result<Sizes> {
    // transformers takes BERT's names of these keys, too.
    let layers = Sizes::of_layers(
        keys,
        [
            ["dim", "hidden_size"],
            ["n_heads", "num_attention_heads"],
            ["n_layers", "num_hidden_layers"],
        ],
    )?;
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        inner: keys.size("hidden_dim")?,
        eps: 1e-12,
        activation: keys.activation("activation", FusedActivation::Gelu)?,
        tokens: keys.positions("max_position_embeddings")?,
        has_table: true,
        ..layers
    })
}

pub(super) fn jina_sizes(keys: &Keys) -> Result<Sizes> {
    let types = keys.size_or("type_vocab_size", 2)?;
    let activation = match keys.word("feed_forward_type")?.as_deref() {
        Some("geglu") => FusedActivation::Gelu,
        Some("reglu") => FusedActivation::Relu,
        _ => return Err(keys.fault("feed_forward_type", "geglu or reglu")),
    };
    Ok(Sizes { types, activation, ..Sizes::read(keys)? })
}

pub(super) fn load(_: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    transformer(sizes, &BERT, None, View::plain(Sees::All), &vb)
}

pub(super) fn load_electra(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let mut model = load(keys, sizes, vb.clone())?;
    if sizes.embedding != sizes.hidden {
        model.embeddings.projection = Some(projection(sizes, vb.pp("embeddings_project"))?);
    }
    Ok(model)
}

pub(super) fn load_albert(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let groups = keys.size_or("num_hidden_groups", 1)?;
    let size = keys.size_or("inner_group_num", 1)?;
    let group = |group| {
        let place = vb.pp("encoder.albert_layer_groups").pp(group);
        let layers = place.pp("albert_layers");
        let layers = (0..size).map(|i| Ok(ALBERT.load(sizes, &layers.pp(i))?));
        layers.collect::<Result<Vec<_>>>()
    };
    let groups = (0..groups).map(group).collect::<Result<Vec<_>>>()?;
    // The quotients of transformers, which may be rounded.
    let passes = sizes.layers as f64 / groups.len() as f64;
    let group_of = |pass| ((pass as f64 / passes) as usize).min(groups.len() - 1);
    let layers = (0..sizes.layers).flat_map(|pass| groups[group_of(pass)].clone()).collect();
    let tables = vb.pp("embeddings");
    let mut embeddings = embeddings(sizes, None, &tables, tables.pp("LayerNorm"))?;
    let into = vb.pp("encoder.embedding_hidden_mapping_in");
    embeddings.projection = Some(projection(sizes, into)?);
    Ok(Transformer { embeddings, layers, norm: None, views: vec![View::plain(Sees::All)] })
}

fn projection(sizes: &Sizes, vb: VarBuilder<'_>) -> Result<nn::Linear> {
    Ok(nn::linear_b(sizes.embedding, sizes.hidden, true, vb)?)
}

pub(super) fn load_roberta(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    transformer(sizes, &BERT, Some(pad(keys)?), View::plain(Sees::All), &vb)
}

pub(super) fn load_mpnet(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let table = vb.pp("encoder.relative_attention_bias");
    let view = bias(keys, 128, sizes.heads.queries, table)?;
    transformer(sizes, &MPNET, Some(pad(keys)?), view, &vb)
}

/// The token for padding, which is also the row of its position; others have the rows behind it.
fn pad(keys: &Keys) -> Result<u32> {
    let is_fixed = keys.word("model_type")?.is_some_and(|it| it == "mpnet");
    let pad = if is_fixed { 1 } else { keys.token("pad_token_id", 1)? };
    if pad as u64 >= MOST {
        return Err(keys.fault("pad_token_id", "a token id below 2^31"));
    }
    Ok(pad)
}

/// A view with the terms of distances in a table, whose last row of a half begins at `furthest`.
pub(super) fn bias(keys: &Keys, furthest: usize, heads: usize, vb: VarBuilder<'_>) -> Result<View> {
    let key = "relative_attention_num_buckets";
    let buckets = keys.size_or(key, 32)?;
    if buckets < 4 || furthest <= buckets / 4 {
        let expected = format!("4 or more, and a quarter of it below {furthest} tokens");
        return Err(keys.fault(key, &expected));
    }
    let table = nn::embedding(buckets, heads, vb)?;
    let table: Vec<Vec<f32>> = table.embeddings().to_vec2()?;
    let term = move |head: usize, distance| table[bucket(distance, buckets, furthest as f32)][head];
    Ok(View::plain(Sees::Biased(Bias { heads, term: Arc::new(term) })))
}

/// The row of a distance. Half of the rows are for keys before the query: near distances have a row
/// each, those further away share rows logarithmically. The other half is for keys after it.
fn bucket(distance: i64, buckets: usize, furthest: f32) -> usize {
    let half = buckets / 2;
    let alone = half / 2;
    let near = distance.unsigned_abs() as usize;
    let place = if near < alone {
        near
    } else {
        let share = (near as f32 / alone as f32).ln() / (furthest / alone as f32).ln();
        (alone + (share * (half - alone) as f32) as usize).min(half - 1)
    };
    place + usize::from(distance > 0) * half
}

/// Jina BERT v2, whose scores decrease with distance (ALiBi).
pub(super) fn load_jina(_: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let heads = sizes.heads.queries;
    let slopes = slopes(heads);
    let term = move |head: usize, distance: i64| -slopes[head] * distance.abs() as f32;
    let view = View::plain(Sees::Biased(Bias { heads, term: Arc::new(term) }));
    transformer(sizes, &JINA, None, view, &vb)
}

/// The slope of each head's scores: powers of `2^(-8 / n)` for `n` heads, a power of two; further
/// heads take every other power of twice as many heads.
fn slopes(heads: usize) -> Vec<f32> {
    let powers = |heads: usize| {
        let power = move |head: usize| (-8. * (head + 1) as f32 / heads as f32).exp2();
        (0..heads).map(power)
    };
    let first = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let rest = powers(2 * first).step_by(2).take(heads - first);
    powers(first).chain(rest).collect()
}

/// A model with BERT's tables, whose layers all have the same view.
pub(super) fn transformer(
    sizes: &Sizes,
    parts: &Parts,
    pad: Option<u32>,
    view: View,
    vb: &VarBuilder<'_>,
) -> Result<Transformer> {
    let tables = vb.pp("embeddings");
    Ok(Transformer {
        embeddings: embeddings(sizes, pad, &tables, tables.pp("LayerNorm"))?,
        layers: parts.load_all(sizes, vb)?,
        norm: None,
        views: vec![view],
    })
}

pub(super) fn embeddings(
    sizes: &Sizes,
    pad: Option<u32>,
    vb: &VarBuilder<'_>,
    norm: VarBuilder<'_>,
) -> Result<Embeddings> {
    let rows = sizes.tokens + pad.map_or(0, |pad| pad as usize + 1);
    let table = (sizes.has_table).then(|| sizes.table(rows, vb.pp("position_embeddings")));
    let table = table.transpose()?;
    let norm = nn::layer_norm(sizes.embedding, sizes.eps, norm)?;
    Ok(Embeddings {
        types: sizes.types(vb.pp("token_type_embeddings"))?,
        positions: table.map(|table| Positions { table, pad }),
        norm: Some(norm),
        ..Embeddings::words_only(sizes.table(sizes.vocab, vb.pp("word_embeddings"))?)
    })
}
