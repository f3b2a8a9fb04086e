//! Paths, methods and constructors: theirs to ours.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall, ExprTry, ItemMod, Path, Token};

use super::scopes::{Module, Origin};
use super::table::{self, Home, Shared};
use super::{Draft, Unit};

/// A path that has a namesake, from its first segment to the one that is it.
struct Hit {
    module: Module,
    range: Range<usize>,
    home: Home,
    name: &'static str,
    /// The name of an imported module of candle_nn that it begins with.
    alias: Option<String>,
}

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

/// What a file has of theirs, and how it is to call ours.
pub struct Names {
    pub house: House,
    hits: Vec<Hit>,
    methods: Vec<Method>,
    loaders: Vec<(Module, Range<usize>, &'static str)>,
    todos: Vec<super::Todo>,
}

/// Finds paths, calls of `with_tracing`'s constructors and methods of tensors.
pub fn find(unit: &Unit<'_>) -> Names {
    let mut find = Find {
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
        if unit.source.is_kept(method.name.start) {
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
        draft.edits.replace(from..method.name.end, ")");
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

/// How often a module of candle_nn is used under a name, for what is ours and for the rest.
#[derive(Default)]
struct Uses {
    mapped: usize,
    others: usize,
}

struct Method {
    module: Module,
    receiver: Range<usize>,
    /// From the dot to the closing parenthesis.
    name: Range<usize>,
    function: &'static str,
    borrowed: bool,
}

struct Find<'a, 'u> {
    unit: &'a Unit<'u>,
    module: Module,
    hits: Vec<Hit>,
    uses: BTreeMap<String, Uses>,
    methods: Vec<Method>,
    loaders: Vec<(Module, Range<usize>, &'static str)>,
    /// Starts and ends of expressions before a `?`.
    tried: BTreeSet<(usize, usize)>,
    todos: Vec<super::Todo>,
}

impl Find<'_, '_> {
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
        // `layer_norm` may be imported as a function and as the module of that name.
        let in_module = mapped.segments == 2 && segments.len() > 1;
        if first.mapped().is_some() && !in_module {
            return self.through_glob(&segments[0], mapped);
        }
        let Some(last) = (segments.len() + mapped.segments).checked_sub(inside + 1) else {
            return;
        };
        let start = colon.unwrap_or(self.unit.source.range(idents[0]).start);
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
        let scope = self.unit.types.scopes.scope(&self.module);
        let bound = scope.is_some_and(|scope| scope.bindings.contains_key(name));
        let globs = scope.is_some_and(|scope| {
            scope
                .globs
                .iter()
                .any(|glob| matches!(glob, Origin::Nn(_) | Origin::Traced(_)))
        });
        if globs && !bound && mapped.name == name {
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

    /// Paths in the tokens of a macro call, which has no tree.
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
        let Some((function, shared)) = table::of_method(&name) else {
            return;
        };
        let source = self.unit.source;
        let whole = source.range(call);
        let tried = self.tried.contains(&(whole.start, whole.end));
        if !call.args.is_empty() || (shared == Shared::WithNumbers && !tried) {
            return;
        }
        let at = source.range(&call.method).start;
        if self.unit.types.methods.contains(&name) {
            return self.todos.push(self.unit.todo(
                at,
                format!("`.{name}()` may be a method of this file's own"),
                format!("of a tensor it is `ops::{function}(&xs)`"),
            ));
        }
        let borrowed = match &*call.receiver {
            Expr::Reference(_) => true,
            Expr::Path(path) => path
                .path
                .get_ident()
                .is_some_and(|ident| self.unit.is_borrowed(ident)),
            _ => false,
        };
        self.methods.push(Method {
            module: self.module.clone(),
            receiver: source.range(&*call.receiver),
            name: source.range(&call.dot_token).start..whole.end,
            function,
            borrowed,
        });
    }
}

impl<'a> Visit<'a> for Find<'a, '_> {
    fn visit_item_use(&mut self, _: &'a syn::ItemUse) {}

    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}

    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_path(&mut self, path: &'a Path) {
        let idents: Vec<_> = path.segments.iter().map(|segment| &segment.ident).collect();
        let colon = path
            .leading_colon
            .as_ref()
            .map(|colon| self.unit.source.range(colon).start);
        self.path(&idents, colon);
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'a ExprCall) {
        if let Expr::Path(function) = &*call.func {
            let segments = function.path.segments.iter();
            let segments: Vec<_> = segments.map(|segment| segment.ident.to_string()).collect();
            let origin = self.unit.types.scopes.resolve(&self.module, &segments);
            if let Origin::Traced(path) = origin {
                if let Some(loader) = table::loader(&path, call.args.len()) {
                    let range = self.unit.source.range(&*call.func);
                    self.loaders.push((self.module.clone(), range, loader));
                    return call
                        .args
                        .iter()
                        .for_each(|argument| self.visit_expr(argument));
                }
                if path.len() == 2 && path[1] == "new" && table::loads(&path[0]) {
                    self.todos.push(self.unit.todo(
                        self.unit.source.range(&*call.func).start,
                        format!("`with_tracing`'s `{}::new` has other arguments", path[0]),
                        "load it by the function of `candle_dynquant::nn`".into(),
                    ));
                }
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
        let parser = Punctuated::<Expr, Token![,]>::parse_terminated;
        match call.parse_body_with(parser) {
            // The tree lives as long as this call; what is found is kept as ranges.
            Ok(arguments) => {
                let mut find = Find {
                    unit: self.unit,
                    module: self.module.clone(),
                    hits: Vec::new(),
                    uses: std::mem::take(&mut self.uses),
                    methods: Vec::new(),
                    loaders: Vec::new(),
                    tried: BTreeSet::new(),
                    todos: Vec::new(),
                };
                arguments
                    .iter()
                    .for_each(|argument| find.visit_expr(argument));
                self.hits.append(&mut find.hits);
                self.methods.append(&mut find.methods);
                self.loaders.append(&mut find.loaders);
                self.todos.append(&mut find.todos);
                self.uses = find.uses;
            }
            Err(_) => self.tokens(call.tokens.clone()),
        }
    }
}
