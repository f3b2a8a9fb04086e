//! BERT and models with the same layers under other names: RoBERTa, XLM-RoBERTa and CamemBERT
//! (positions from another row on), DistilBERT (no token types), MPNet (score terms by distance),
//! ELECTRA (narrower tables of words) and ALBERT (the same, and layers that are used several times).

use std::sync::Arc;

use anyhow::Result;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::VarBuilder;

use super::attention::Attention;
use super::head::{BIASES, ClassHead, Guesses, Source};
use super::mlp::{Mlp, Up};
use super::projections::{Heads, Inputs};
use super::sizes::Sizes;
use super::transformer::{Embeddings, Layer, Positions, Residual, Transformer};
use super::view::{Bias, Sees, View};
use crate::keys::{Keys, MOST};

/// The names of a layer's parts in a checkpoint.
pub(super) struct Names {
    pub layers: &'static str,
    pub inputs: [&'static str; 3],
    pub output: &'static str,
    pub attention_norm: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    pub norm: &'static str,
    pub mlp: fn(&Sizes, &Names, &VarBuilder<'_>) -> Result<Mlp>,
}

pub(super) const BERT: Names = Names {
    layers: "encoder.layer",
    inputs: ["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
    mlp,
};

const DISTILBERT: Names = Names {
    layers: "transformer.layer",
    inputs: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    norm: "output_layer_norm",
    mlp,
};

const MPNET: Names = Names {
    inputs: ["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    ..BERT
};

const ALBERT: Names = Names {
    inputs: ["attention.query", "attention.key", "attention.value"],
    output: "attention.dense",
    attention_norm: "attention.LayerNorm",
    up: "ffn",
    down: "ffn_output",
    norm: "full_layer_layer_norm",
    ..BERT
};

pub(super) const GUESSES: Guesses = Guesses {
    dense: "cls.predictions.transform.dense",
    norm: "cls.predictions.transform.LayerNorm",
    decoder: "cls.predictions.decoder",
    bias: "cls.predictions.bias",
    activation: None,
    function: "",
    biases: BIASES,
};

pub(super) const ROBERTA_GUESSES: Guesses = Guesses {
    dense: "lm_head.dense",
    norm: "lm_head.layer_norm",
    decoder: "lm_head.decoder",
    bias: "lm_head.bias",
    activation: Some(FusedActivation::Gelu),
    function: "",
    biases: BIASES,
};

pub(super) const DISTILBERT_GUESSES: Guesses = Guesses {
    dense: "vocab_transform",
    norm: "vocab_layer_norm",
    decoder: "vocab_projector",
    bias: "vocab_projector.bias",
    activation: None,
    function: "",
    biases: BIASES,
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
    let hidden = keys.size_as("dim", "hidden_size")?;
    let heads = keys.size_as("n_heads", "num_attention_heads")?;
    keys.divides("n_heads", heads, "dim", hidden)?;
    Ok(Sizes {
        vocab: keys.size("vocab_size")?,
        hidden,
        embedding: hidden,
        layers: keys.size_as("n_layers", "num_hidden_layers")?,
        heads: Heads::equal(heads, hidden),
        inner: keys.size("hidden_dim")?,
        eps: 1e-12,
        activation: keys.activation("activation", FusedActivation::Gelu)?,
        tokens: keys.positions("max_position_embeddings")?,
        has_table: true,
        types: 0,
        takes_pairs: true,
    })
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
        let layers = (0..size).map(|i| layer(sizes, &ALBERT, place.pp("albert_layers").pp(i)));
        layers.collect::<Result<Vec<_>>>()
    };
    let groups = (0..groups).map(group).collect::<Result<Vec<_>>>()?;
    // The quotients of transformers, which may be rounded.
    let passes = sizes.layers as f64 / groups.len() as f64;
    let group_of = |pass| ((pass as f64 / passes) as usize).min(groups.len() - 1);
    let layers = (0..sizes.layers).flat_map(|pass| groups[group_of(pass)].clone());
    let tables = vb.pp("embeddings");
    let mut embeddings = embeddings(sizes, None, &tables, tables.pp("LayerNorm"))?;
    let into = vb.pp("encoder.embedding_hidden_mapping_in");
    embeddings.projection = Some(projection(sizes, into)?);
    Transformer::new(embeddings, layers.map(Ok), View::plain(Sees::All))
}

/// The product from narrower tables.
fn projection(sizes: &Sizes, vb: VarBuilder<'_>) -> Result<nn::Linear> {
    Ok(nn::linear_b(sizes.embedding, sizes.hidden, true, vb)?)
}

pub(super) fn load_distilbert(_: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    transformer(sizes, &DISTILBERT, None, View::plain(Sees::All), &vb)
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
    let term = Arc::new(term);
    Ok(View::plain(Sees::Biased(Bias { heads, term })))
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

pub(super) fn transformer(
    sizes: &Sizes,
    names: &Names,
    pad: Option<u32>,
    view: View,
    vb: &VarBuilder<'_>,
) -> Result<Transformer> {
    let layers = 0..sizes.layers;
    let layers = layers.map(|index| layer(sizes, names, vb.pp(names.layers).pp(index)));
    let vb = vb.pp("embeddings");
    Transformer::new(embeddings(sizes, pad, &vb, vb.pp("LayerNorm"))?, layers, view)
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

fn layer(sizes: &Sizes, names: &Names, vb: VarBuilder<'_>) -> Result<Layer> {
    layer_around(sizes, names, (names.mlp)(sizes, names, &vb)?, &vb)
}

/// A layer with these inner products.
pub(super) fn layer_around(
    sizes: &Sizes,
    names: &Names,
    mlp: Mlp,
    vb: &VarBuilder<'_>,
) -> Result<Layer> {
    let square = |name| sizes.linear(sizes.hidden, true, vb.pp(name));
    let [q, k, v] = names.inputs.map(square);
    let inputs = Inputs::Each(Box::new([q?, k?, v?]));
    let output = square(names.output)?;
    let place = vb.pp("attention.self.attention");
    Ok(Layer {
        attention: Attention::new(inputs, output, sizes.heads, place),
        around_attention: Residual::post_norm(sizes.norm(vb.pp(names.attention_norm))?),
        mlp,
        around_mlp: Residual::post_norm(sizes.norm(vb.pp(names.norm))?),
        view: 0,
    })
}

/// The products behind attention.
pub(super) fn mlp(sizes: &Sizes, names: &Names, vb: &VarBuilder<'_>) -> Result<Mlp> {
    let up = sizes.linear(sizes.inner, true, vb.pp(names.up))?;
    Ok(Mlp::Products {
        up: Up::Plain(up.with_activation(sizes.activation)),
        down: sizes.down(true, vb.pp(names.down))?,
    })
}

/// BERT's pooler and a product; also for models with other layers.
pub(super) fn head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    let pooler = source.model.pp("pooler.dense");
    two_products(source, pooler, FusedActivation::Tanh, "classifier")
}

pub(super) fn roberta_head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    let dense = source.vb.pp("classifier.dense");
    two_products(source, dense, FusedActivation::Tanh, "classifier.out_proj")
}

pub(super) fn electra_head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    let dense = source.vb.pp("classifier.dense");
    two_products(source, dense, FusedActivation::Gelu, "classifier.out_proj")
}

pub(super) fn albert_head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    let pooler = source.model.pp("pooler");
    two_products(source, pooler, FusedActivation::Tanh, "classifier")
}

pub(super) fn distilbert_head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    let dense = source.vb.pp("pre_classifier");
    two_products(source, dense, FusedActivation::Relu, "classifier")
}

/// A square product with its activation, then the classifier, if the model has both.
pub(super) fn two_products(
    source: &Source<'_>,
    dense: VarBuilder<'_>,
    activation: FusedActivation,
    classifier: &str,
) -> Result<Option<ClassHead>> {
    if !source.is_classifier(classifier) {
        return Ok(None);
    }
    let dense = source.square(dense, true)?;
    let head = ClassHead::of_first(source.classes(classifier, true)?);
    Ok(Some(head.behind(dense, activation)))
}
