//! Closures as layers: the layers that a closure captures are given to `Func::holding`, where a
//! walk sees them.

use std::ops::Range;

use syn::{Expr, ExprCall, ExprClosure, Pat, Type};

use super::draft::Draft;
use super::facts::{self, Facts};
use super::functions::output;
use super::scopes::Origin;
use super::syntax::{
    arguments as items, bare_name, called, get, ident, mentions, segments, values, variable,
};
use super::table;
use super::types::{arguments, last_name};
use super::unit::Unit;
use super::walk::{Node, calls, exprs, nodes};

/// The most layers of a closure: the largest tuple that the library walks through.
const MAX_LAYERS: usize = 8;

/// The target of a search: a kind, by the names of its types and loaders in `nn`, and the depth to
/// which a value is followed.
#[derive(Clone, Copy)]
pub struct Search(fn(&str) -> bool, usize);

impl Search {
    pub const LAYER: Self =
        Self(|name| table::LAYERS.contains(&name) || table::MAKERS.contains(&name), 12);
    pub const CONVOLUTION: Self = Self(|name| table::CONVOLUTIONS.contains(&name), 12);
    pub const BATCH_NORM: Self = Self(|name| matches!(name, "BatchNorm" | "batch_norm"), 12);
}

/// A call of `Func::new` or `Func::holding` with a closure.
struct Made<'u> {
    facts: Facts<'u>,
    call: &'u ExprCall,
    closure: &'u ExprClosure,
    is_new: bool,
}

/// Gives the layers that closures capture to `Func::holding`.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for made in all(unit).filter(|made| made.is_new) {
        let (names, _) = made.captured();
        if !names.is_empty() && names.len() <= MAX_LAYERS {
            draft.edits.replace_all(made.edits(&names).into_iter().flatten());
        }
    }
}

/// Lists closures that hide layers.
pub fn list(unit: &Unit<'_>, draft: &mut Draft) {
    for made in all(unit) {
        let (names, mut hidden) = made.captured();
        let is_left = made.is_new && (names.len() > MAX_LAYERS || made.edits(&names).is_none());
        if is_left {
            hidden.extend(names);
        }
        if let Some(name) = hidden.first() {
            let what = format!("a closure hides the layers in `{name}`");
            let advice = "give the layers, options, `Vec`s or tuples of them to `Func::holding`, \
                          whose closure takes them; or put `// dynquant: keep` here";
            draft.list(unit.todo(unit.source.start(made.closure), what, advice));
        }
    }
}

/// The closures that become layers.
fn all<'u>(unit: &'u Unit<'_>) -> impl Iterator<Item = Made<'u>> {
    facts::all(unit).flat_map(move |facts| {
        calls(facts.function.block).filter_map(move |call| {
            let closure = get!(call.args.last()?, Expr::Closure)?;
            let path = match facts.resolve(&segments(called(call)?)) {
                Origin::Nn(path) | Origin::Ours(path) => path,
                _ => return None,
            };
            let [.., layer, new] = &path[..] else { return None };
            let is_new = new == "new" && call.args.len() == 1;
            let made = Made { facts, call, closure, is_new };
            let is_made = table::is_closure(layer) && (is_new || new == "holding");
            (is_made && !unit.source.is_kept(unit.source.start(call))).then_some(made)
        })
    })
}

impl<'u> Made<'u> {
    fn range(&self, node: &'u Expr) -> Range<usize> {
        self.facts.range(node)
    }

    /// The variables of layers that the closure captures, in the order of their use, and those of
    /// results of layers.
    fn captured(&self) -> (Vec<String>, Vec<String>) {
        let (mut layers, mut results) = (Vec::new(), Vec::new());
        for expr in exprs(&*self.closure.body) {
            let Some(name) = bare_name(expr) else { continue };
            if layers.contains(&name) || results.contains(&name) || !self.captures(&name, expr) {
                continue;
            }
            let at = self.range(expr).start;
            if self.facts.is_layer(&name, at, 0, Search::LAYER) {
                layers.push(name);
            } else if self.facts.is_layer(&name, at, 1, Search::LAYER) {
                results.push(name);
            }
        }
        (layers, results)
    }

