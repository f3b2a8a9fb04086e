//! Changes at a declaration: derives, field attributes, a supertrait.

use syn::Item;

use super::draft::Draft;
use super::types::{Declared, Key};
use super::unit::Unit;

/// Adds derives to the first list of derives, or before the declaration.
pub fn derive(unit: &Unit<'_>, draft: &mut Draft, one: &Declared, names: &[&str]) {
    let source = unit.source;
    let mut attrs = one.attrs().iter();
    let list = attrs.find(|attr| attr.path().is_ident("derive"));
    if let Some(syn::Meta::List(list)) = list.map(|attr| &attr.meta) {
        let end = source.range(list).end - 1;
        let inside = source.text[..end].trim_end();
        let text = names.join(", ");
        let lines = source.text[inside.len()..end].contains('\n') && inside.ends_with(',');
        let text = if lines {
            format!("{}{text},", source.next_line(inside.len() - 1))
        } else if inside.ends_with('(') {
            text
        } else if inside.ends_with(',') {
            format!(" {text}")
        } else {
            format!(", {text}")
        };
        return draft.edits.insert(inside.len(), text);
    }
    // Insert after the documentation, before the other attributes.
    let first = one.attrs().iter().find(|attr| !attr.path().is_ident("doc"));
    let at = first.map_or_else(|| declaration(unit, one), |attr| source.start(attr));
    let (names, next_line) = (names.join(", "), source.next_line(at));
    let text = format!("#[derive({names})]{next_line}");
    draft.edits.insert(at, text);
}

/// The start of a declaration after its attributes.
fn declaration(unit: &Unit<'_>, one: &Declared) -> usize {
    let source = unit.source;
    let (vis, keyword) = match &one.item {
        Item::Struct(item) => (&item.vis, source.start(&item.struct_token)),
        Item::Enum(item) => (&item.vis, source.start(&item.enum_token)),
        item => return source.start(item),
    };
    match vis {
        syn::Visibility::Inherited => keyword,
        vis => source.start(vis),
    }
}

/// Puts `#[quantizable(..)]` before a field, after its documentation.
pub fn attribute(unit: &Unit<'_>, draft: &mut Draft, field: &syn::Field, text: &str) {
    let source = unit.source;
    let mut attrs = field.attrs.iter().rev();
    let at = match attrs.find(|attr| attr.path().is_ident("doc")) {
        Some(doc) => {
            let rest = &source.text[source.range(doc).end..];
            source.text.len() - rest.trim_start().len()
        }
        None => source.start(field),
    };
    let text = format!("#[quantizable({text})]{}", source.gap(at));
    draft.edits.insert(at, text);
}

/// Adds the supertrait `Quantizable` to a trait.
pub fn supertrait(unit: &Unit<'_>, draft: &mut Draft, key: &Key) {
    for one in unit.types.declared.get(key).into_iter().flatten() {
        let Item::Trait(item) = &one.item else { continue };
        let (at, text) = match &item.colon_token {
            Some(colon) => (unit.source.range(colon).end, " Quantizable +"),
            None if item.generics.params.is_empty() => {
                (unit.source.range(&item.ident).end, ": Quantizable")
            }
            None => (unit.source.range(&item.generics).end, ": Quantizable"),
        };
        draft.edits.insert(at, text);
        draft.need_path(&one.module, &["Quantizable"]);
    }
}
