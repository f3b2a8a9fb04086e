//! Rewrites tensors of a struct that multiply like a layer's weight: a `Linear` holds them.

mod fields;
mod holder;
pub mod product;
mod reads;
mod search;

use std::collections::BTreeSet;

use crate::draft::Draft;
use crate::names::Modules;
use crate::syntax::mentions;
use crate::table::Home;
use crate::types::{Key, key};
use crate::unit::Unit;
use crate::weights::has_products;
use fields::{declaration, literals};
use holder::{Holder, ProductPlan, Replacements};
use reads::others;
use search::plan;

/// Rewrites the structs that are certain; returns their names and the names of removed tensors.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, modules: &Modules) -> BTreeSet<(Key, String)> {
    let mut held = BTreeSet::new();
    if !has_products(unit) {
        return held;
    }
    for declared in unit.types.declared.values() {
        let [one] = declared.as_slice() else { continue };
        let at = unit.source.start(&one.item);
        if unit.source.is_kept(at) || draft.edits.is_rewritten(at) {
            continue;
        }
        let Some(holder) = Holder::new(unit, one) else { continue };
        let nn = modules.name(Home::Nn);
        let with_bias = plan(&holder, true).and_then(|plan| edits(&holder, &plan, nn));
        let changes = with_bias.or_else(|| edits(&holder, &plan(&holder, false)?, nn));
        let Some((changes, gone)) = changes else { continue };
        for (range, text) in changes {
            draft.edits.rewrite(range, text);
        }
        held.extend(gone.into_iter().map(|field| (key(one), field)));
        draft.need(&one.module, nn, Home::Nn);
    }
    held
}

/// The changes that a plan needs, and the removed fields; `None` if they are not certain.
fn edits(holder: &Holder<'_>, plan: &ProductPlan, nn: &str) -> Option<(Replacements, Vec<String>)> {
    let layers = plan.layers(holder)?;
    let source = holder.unit.source;
    let mut changes = Vec::new();
    for found in &plan.products {
        let layer = &layers[&found.product.weight];
        // An input that is written elsewhere reads no removed tensor.
        let reads = |name: &String| mentions(&found.product.input, name) > 0;
        if found.input.is_none() && layers.keys().any(reads) {
            return None;
        }
        let call = found.call(&layer.name, holder.has_module);
        changes.push((found.rewritten(), call));
    }
    for range in &plan.gone {
        changes.push((source.with_comments(range.clone()), String::new()));
    }
    changes.extend(others(holder, plan, &layers)?);
    changes.extend(declaration(holder, &layers, nn)?);
    changes.extend(literals(holder, &layers, nn)?);
    let biases = layers.values().filter_map(|layer| layer.bias.clone());
    let gone = layers.keys().cloned().chain(biases).collect();
    Some((changes, gone))
}