    /// Whether a variable in the closure is one of the function around it.
    fn captures(&self, name: &str, expr: &'u Expr) -> bool {
        let at = self.range(expr).start;
        let closure = self.facts.range(self.closure);
        let bindings = self.facts.bindings(name);
        let bound = bindings.and_then(|bindings| bindings.last(at, at));
        bound.is_none_or(|bound| !closure.contains(&bound.at))
    }

    /// The edits that make the layers of these names arguments of the closure; `None` if one of
    /// them is in a macro.
    fn edits(&self, names: &[String]) -> Option<Vec<(Range<usize>, String)>> {
        let source = self.facts.unit.source;
        let in_macro = nodes(&*self.closure.body).any(|node| match node {
            Node::Macro(call) => {
                names.iter().any(|name| mentions(&call.tokens.to_string(), name) > 0)
            }
            _ => false,
        });
        let function = called(self.call)?;
        let first = self.closure.inputs.first()?;
        if in_macro {
            return None;
        }
        // The layers, and the pattern that takes them.
        let list = match names {
            [name] => name.clone(),
            names => format!("({})", names.join(", ")),
        };
        let new = source.range(&function.segments.last()?.ident);
        let closure = source.start(self.closure);
        let input = source.start(first);
        let mut edits = vec![
            (new, "holding".to_owned()),
            (closure..closure, format!("{list}, ")),
            (input..input, format!("{list}, ")),
        ];
        let is_it = |expr: &'u Expr| {
            bare_name(expr).is_some_and(|name| names.contains(&name) && self.captures(&name, expr))
        };
        let mut known = Vec::new();
        for expr in exprs(&*self.closure.body) {
            // The places where a variable may be a reference as well, and those where it becomes
            // one.
            let (inner, is_reference) = match expr {
                Expr::Reference(reference) => (&*reference.expr, reference.mutability.is_none()),
                Expr::MethodCall(call) => (&*call.receiver, false),
                Expr::Field(field) => (&*field.base, false),
                Expr::Index(index) => (&*index.expr, false),
                _ => continue,
            };
            if is_it(inner) {
                let (outer, inner) = (self.range(expr), self.range(inner));
                known.push(inner.start);
                edits.extend(is_reference.then(|| (outer.start..inner.start, String::new())));
            }
        }
        let is_left = |expr: &'u Expr| is_it(expr) && !known.contains(&self.range(expr).start);
        (!exprs(&*self.closure.body).any(is_left)).then_some(edits)
    }
}

