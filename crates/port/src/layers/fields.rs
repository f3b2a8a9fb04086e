//! The declaration and the constructors of a struct whose tensors move into a layer.

use syn::Fields as StructFields;

use super::holder::{Holder, Layers, Replacements, named};
use crate::built::{Literals, given};
use crate::syntax::ident;
use crate::types::key;

/// Rewrites the fields: a layer in place of the weight, and no bias.
pub fn declaration(holder: &Holder<'_>, layers: &Layers, nn: &str) -> Option<Replacements> {
    let source = holder.unit.source;
    let mut changes = Vec::new();
    let mut public = false;
    for (name, field) in named(holder.fields) {
        let is_bias = layers.values().any(|l| l.bias.as_ref() == Some(&name));
        if !is_bias && !layers.contains_key(&name) {
            continue;
        }
        public |= !matches!(field.vis, syn::Visibility::Inherited);
        if let Some(layer) = layers.get(&name) {
            let ty = format!("{nn}::Linear");
            let ty = if layer.is_list { format!("Vec<{ty}>") } else { ty };
            changes.push(match &field.ident {
                Some(ident) => {
                    let range = source.start(ident)..source.range(&field.ty).end;
                    (range, format!("{}: {ty}", layer.name))
                }
                None => (source.range(&field.ty), ty),
            });
        } else if let StructFields::Named(fields) = holder.fields {
            let range = source.item_of_list(&fields.named, field);
            changes.push((range, String::new()));
        }
    }
    let type_name = &holder.declared.name;
    let (unit, names) = (holder.unit, layers.keys());
    let elsewhere =
        public && (holder.is_tuple() || unit.world.is_built_elsewhere(unit.path, type_name, names));
    (!elsewhere).then_some(changes)
}

/// Rewrites the constructors: the layer is built from the values of the tensors.
pub fn literals(holder: &Holder<'_>, layers: &Layers, nn: &str) -> Option<Replacements> {
    let (unit, source) = (holder.unit, holder.unit.source);
    let literals = unit.built.literals.get(&key(holder.declared))?;
    if holder.is_tuple() {
        return tuples(holder, literals, layers, nn);
    }
    if literals.found.is_empty() || literals.patterns {
        return None;
    }
    let mut changes = Vec::new();
    for (literal, in_result) in &literals.found {
        if literal.rest.is_some() {
            return None;
        }
        for (weight, layer) in layers {
            let value = given(literal, weight)?;
            let mut tensor = source.slice(&value.expr).to_owned();
            if layer.is_list {
                ident(&value.expr).filter(|_| layer.bias.is_none())?;
                tensor += ".get(index)?";
            }
            if layer.turned {
                tensor += ".t()?";
            }
            if !in_result && (layer.turned || layer.is_list) {
                return None;
            }
            let bias = match &layer.bias {
                None => "None".to_owned(),
                Some(bias) => {
                    let bias_value = given(literal, bias)?;
                    let range = source.item_of_list(&literal.fields, bias_value);
                    changes.push((range, String::new()));
                    let text = source.slice(&bias_value.expr);
                    if holder.tensors.options.contains(bias) {
                        text.to_owned()
                    } else {
                        format!("Some({text})")
                    }
                }
            };
            let linear = format!("{nn}::Linear::new({tensor}, {bias})");
            let linear = match (layer.is_list, ident(&value.expr)) {
                (true, Some(stack)) => {
                    format!(
                        "(0..{stack}.dim(0)?).map(|index| Ok({linear})).collect::<Result<_>>()?"
                    )
                }
                _ => linear,
            };
            let text = format!("{}: {linear}", layer.name);
            changes.push((source.range(value), text));
        }
    }
    Some(changes)
}

/// The edits of a tuple struct, which is built by calls.
fn tuples(
    holder: &Holder<'_>,
    literals: &Literals<'_>,
    layers: &Layers,
    nn: &str,
) -> Option<Replacements> {
    let source = holder.unit.source;
    let other = literals.patterns || literals.is_value || !literals.found.is_empty();
    if literals.tuples.is_empty() || other {
        return None;
    }
    let mut changes = Vec::new();
    for (call, in_result) in &literals.tuples {
        for (weight, layer) in layers {
            let value = call.args.iter().nth(weight.parse().ok()?)?;
            let turn = if layer.turned { ".t()?" } else { "" };
            if layer.is_list || layer.turned && !in_result {
                return None;
            }
            let layer = format!("{nn}::Linear::new({}{turn}, None)", source.slice(value));
            changes.push((source.range(value), layer));
        }
    }
    Some(changes)
}
