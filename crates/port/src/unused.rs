//! Imports and variables that the changes have left without a use.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use syn::{Item, Visibility};

use super::draft::Draft;
use super::unit::Unit;

/// How often names occur outside of imports, at first and now.
pub struct Unused {
    before: BTreeMap<String, usize>,
    now: BTreeMap<String, usize>,
}

impl Unused {
    /// Of a file as it was read and as it is.
    pub fn of(original: &str, now: &str) -> Self {
        Self {
            before: idents(original),
            now: idents(now),
        }
    }

    /// Whether an import has lost its last use. Of functions and of what is named where it is used:
    /// a trait may be used by its methods.
    pub fn is_import(&self, name: &str) -> bool {
        let types = ["D", "DType", "Device", "Shape", "Tensor"];
        let named = name.starts_with(char::is_lowercase) || types.contains(&name);
        // The trait of `xs.i(..)`.
        let used = if name == "IndexOp" { "i" } else { name };
        let named = named || name == "IndexOp";
        named && self.before.contains_key(used) && !self.now.contains_key(used)
    }

    /// Whether a function has lost its last use, so that only its declaration has the name.
    fn is_function(&self, name: &str) -> bool {
        let before = self.before.get(name).copied().unwrap_or_default();
        before > 1 && self.now.get(name) == Some(&1)
    }
}

/// Takes away private functions that nothing calls any more.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, unused: &Unused) {
    for item in &unit.file.items {
        let Item::Fn(function) = item else { continue };
        let plain = matches!(function.vis, Visibility::Inherited)
            && function
                .attrs
                .iter()
                .all(|attr| attr.path().is_ident("doc"));
        if plain && unused.is_function(&function.sig.ident.to_string()) {
            let range = unit.source.item_lines(unit.source.range(item));
            draft.edits.rewrite(range, "");
        }
    }
}

fn idents(text: &str) -> BTreeMap<String, usize> {
    fn count(tokens: TokenStream, counts: &mut BTreeMap<String, usize>) {
        let mut in_use = false;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if ident == "use" => in_use = true,
                TokenTree::Punct(punct) if punct.as_char() == ';' => in_use = false,
                TokenTree::Ident(ident) if !in_use => {
                    *counts.entry(ident.to_string()).or_default() += 1;
                }
                TokenTree::Group(group) if !in_use => count(group.stream(), counts),
                _ => {}
            }
        }
    }
    let mut counts = BTreeMap::new();
    count(text.parse().unwrap_or_default(), &mut counts);
    counts
}
