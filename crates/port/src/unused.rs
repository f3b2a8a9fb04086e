//! Imports and variables that the changes have left unused.

use std::collections::BTreeMap;

use syn::{Item, Visibility};

use super::draft::Draft;
use super::syntax::{idents, root};
use super::table::list;
use super::unit::Unit;

/// The numbers of occurrences of names outside of imports, before and now.
pub struct Unused {
    before: BTreeMap<String, usize>,
    now: BTreeMap<String, usize>,
}

impl Unused {
    /// Counts the names of a file before and after the changes.
    pub fn new(original: &str, now: &str) -> Self {
        Self { before: idents(original), now: idents(now) }
    }

    /// Whether an import has lost its last use. Applies to functions and to names that appear where
    /// they are used: a trait may be used through its methods.
    pub fn is_import(&self, name: &str) -> bool {
        let types = list![BatchNorm D DType Device IndexOp ModuleT Shape Tensor];
        let named = name.starts_with(char::is_lowercase) || types.contains(&name);
        // A trait is used by its method.
        let method = match name {
            "IndexOp" => "i",
            "ModuleT" => "forward_t",
            name => name,
        };
        // Another import may begin with it.
        let all = [name, method, &root(name)];
        let is_in =
            |names: &BTreeMap<String, usize>| all.iter().any(|&name| names.contains_key(name));
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

#[cfg(test)]
mod tests {
    use super::Unused;

    #[test]
    fn imports_are_used_by_names_and_methods_but_not_by_parameters() {
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
        let before = "use candle::ModuleT; fn f(x: X) { x.forward_t(y, false) }";
        let unused = |now: &str| Unused::new(before, now).is_import("ModuleT");
        assert!(unused("use candle::ModuleT; fn f(x: X) { y }") && !unused(before));
        assert!(!unused("use candle::ModuleT; fn f(x: impl ModuleT) { g(x) }"));
    }
}
