//! DeBERTa v2 and v3: BERT's layers, whose attention also scores contents by relative positions.

use anyhow::Result;
use candle_core::Tensor;
use candle_dynquant::{FusedActivation, nn};
use candle_nn::{Module, VarBuilder};
use serde_json::Value;

use super::bert;
use super::disentangled::{Disentangled, Distances};
use super::head::{ClassHead, Source, two_products};
use super::layer::{Parts, Projected};
use super::sizes::Sizes;
use super::transformer::Transformer;
use super::view::{Sees, View};
use crate::keys::Keys;

const PARTS: Parts = Parts {
    inputs: Projected::Each([
        "attention.self.query_proj",
        "attention.self.key_proj",
        "attention.self.value_proj",
    ]),
    ..bert::BERT
};

pub(super) fn sizes(keys: &Keys) -> Result<Sizes> {
    let sizes = Sizes::read(keys)?;
    for key in ["embedding_size", "pooler_hidden_size"] {
        if keys.size_or(key, sizes.hidden)? != sizes.hidden {
            return Err(keys.fault(key, &format!("hidden_size {}", sizes.hidden)));
        }
    }
    Ok(Sizes {
        eps: keys.epsilon("layer_norm_eps", 1e-7)?,
        has_table: keys.flag("position_biased_input", true)?,
        types: keys.count_or("type_vocab_size", 0)?,
        ..sizes
    })
}

pub(super) fn load(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<Transformer> {
    let meets = meets(keys)?;
    let factor = 1 + meets.iter().filter(|meets| **meets).count();
    let scale = 1. / ((sizes.heads.dim * factor) as f64).sqrt();
    let parts = Parts { scale: Some(scale), ..PARTS };
    let mut model = bert::transformer(sizes, &parts, None, View::plain(Sees::All), &vb)?;
    let relative = keys.flag("relative_attention", false)?;
    let relative = relative.then(|| table(keys, sizes, vb.pp("encoder")));
    let relative = relative.transpose()?;
    for (index, layer) in model.layers.iter_mut().enumerate() {
        let vb = vb.pp("encoder.layer").pp(index).pp("attention.self");
        if let Some((distances, table)) = &relative {
            let is_shared = keys.flag("share_att_key", false)?;
            let product = |index: usize, name| {
                let is_loaded = meets[index] && !is_shared;
                let product = is_loaded.then(|| sizes.linear(sizes.hidden, true, vb.pp(name)));
                product.transpose()
            };
            layer.attention.disentangled = Some(Disentangled {
                table: table.clone(),
                distances: *distances,
                keys: product(0, "pos_key_proj")?,
                queries: product(1, "pos_query_proj")?,
                is_shared,
                meets,
            });
        }
    }
    Ok(model)
}

/// Whether queries meet distances, and whether keys do.
fn meets(keys: &Keys) -> Result<[bool; 2]> {
    let key = "pos_att_type";
    let kinds: Vec<String> = match keys.get(key) {
        None => Vec::new(),
        Some(Value::String(all)) => all.split('|').map(|kind| kind.trim().to_lowercase()).collect(),
        Some(_) => keys.optional(key, "words")?.unwrap_or_default(),
    };
    let known = ["c2p", "p2c"];
    if kinds.iter().any(|kind| !known.contains(&&**kind)) {
        return Err(keys.fault(key, "c2p, p2c or both"));
    }
    Ok(known.map(|known| kinds.iter().any(|kind| kind == known)))
}

/// The rows of distances and their vectors.
fn table(keys: &Keys, sizes: &Sizes, vb: VarBuilder<'_>) -> Result<(Distances, Tensor)> {
    // Nothing above 0 stands for none.
    let count = |key| match keys.get(key).and_then(Value::as_i64) {
        Some(..=0) => Ok(None),
        _ => keys.number(key),
    };
    let most = count("max_relative_positions")?.unwrap_or(sizes.tokens);
    let buckets = count("position_buckets")?;
    if buckets.is_some_and(|buckets| buckets < 2 || most <= buckets / 2 + 1) {
        let expected = "2 or more, of which half is less than max_relative_positions - 1";
        return Err(keys.fault("position_buckets", expected));
    }
    let distances = Distances { span: buckets.unwrap_or(most), furthest: buckets.map(|_| most) };
    let table = nn::embedding(2 * distances.span, sizes.hidden, vb.pp("rel_embeddings"))?;
    let table = table.embeddings().clone();
    let is_normalized = keys.word("norm_rel_ebd")?.is_some_and(|it| it == "layer_norm");
    if !is_normalized {
        return Ok((distances, table));
    }
    let table = sizes.norm(vb.pp("LayerNorm"))?.forward(&table)?;
    Ok((distances, table))
}

/// The first token's vector, a product and the classifier.
pub(super) fn head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    let activation = source.keys.activation("pooler_hidden_act", FusedActivation::Gelu)?;
    let dense = source.vb.pp("pooler.dense");
    two_products(source, dense, activation, "classifier")
}
