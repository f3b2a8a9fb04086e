//! Paths, methods and constructors of candle, renamed to candle-dynquant's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall, ExprTry, ItemMod, Path};

use super::draft::{Draft, Todo};
use super::scopes::{Module, Origin};
use super::syntax::{arguments, binds, segments, without};
use super::table::{self, Home, Shared};
use super::unit::Unit;

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
    let clash = unit.types.scopes.modules.iter().any(|(_, scope)| {
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
        for (_, scope) in scopes.modules.iter() {
            let mut bindings = scope.bindings.iter();
            let bound = bindings.find(|(_, origin)| **origin == Origin::Ours(path.clone()));
            if let Some((name, _)) = bound {
                return name.clone();
            }
        }
        let home: &[String] = if ours == "nn" { &[] } else { &path };
        let taken = scopes.modules.iter().any(|(_, scope)| {
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

/// A path that has a namesake, from its first segment to the namesake's.
struct Hit {
    module: Module,
    range: Range<usize>,
    home: Home,
    name: &'static str,
    /// The name of an imported module of candle_nn that the path begins with.
    alias: Option<String>,
}

/// The uses of a module of candle_nn under a name: of names with a namesake, and of other names.
#[derive(Default)]
struct Uses {
    mapped: usize,
    others: usize,
}

/// A method of a tensor that has a namesake.
struct Method {
    module: Module,
    receiver: Range<usize>,
    /// The bytes from the dot to the first argument, or else to the closing parenthesis.
    name: Range<usize>,
    has_arguments: bool,
    /// The copies of arguments, such as `.contiguous()?`, which the function in `ops` does not
    /// need.
    copies: Vec<Range<usize>>,
    function: &'static str,
    borrowed: bool,
}

/// The search for paths in a file.
struct PathFinder<'a, 'u> {
    unit: &'a Unit<'u>,
    module: Module,
    hits: Vec<Hit>,
    uses: BTreeMap<String, Uses>,
    methods: Vec<Method>,
    loaders: Vec<(Module, Range<usize>, &'static str)>,
    /// The starts and ends of expressions before a `?`.
    tried: BTreeSet<(usize, usize)>,
    todos: Vec<Todo>,
}

impl<'a, 'u> PathFinder<'a, 'u> {
    fn new(unit: &'a Unit<'u>) -> Self {
        let mut find = Self {
            unit,
            module: Vec::new(),
            hits: Vec::new(),
            uses: BTreeMap::new(),
            methods: Vec::new(),
            loaders: Vec::new(),
            tried: BTreeSet::new(),
            todos: Vec::new(),
        };
        find.visit_file(unit.file);
        find
    }

    fn path(&mut self, idents: &[&Ident], colon: Option<usize>) {
        let segments: Vec<_> = idents.iter().map(|ident| ident.to_string()).collect();
        let scopes = &self.unit.types.scopes;
        let origin = scopes.resolve(&self.module, &segments);
        let first = scopes.resolve(&self.module, &segments[..1]);
        let alias = match &first {
            Origin::Nn(path) if path.is_empty() || path == &["ops"] => {
                (segments[0] != "candle_nn").then(|| segments[0].clone())
            }
            _ => None,
        };
        let mapped = origin.mapped();
        if let (Some(alias), Origin::Nn(path)) = (&alias, &origin) {
            let uses = self.uses.entry(alias.clone()).or_default();
            match mapped {
                Some(mapped) if mapped.home == Home::Ops || mapped.segments == 1 => {
                    uses.mapped += 1
                }
                _ if table::is_in_nn(path) => {}
                _ => uses.others += 1,
            }
        }
        let Some(mapped) = mapped else { return };
        let inside = match &origin {
            Origin::Nn(path) | Origin::Traced(path) => path.len(),
            _ => return,
        };
        // `layer_norm` may be imported both as a function and as the module of that name.
        let of_first = match &first {
            Origin::Nn(path) | Origin::Traced(path) => path.len(),
            _ => 0,
        };
        let in_module = mapped.segments == 2 && segments.len() > 1 && of_first < 2;
        if first.mapped().is_some() && !in_module {
            return self.through_glob(&segments[0], mapped);
        }
        let Some(last) = (segments.len() + mapped.segments).checked_sub(inside + 1) else { return };
        let start = colon.unwrap_or(self.unit.source.start(idents[0]));
        self.hits.push(Hit {
            module: self.module.clone(),
            range: start..self.unit.source.range(idents[last]).end,
            home: mapped.home,
            name: mapped.name,
            alias,
        });
    }

    /// A bare name that `use candle_nn::*` brings: a named import comes before it.
    fn through_glob(&mut self, name: &str, mapped: table::Mapped) {
        let is_theirs = |glob: &Origin| matches!(glob, Origin::Nn(_) | Origin::Traced(_));
        let scope = self.unit.types.scopes.modules.get(&self.module);
        let is_bare = scope.is_some_and(|scope| {
            !scope.bindings.contains_key(name) && scope.globs.iter().any(is_theirs)
        });
        if is_bare && mapped.name == name {
            // An empty range stands for the import alone.
            self.hits.push(Hit {
                module: self.module.clone(),
                range: 0..0,
                home: mapped.home,
                name: mapped.name,
                alias: None,
            });
        }
    }

    /// Finds paths in the tokens of a macro call, which has no tree.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let mut idents = vec![first];
                    let colon = |at: usize| match tokens.get(at) {
                        Some(TokenTree::Punct(punct)) => punct.as_char() == ':',
                        _ => false,
                    };
                    while colon(at + 1) && colon(at + 2) {
                        let Some(TokenTree::Ident(ident)) = tokens.get(at + 3) else { break };
                        idents.push(ident);
                        at += 3;
                    }
                    if idents.len() > 1 {
                        self.path(&idents, None);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn method(&mut self, call: &ExprMethodCall) {
        let name = call.method.to_string();
        let Some((function, shared)) = table::of_method(&name, call.args.len()) else { return };
        let source = self.unit.source;
        let whole = source.range(call);
        let tried = self.tried.contains(&(whole.start, whole.end));
        if shared == Shared::WithNumbers && !tried {
            return;
        }
        let at = source.start(&call.method);
        if self.unit.types.methods.contains(&name) {
            if !self.unit.is_of_candle() {
                return;
            }
            let what = format!("`.{name}()` may be a method of this file's own");
            let advice = format!("of a tensor it is `ops::{function}(&xs)`");
            return self.todos.push(self.unit.todo(at, what, advice));
        }
        let borrowed = match &*call.receiver {
            Expr::Reference(_) => true,
            receiver => self.is_borrowed(receiver),
        };
        let first = call.args.first().map(|first| source.start(first));
        let copies = call.args.iter().flat_map(|argument| self.copied(argument));
        self.methods.push(Method {
            module: self.module.clone(),
            receiver: source.range(&*call.receiver),
            name: source.start(&call.dot_token)..first.unwrap_or(whole.end),
            has_arguments: first.is_some(),
            copies: copies.collect(),
            function,
            borrowed,
        });
    }

    fn is_borrowed(&self, expr: &Expr) -> bool {
        matches!(expr, Expr::Path(path) if path.path.is_ident("self"))
            || self.unit.is_borrowed_path(expr)
    }

    /// The parts of an argument `&xs.contiguous()?` around `&xs`, or around `xs` if that is a
    /// reference.
    fn copied(&self, argument: &Expr) -> Vec<Range<usize>> {
        let (Expr::Reference(_), source) = (argument, self.unit.source) else { return Vec::new() };
        let bare = without(argument, &["contiguous"]);
        let (whole, inner) = (source.range(argument), source.range(bare));
        let copy = inner.end..whole.end;
        let text = &source.text[copy.clone()];
        if !text.contains("contiguous") || text.contains("//") {
            return Vec::new();
        }
        let and = self.is_borrowed(bare).then_some(whole.start..inner.start);
        and.into_iter().chain(Some(copy)).collect()
    }
}

impl<'a> Visit<'a> for PathFinder<'_, '_> {
    fn visit_item_use(&mut self, _: &'a syn::ItemUse) {}

    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}

    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_path(&mut self, path: &'a Path) {
        let idents: Vec<_> = path.segments.iter().map(|segment| &segment.ident).collect();
        let colon = path.leading_colon.as_ref();
        let colon = colon.map(|colon| self.unit.source.start(colon));
        self.path(&idents, colon);
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'a ExprCall) {
        if let Expr::Path(function) = &*call.func {
            let scopes = &self.unit.types.scopes;
            let origin = scopes.resolve(&self.module, &segments(&function.path));
            let loader = match &origin {
                Origin::Traced(path) => table::loader(path, call.args.len()),
                Origin::Nn(path) => table::constructor(path, call.args.len()),
                _ => None,
            };
            if let Some(loader) = loader {
                let range = self.unit.source.range(&*call.func);
                self.loaders.push((self.module.clone(), range, loader));
                return call.args.iter().for_each(|argument| self.visit_expr(argument));
            }
            if let Origin::Traced(path) = origin
                && path.len() == 2
                && path[1] == "new"
                && table::loads(&path[0])
            {
                let at = self.unit.source.start(&*call.func);
                let what = format!("`with_tracing`'s `{}::new` has other arguments", path[0]);
                let advice = "load it by the function of `candle_dynquant::nn`";
                self.todos.push(self.unit.todo(at, what, advice));
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_try(&mut self, tried: &'a ExprTry) {
        let range = self.unit.source.range(&*tried.expr);
        self.tried.insert((range.start, range.end));
        visit::visit_expr_try(self, tried);
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        self.method(call);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let Some(arguments) = arguments(call) else { return self.tokens(call.tokens.clone()) };
        // The tree lives as long as this call; what is found is kept as ranges.
        for argument in &arguments {
            Visit::visit_expr(self, argument);
        }
    }
}
