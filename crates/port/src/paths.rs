//! The paths, constructors and methods of candle in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall, ExprTry, ItemMod, Path};

use super::draft::Todo;
use super::scopes::{Module, Origin};
use super::syntax::{arguments, segments, without};
use super::table::{self, Home, Shared};
use super::unit::Unit;

/// A path that has a namesake, from its first segment to the namesake's.
pub struct Hit {
    pub module: Module,
    pub range: Range<usize>,
    pub home: Home,
    pub name: &'static str,
    /// The name of an imported module of candle_nn that the path begins with.
    pub alias: Option<String>,
}

/// The uses of a module of candle_nn under a name: of names with a namesake, and of other names.
#[derive(Default)]
pub struct Uses {
    pub mapped: usize,
    pub others: usize,
}

/// A method of a tensor that has a namesake.
pub struct Method {
    pub module: Module,
    pub receiver: Range<usize>,
    /// The bytes from the dot to the first argument, or else to the closing parenthesis.
    pub name: Range<usize>,
    pub has_arguments: bool,
    /// The copies of arguments, such as `.contiguous()?`, which the function in `ops` does not
    /// need.
    pub copies: Vec<Range<usize>>,
    pub function: &'static str,
    pub borrowed: bool,
}

/// The search for paths in a file.
pub struct PathFinder<'a, 'u> {
    pub unit: &'a Unit<'u>,
    pub module: Module,
    pub hits: Vec<Hit>,
    pub uses: BTreeMap<String, Uses>,
    pub methods: Vec<Method>,
    pub loaders: Vec<(Module, Range<usize>, &'static str)>,
    /// The starts and ends of expressions before a `?`.
    pub tried: BTreeSet<(usize, usize)>,
    pub todos: Vec<Todo>,
}

impl<'a, 'u> PathFinder<'a, 'u> {
    /// Searches a whole file.
    pub fn new(unit: &'a Unit<'u>) -> Self {
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
        let Some(last) = (segments.len() + mapped.segments).checked_sub(inside + 1) else {
            return;
        };
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
        let scope = self.unit.types.scopes.scope(&self.module);
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
                        let Some(TokenTree::Ident(ident)) = tokens.get(at + 3) else {
                            break;
                        };
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
        let Some((function, shared)) = table::of_method(&name, call.args.len()) else {
            return;
        };
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
        let (Expr::Reference(_), source) = (argument, self.unit.source) else {
            return Vec::new();
        };
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
        let Some(arguments) = arguments(call) else {
            return self.tokens(call.tokens.clone());
        };
        // The tree lives as long as this call; what is found is kept as ranges.
        for argument in &arguments {
            Visit::visit_expr(self, argument);
        }
    }
}
