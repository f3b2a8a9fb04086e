//! Missing names of a file: modules of the crate, and crates in its Cargo.toml.

use std::collections::BTreeSet;
use std::rc::Rc;

use syn::Item;

use super::draft::Draft;
use super::scopes::{Module, leaves};
use super::syntax::{segments, words};
use super::unit::Unit;
use super::walk::{Node, places};

/// The lines in a Cargo.toml for crates that models of candle use.
const CRATES: &[&str] = &[
    r#"anyhow = "1""#,
    r#"candle = { package = "candle-core", version = "0.11" }"#,
    r#"candle-core = "0.11""#,
    r#"candle-dynquant = { path = "../candle-dynquant" }"#,
    r#"candle-nn = "0.11""#,
    r#"candle-transformers = "0.11""#,
    r#"rand = "0.9""#,
    r#"rayon = "1""#,
    r#"serde = { version = "1", features = ["derive"] }"#,
    r#"serde_json = "1""#,
    r#"tracing = "0.1""#,
];

/// Lists modules of the crate that are named and not found.
pub fn list(unit: &Unit<'_>, draft: &mut Draft) {
    let mut known = BTreeSet::new();
    // A file without candle has no model.
    if !unit.is_of_candle() {
        return;
    }
    for (at, module, path) in paths(unit) {
        let away = unit.is_left_out(at) || unit.source.is_kept(at);
        let absent = unit.world.absent(unit.path, &module, &path);
        let Some(absent) = absent.filter(|_| !away) else { continue };
        let last = absent.rsplit("::").next().unwrap_or_default();
        let is_macro = unit.source.text.contains(&format!("{last}!"));
        if is_macro || !known.insert(absent.clone()) {
            continue;
        }
        let path = match absent.strip_prefix("crate::") {
            Some(rest) => rest.to_owned(),
            None => format!("models::{}", absent.trim_start_matches("super::")),
        };
        draft.list(unit.todo(
            at,
            format!("`{absent}` is not in this crate"),
            format!(
                "copy its file beside this one and port it too; what holds no layers may come from \
                 `candle_transformers::{path}`, if it is of there, with \
                 `candle-transformers = \"0.11\"` in Cargo.toml"
            ),
        ));
    }
}

/// The paths from `crate` or `super`, with their positions and modules.
fn paths(unit: &Unit<'_>) -> Vec<(usize, Rc<Module>, Vec<String>)> {
    let mut found = Vec::new();
    for place in places(unit.file) {
        let (range, paths) = match place.node {
            Node::Item(Item::Use(item)) => {
                let paths = leaves(item).into_iter().map(|leaf| leaf.path);
                (unit.source.range(item), paths.collect())
            }
            Node::Path(path) => (unit.source.range(path), vec![segments(path)]),
            _ => continue,
        };
        let paths: Vec<_> = paths;
        let paths = paths.into_iter();
        found.extend(paths.map(|path| (range.start, Rc::clone(&place.module), path)));
    }
    let is_own = |first: &String| first == "crate" || first == "super";
    found.retain(|(_, _, path)| path.first().is_some_and(is_own));
    found
}

/// The line that replaces `candle-core` in a Cargo.toml: cargo refuses a crate under two names.
const RENAMED: &str =
    r#"candle = { package = "candle-core", version = "0.11" } # in place of candle-core"#;

/// The lines that a Cargo.toml lacks for a file.
pub fn lines(text: &str, manifest: &str) -> Vec<&'static str> {
    let roots = text.match_indices("::").filter_map(|(at, _)| {
        let before = &text[..at];
        words(before).last().filter(|word| before.ends_with(word))
    });
    let roots: BTreeSet<_> = roots.collect();
    let has = |name: &str| {
        manifest.lines().any(|line| {
            let key = line.trim_start().replace('_', "-");
            key.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(['=', '.']))
        })
    };
    let needed = |line: &'static str| {
        let name = line.split(' ').next()?.replace('_', "-");
        let is_needed = roots.contains(name.replace('-', "_").as_str()) && !has(&name);
        let is_renamed = name == "candle" && has("candle-core");
        is_needed.then_some(if is_renamed { RENAMED } else { line })
    };
    CRATES.iter().filter_map(|line| needed(line)).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_manifest_lacks_what_it_does_not_name() {
        let text = "use candle::Tensor;\nuse candle_nn::Linear;\nlet a = serde_json::json!(1);";
        let manifest = "[dependencies]\ncandle-nn.workspace = true\nserde_json = \"1\"\n";
        let lines = super::lines(text, manifest);
        assert_eq!(lines, ["candle = { package = \"candle-core\", version = \"0.11\" }"]);
        let manifest = "[dependencies]\ncandle-core = \"0.11.1\"\ncandle-nn = \"0.11\"\n";
        let lines = super::lines(text, manifest);
        assert_eq!(lines, [super::RENAMED, "serde_json = \"1\""]);
    }
}
