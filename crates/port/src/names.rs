//! Paths, methods and constructors of candle, renamed to candle-dynquant's.

use super::draft::Draft;
use super::paths::{PathFinder, Uses};
use super::scopes::Origin;
use super::syntax::binds;
use super::table::Home;
use super::unit::Unit;
use std::collections::{BTreeMap, BTreeSet};

/// The names of candle-dynquant's modules in a file.
#[derive(Debug)]
pub struct Modules {
    nn: String,
    ops: String,
    /// The imported modules of candle_nn that become imports from candle-dynquant.
    pub moved: BTreeSet<String>,
}

impl Modules {
    /// The name of a module and what to import for it.
    pub fn name(&self, home: Home) -> &str {
        match home {
            Home::Nn => &self.nn,
            Home::Ops => &self.ops,
        }
    }
}

/// The names of candle that a file uses, and the names of the modules that replace them.
pub struct Names<'a, 'u> {
    pub modules: Modules,
    found: PathFinder<'a, 'u>,
}

/// Finds paths, calls of `with_tracing`'s constructors and methods of tensors.
pub fn find<'a, 'u>(unit: &'a Unit<'u>) -> Names<'a, 'u> {
    let found = PathFinder::new(unit);
    let modules = modules(unit, &found.uses);
    Names { modules, found }
}

/// Rewrites the found names.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, names: Names<'_, '_>) -> Modules {
    let Names { modules, found } = names;
    for hit in found.hits {
        let module = modules.name(hit.home).to_owned();
        let text = format!("{module}::{}", hit.name);
        if hit.range.is_empty() {
            draft.need_path(&hit.module, &[hit.home.name(), hit.name]);
            continue;
        }
        // A path from the crate's name needs no import.
        let full = unit.source.text[hit.range.clone()].starts_with("candle_nn");
        if full && unit.is_left_out(hit.range.start) {
            continue;
        }
        if unit.source.is_kept(hit.range.start) || unit.source.text[hit.range.clone()] == text {
            continue;
        }
        if hit.alias.is_some_and(|alias| modules.moved.contains(&alias)) {
            continue;
        }
        draft.need(&hit.module, &module, hit.home);
        draft.edits.replace(hit.range, text);
    }
    for (module, range, function) in found.loaders {
        let text = if is_free(unit, function) {
            draft.need_name(&module, function);
            function.to_owned()
        } else {
            draft.need(&module, &modules.nn, Home::Nn);
            format!("{}::{function}", modules.nn)
        };
        draft.edits.replace(range, text);
    }
    for method in found.methods {
        if unit.source.is_kept(method.name.start) || unit.is_left_out(method.name.start) {
            continue;
        }
        draft.need(&method.module, &modules.ops, Home::Ops);
        let and = if method.borrowed { "" } else { "&" };
        let call = format!("{}::{}({and}", modules.ops, method.function);
        draft.edits.insert(method.receiver.start, call);
        let gap = &unit.source.text[method.receiver.end..method.name.start];
        let comment = gap.contains("//") || gap.contains("/*");
        let from = if comment { method.name.start } else { method.receiver.end };
        let end = if method.has_arguments { ", " } else { ")" };
        draft.edits.replace(from..method.name.end, end);
        for copy in method.copies {
            draft.edits.replace(copy, "");
        }
    }
    draft.todos.extend(found.todos);
    modules
}

/// Whether no item, import or variable of the file conflicts with a function `name` of `nn`.
fn is_free(unit: &Unit<'_>, name: &str) -> bool {
    let clash = unit.types.scopes.iter().any(|(_, scope)| {
        let other = |origin: &Origin| match origin.mapped() {
            Some(mapped) => mapped.name != name,
            None => *origin != Origin::Ours(vec!["nn".into(), name.into()]),
        };
        scope.items.contains(name) || scope.bindings.get(name).is_some_and(other)
    });
    !clash && !binds(unit.file, name)
}

fn modules(unit: &Unit<'_>, uses: &BTreeMap<String, Uses>) -> Modules {
    let moved = uses.iter().filter(|(_, uses)| uses.mapped > 0 && uses.others == 0);
    let moved: BTreeSet<_> = moved.map(|(name, _)| name.clone()).collect();
    let scopes = &unit.types.scopes;
    let name = |ours: &str, other: &str| {
        let path = vec![ours.to_owned()];
        for (_, scope) in scopes.iter() {
            let mut bindings = scope.bindings.iter();
            let bound = bindings.find(|(_, origin)| **origin == Origin::Ours(path.clone()));
            if let Some((name, _)) = bound {
                return name.clone();
            }
        }
        let home: &[String] = if ours == "nn" { &[] } else { &path };
        let taken = scopes.iter().any(|(_, scope)| {
            let clash = |origin: &Origin| {
                !(moved.contains(ours) && matches!(origin, Origin::Nn(path) if path == home))
            };
            scope.items.contains(ours) || scope.bindings.get(ours).is_some_and(clash)
        });
        if taken { other } else { ours }.to_owned()
    };
    let (nn, ops) = (name("nn", "qnn"), name("ops", "qops"));
    Modules { nn, ops, moved }
}
