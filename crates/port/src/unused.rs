//! Imports and variables that the changes have left unused.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Item, Visibility};

use super::draft::Draft;
use super::unit::Unit;

/// The numbers of occurrences of names outside of imports, before and now.
pub struct Unused {
    before: BTreeMap<String, usize>,
    now: BTreeMap<String, usize>,
}

impl Unused {
    /// Counts the names of a file before and after the changes.
    pub fn new(original: &str, now: &str) -> Self {
        Self {
            before: idents(original),
            now: idents(now),
        }
    }

    /// Whether an import has lost its last use. Applies to functions and to names that appear where
    /// they are used: a trait may be used through its methods.
    pub fn is_import(&self, name: &str) -> bool {
        let types = ["D", "DType", "Device", "Shape", "Tensor"];
        let named = name.starts_with(char::is_lowercase) || types.contains(&name);
        // The trait of `xs.i(..)`.
        let used = if name == "IndexOp" { "i" } else { name };
        let named = named || name == "IndexOp";
        // Another import may begin with it.
        let root = root(used);
        let is_in =
            |names: &BTreeMap<String, usize>| names.contains_key(used) || names.contains_key(&root);
        named && is_in(&self.before) && !is_in(&self.now)
    }

    /// Whether a function has lost its last use, so that only its declaration has the name.
    fn is_function(&self, name: &str) -> bool {
        let before = self.before.get(name).copied().unwrap_or_default();
        before > 1 && self.now.get(name) == Some(&1)
    }
}

/// Removes private functions that are no longer called.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, unused: &Unused) {
    for item in &unit.file.items {
        let Item::Fn(function) = item else { continue };
        let private = matches!(function.vis, Visibility::Inherited);
        let mut attrs = function.attrs.iter();
        let plain = private && attrs.all(|attr| attr.path().is_ident("doc"));
        if plain && unused.is_function(&function.sig.ident.to_string()) {
            let range = unit.source.item_lines(unit.source.range(item));
            draft.edits.rewrite(range, "");
        }
    }
}

/// A name as the root of an import, among the names of a file.
fn root(name: &str) -> String {
    format!("use {name}")
}

fn idents(text: &str) -> BTreeMap<String, usize> {
    fn count(tokens: TokenStream, counts: &mut BTreeMap<String, usize>) {
        let (mut in_use, mut is_root) = (false, false);
        let mut tokens = tokens.into_iter();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(ident) if ident == "use" => (in_use, is_root) = (true, true),
                TokenTree::Ident(ident) if is_root => {
                    is_root = false;
                    *counts.entry(root(&ident.to_string())).or_default() += 1;
                }
                TokenTree::Ident(ident) if ident == "fn" => function(&mut tokens, counts),
                TokenTree::Punct(punct) if punct.as_char() == ';' => in_use = false,
                TokenTree::Ident(ident) if !in_use => {
                    *counts.entry(ident.to_string()).or_default() += 1;
                }
                TokenTree::Group(group) if !in_use => count(group.stream(), counts),
                _ => {}
            }
        }
    }
    /// Counts to the end of the function; names of its type parameters are not uses.
    fn function(
        tokens: &mut impl Iterator<Item = TokenTree>,
        counts: &mut BTreeMap<String, usize>,
    ) {
        let (mut function, mut parameters) = (TokenStream::new(), Vec::new());
        // The depth of angle brackets; `None` from the arguments on.
        let mut depth = Some(0);
        let mut before = ' ';
        for token in tokens.by_ref() {
            let mut is_end = false;
            let mut now = ' ';
            match (&token, &mut depth) {
                (TokenTree::Punct(punct), depth) => {
                    now = punct.as_char();
                    is_end = now == ';';
                    if let Some(depth) = depth {
                        *depth += i32::from(now == '<') - i32::from(now == '>' && before != '-');
                    }
                }
                (TokenTree::Ident(name), Some(1)) if matches!(before, '<' | ',') => {
                    parameters.push(name.to_string());
                }
                (TokenTree::Group(group), depth) => {
                    is_end = group.delimiter() == Delimiter::Brace && *depth != Some(1);
                    if *depth == Some(0) {
                        *depth = None;
                    }
                }
                _ => {}
            }
            before = now;
            function.extend([token]);
            if is_end {
                break;
            }
        }
        let mut inside = BTreeMap::new();
        count(function, &mut inside);
        for (name, number) in inside {
            if !parameters.contains(&name) {
                *counts.entry(name).or_default() += number;
            }
        }
    }
    let mut counts = BTreeMap::new();
    count(text.parse().unwrap_or_default(), &mut counts);
    counts
}

#[cfg(test)]
mod tests {
    use super::Unused;

    #[test]
    fn a_parameter_of_a_function_is_no_use_of_an_import() {
        let before = "use candle::{D, Tensor}; fn f(x: Tensor) { x.sum(D::Minus1) }";
        let of_own = "use candle::{D, Tensor};
            fn g<'de, D>(d: D) -> Result<D::Error> where D: De<'de> { d.x::<D>() }
            fn h<T: Into<Tensor>, F: Fn(u8) -> u8>(t: T) {}";
        let unused = Unused::new(before, of_own);
        assert!(unused.is_import("D") && !unused.is_import("Tensor"));
        let used = format!("{of_own} fn i() {{ D::Minus1 }}");
        assert!(!Unused::new(before, &used).is_import("D"));
        let before = "use candle_nn as nn; use nn::{Linear, Conv1d};";
        let now = "use candle_nn as nn; use candle_dynquant::nn::Linear;";
        assert!(Unused::new(before, now).is_import("nn"));
        let used = format!("{now} use nn::Init;");
        assert!(!Unused::new(before, &used).is_import("nn"));
    }
}
