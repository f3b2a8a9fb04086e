//! Paths, methods and constructors: theirs to ours.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use syn::visit::{self, Visit};

use super::draft::{Draft, Todo};
use super::paths::{Find, Hit, Method, Uses};
use super::scopes::{Module, Origin};
use super::table::Home;
use super::unit::Unit;

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
pub struct Names {
    pub house: House,
    hits: Vec<Hit>,
    methods: Vec<Method>,
    loaders: Vec<(Module, Range<usize>, &'static str)>,
    todos: Vec<Todo>,
}

/// Finds paths, calls of `with_tracing`'s constructors and methods of tensors.
pub fn find(unit: &Unit<'_>) -> Names {
    let find = Find::of(unit);
    Names {
        house: house(unit, &find.uses),
        hits: find.hits,
        methods: find.methods,
        loaders: find.loaders,
        todos: find.todos,
    }
}

/// Rewrites what was found.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, names: Names) -> House {
    let Names {
        house,
        hits,
        methods,
        loaders,
        todos,
    } = names;
    for hit in hits {
        let module = house.name(hit.home).to_owned();
        let text = format!("{module}::{}", hit.name);
        if hit.range.is_empty() {
            let module = if hit.home == Home::Nn { "nn" } else { "ops" };
            draft.need_path(&hit.module, &[module, hit.name]);
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
    for (module, range, function) in loaders {
        let text = if is_free(unit, function) {
            draft.need_name(&module, function);
            function.to_owned()
        } else {
            draft.need(&module, &house.nn, Home::Nn);
            format!("{}::{function}", house.nn)
        };
        draft.edits.replace(range, text);
    }
    for method in methods {
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
    draft.todos.extend(todos);
    house
}

/// Whether no item, import or variable of the file is in the way of a function `name` of `nn`.
fn is_free(unit: &Unit<'_>, name: &str) -> bool {
    struct Bound<'n>(&'n str, bool);
    impl<'a> Visit<'a> for Bound<'_> {
        fn visit_pat_ident(&mut self, pat: &'a syn::PatIdent) {
            self.1 |= pat.ident == self.0;
            visit::visit_pat_ident(self, pat);
        }
    }
    let clash = unit.types.scopes.iter().any(|(_, scope)| {
        let other = |origin: &Origin| match origin.mapped() {
            Some(mapped) => mapped.name != name,
            None => *origin != Origin::Ours(vec!["nn".into(), name.into()]),
        };
        scope.items.contains(name) || scope.bindings.get(name).is_some_and(other)
    });
    let mut bound = Bound(name, false);
    bound.visit_file(unit.file);
    !clash && !bound.1
}

fn house(unit: &Unit<'_>, uses: &BTreeMap<String, Uses>) -> House {
    let moved: BTreeSet<_> = uses
        .iter()
        .filter(|(_, uses)| uses.mapped > 0 && uses.others == 0)
        .map(|(name, _)| name.clone())
        .collect();
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
        if taken {
            other.to_owned()
        } else {
            ours.to_owned()
        }
    };
    let (nn, ops) = (name("nn", "qnn"), name("ops", "qops"));
    House { nn, ops, moved }
}
