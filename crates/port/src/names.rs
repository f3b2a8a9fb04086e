//! Paths, methods and constructors: theirs to ours.

use super::draft::Draft;
use super::paths::{Find, Uses};
use super::scopes::Origin;
use super::syntax::binds;
use super::table::Home;
use super::unit::Unit;
use std::collections::{BTreeMap, BTreeSet};

/// How a file calls the modules of candle-dynquant.
#[derive(Debug)]
pub struct House {
    nn: String,
    ops: String,
    /// Names of imported modules of candle_nn that are to be imported from candle-dynquant.
    pub moved: BTreeSet<String>,
}

impl House {
    /// The name of a module and what to import for it.
    pub fn name(&self, home: Home) -> &str {
        match home {
            Home::Nn => &self.nn,
            Home::Ops => &self.ops,
        }
    }
}

/// The names of candle's that a file uses, and the names that it is to have for ours.
pub struct Names<'a, 'u> {
    pub house: House,
    found: Find<'a, 'u>,
}

/// Finds paths, calls of `with_tracing`'s constructors and methods of tensors.
pub fn find<'a, 'u>(unit: &'a Unit<'u>) -> Names<'a, 'u> {
    let found = Find::of(unit);
    let house = house(unit, &found.uses);
    Names { house, found }
}

/// Rewrites what was found.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, names: Names<'_, '_>) -> House {
    let Names { house, found } = names;
    for hit in found.hits {
        let module = house.name(hit.home).to_owned();
        let text = format!("{module}::{}", hit.name);
        if hit.range.is_empty() {
            draft.need_path(&hit.module, &[hit.home.name(), hit.name]);
            continue;
        }
        // A path from the crate's name is as good there.
        let full = unit.source.text[hit.range.clone()].starts_with("candle_nn");
        if full && unit.is_left_out(hit.range.start) {
            continue;
        }
        if unit.source.is_kept(hit.range.start) || unit.source.text[hit.range.clone()] == text {
            continue;
        }
        if hit.alias.is_some_and(|alias| house.moved.contains(&alias)) {
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
            draft.need(&module, &house.nn, Home::Nn);
            format!("{}::{function}", house.nn)
        };
        draft.edits.replace(range, text);
    }
    for method in found.methods {
        if unit.source.is_kept(method.name.start) || unit.is_left_out(method.name.start) {
            continue;
        }
        draft.need(&method.module, &house.ops, Home::Ops);
        let and = if method.borrowed { "" } else { "&" };
        let call = format!("{}::{}({and}", house.ops, method.function);
        draft.edits.insert(method.receiver.start, call);
        let gap = &unit.source.text[method.receiver.end..method.name.start];
        let comment = gap.contains("//") || gap.contains("/*");
        let from = if comment {
            method.name.start
        } else {
            method.receiver.end
        };
        let end = if method.has_arguments { ", " } else { ")" };
        draft.edits.replace(from..method.name.end, end);
        for copy in method.copies {
            draft.edits.replace(copy, "");
        }
    }
    draft.todos.extend(found.todos);
    house
}

/// Whether no item, import or variable of the file is in the way of a function `name` of `nn`.
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

fn house(unit: &Unit<'_>, uses: &BTreeMap<String, Uses>) -> House {
    let moved = uses
        .iter()
        .filter(|(_, uses)| uses.mapped > 0 && uses.others == 0);
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
    House { nn, ops, moved }
}
