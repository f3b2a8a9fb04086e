//! Missing names of a file: modules of the crate, and crates in its Cargo.toml.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use super::draft::Draft;
use super::scopes::{Module, leaves};
use super::syntax::{segments, words};
use super::unit::Unit;

/// Crates that models of candle use, and their lines in a Cargo.toml.
const CRATES: &[(&str, &str)] = &[
    ("anyhow", r#"anyhow = "1""#),
    (
        "candle",
        r#"candle = { package = "candle-core", version = "0.11" }"#,
    ),
    ("candle_core", r#"candle-core = "0.11""#),
    (
        "candle_dynquant",
        r#"candle-dynquant = { path = "../candle-dynquant" }"#,
    ),
    ("candle_nn", r#"candle-nn = "0.11""#),
    ("candle_transformers", r#"candle-transformers = "0.11""#),
    ("rand", r#"rand = "0.9""#),
    (
        "serde",
        r#"serde = { version = "1", features = ["derive"] }"#,
    ),
    ("serde_json", r#"serde_json = "1""#),
    ("tracing", r#"tracing = "0.1""#),
];

/// Lists modules of the crate that are named and not found.
pub fn list(unit: &Unit<'_>, draft: &mut Draft) {
    let mut find = Find {
        unit,
        module: Vec::new(),
        found: Vec::new(),
    };
    find.visit_file(unit.file);
    let mut known = BTreeSet::new();
    // A file without candle has no model.
    if !unit.is_of_candle() {
        return;
    }
    for (at, module, path) in find.found {
        let away = unit.is_left_out(at) || unit.source.is_kept(at);
        let absent = unit.world.absent(unit.path, &module, &path);
        let Some(absent) = absent.filter(|_| !away) else {
            continue;
        };
        let last = absent.rsplit("::").next().unwrap_or_default();
        let is_macro = unit.source.text.contains(&format!("{last}!"));
        if is_macro || !known.insert(absent.clone()) {
            continue;
        }
        let theirs = match absent.strip_prefix("crate::") {
            Some(rest) => rest.to_owned(),
            None => format!("models::{}", absent.trim_start_matches("super::")),
        };
        draft.list(unit.todo(
            at,
            format!("`{absent}` is not in this crate"),
            format!(
                "copy its file beside this one and port it too; what holds no layers may come from \
                 `candle_transformers::{theirs}`, if it is of there, with \
                 `candle-transformers = \"0.11\"` in Cargo.toml"
            ),
        ));
    }
}

/// Paths from `crate` or `super`, where they stand and in which module.
struct Find<'f, 'u> {
    unit: &'f Unit<'u>,
    module: Module,
    found: Vec<(usize, Module, Vec<String>)>,
}

impl Find<'_, '_> {
    fn path(&mut self, at: usize, path: Vec<String>) {
        if path
            .first()
            .is_some_and(|first| first == "crate" || first == "super")
        {
            self.found.push((at, self.module.clone(), path));
        }
    }
}

impl<'a> Visit<'a> for Find<'_, '_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let at = self.unit.source.range(item).start;
        for leaf in leaves(item) {
            self.path(at, leaf.path);
        }
    }

    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        let at = self.unit.source.range(path).start;
        self.path(at, segments(path));
        visit::visit_path(self, path);
    }
}

/// The lines that a Cargo.toml lacks for a file.
pub fn lines(text: &str, manifest: &str) -> Vec<&'static str> {
    let roots = text.match_indices("::").filter_map(|(at, _)| {
        let before = &text[..at];
        words(before).last().filter(|word| before.ends_with(word))
    });
    let roots: BTreeSet<_> = roots.collect();
    let lacks = |name: &str| {
        let name = name.replace('_', "-");
        !manifest.lines().any(|line| {
            let key = line.trim_start().replace('_', "-");
            let rest = key.strip_prefix(&name).unwrap_or("none");
            rest.trim_start().starts_with(['=', '.'])
        })
    };
    let is_needed = |(name, _): &&(&str, _)| roots.contains(name) && lacks(name);
    let needed = CRATES.iter().filter(is_needed);
    needed.map(|(_, line)| *line).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_manifest_lacks_what_it_does_not_name() {
        let text = "use candle::Tensor;\nuse candle_nn::Linear;\nlet a = serde_json::json!(1);";
        let manifest = "[dependencies]\ncandle-nn.workspace = true\nserde_json = \"1\"\n";
        let lines = super::lines(text, manifest);
        assert_eq!(
            lines,
            ["candle = { package = \"candle-core\", version = \"0.11\" }"]
        );
    }
}