impl Facts<'_> {
    /// Whether a variable is a layer that is searched for, or an option or a `Vec` of such, once
    /// `tries` results are unwrapped.
    pub fn is_layer(&self, name: &str, at: usize, tries: usize, search: Search) -> bool {
        let bindings = self.bindings(name);
        let Some(binding) = bindings.and_then(|bindings| bindings.last(at, at)) else {
            let ty = self.type_of_parameter(name);
            return ty.is_some_and(|ty| self.is_layer_type(ty, tries, search));
        };
        let mut added = self.added(name).into_iter().filter(|_| tries == 0);
        if added.any(|value| self.gives_layer(value, None, 0, search)) {
            return true;
        }
        let start = |expr: &Expr| self.start(expr);
        let Some(value) = binding.value else { return false };
        // The number of the variable in `let (a, b) = ..`.
        let locals = nodes(self.function.block).filter_map(|node| get!(node, Node::Local));
        let mut locals = locals.filter(|local| {
            let init = local.init.as_ref();
            init.is_some_and(|init| start(&init.expr) == start(value))
        });
        let number = locals.next().and_then(|local| {
            let mut names = get!(&local.pat, Pat::Tuple)?.elems.iter().map(variable);
            names.position(|one| one.as_deref() == Some(name))
        });
        self.gives_layer(value, number, tries, search)
    }

    /// Whether a value is a layer; `number` is its place in a tuple.
    pub fn gives_layer(
        &self,
        expr: &Expr,
        number: Option<usize>,
        tries: usize,
        search: Search,
    ) -> bool {
        let Some(depth) = search.1.checked_sub(1) else { return false };
        let search = Search(search.0, depth);
        let gives = |expr: &Expr, tries| self.gives_layer(expr, number, tries, search);
        match expr {
            Expr::Paren(inner) => gives(&inner.expr, tries),
            Expr::Try(inner) => gives(&inner.expr, tries + 1),
            Expr::Tuple(tuple) => number
                .and_then(|number| tuple.elems.iter().nth(number))
                .is_some_and(|one| self.gives_layer(one, None, tries, search)),
            Expr::Path(_) => ident(expr).is_some_and(|name| {
                number.is_none() && self.is_layer(&name, self.start(expr), tries, search)
            }),
            Expr::Macro(call) if call.mac.path.is_ident("vec") => {
                items(&call.mac).into_iter().flatten().into_iter().any(|item| gives(&item, tries))
            }
            Expr::MethodCall(call) if call.method == "collect" => {
                let map = get!(&*call.receiver, Expr::MethodCall);
                let map = map.filter(|map| map.method == "map");
                let closure = map.and_then(|map| get!(map.args.first()?, Expr::Closure));
                closure.is_some_and(|closure| gives(&closure.body, tries))
            }
            Expr::MethodCall(call) if call.method == "clone" => gives(&call.receiver, tries),
            Expr::MethodCall(call) if call.method == "absorb_bn" => {
                tries > 0 && gives(&call.receiver, tries - 1)
            }
            Expr::Call(call) => self.call_gives_layer(call, tries, search),
            other => values(other).into_iter().any(|value| gives(value, tries)),
        }
    }

    fn call_gives_layer(&self, call: &ExprCall, tries: usize, search: Search) -> bool {
        let Some(path) = called(call).map(segments) else { return false };
        let inner = |tries| {
            let value = call.args.first();
            value.is_some_and(|value| self.gives_layer(value, None, tries, search))
        };
        match &path[..] {
            [some] if some == "Some" => return inner(tries),
            [ok] if ok == "Ok" => return tries > 0 && inner(tries - 1),
            _ => {}
        }
        match self.resolve(&path).in_library() {
            Some([.., layer, new]) if search.0(layer) => {
                ["from_weights", "holding", "new", "tied"].contains(&new.as_str()) == (tries == 0)
            }
            Some([.., name]) => tries == 1 && search.0(name),
            Some([]) => false,
            None => {
                let [name] = &path[..] else { return false };
                let function =
                    facts::of_name(self.unit, name).find(|one| one.function.owner.is_none());
                function.is_some_and(|one| {
                    let ty = output(one.function.signature);
                    ty.is_some_and(|ty| one.is_layer_type(ty, tries, search))
                })
            }
        }
    }

    /// Whether a type names a layer of the search, once `tries` results are unwrapped.
    pub fn is_layer_type(&self, ty: &Type, tries: usize, search: Search) -> bool {
        let inner = |tries| {
            arguments(ty).into_iter().next().is_some_and(|ty| self.is_layer_type(ty, tries, search))
        };
        match last_name(ty).as_deref() {
            Some("Result") => tries > 0 && inner(tries - 1),
            Some("Option" | "Vec") => inner(tries),
            _ if tries > 0 => false,
            _ => {
                let origin = self.unit.origin(&self.function.module, ty);
                let path = origin.as_ref().and_then(Origin::in_library);
                path.and_then(<[_]>::last).is_some_and(|name| search.0(name))
            }
        }
    }
}
