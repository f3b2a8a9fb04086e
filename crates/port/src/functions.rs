//! The functions of a file, each with its module and type, and the bindings of names in them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Block, Expr, File, ItemImpl, ItemMod, Pat, Signature};

use super::scopes::Module;
use super::source::Source;
use super::syntax::{get, ident};
use super::types::last_name;
use super::walk::{Node, nodes};

/// A function that has a body.
pub struct Function<'a> {
    pub module: Module,
    /// The type of the function's `impl`.
    pub owner: Option<String>,
    pub signature: &'a Signature,
    pub block: &'a Block,
    pub bindings: BTreeMap<String, Bindings<'a>>,
}

/// All functions in order, except nested functions.
pub fn all<'a>(source: &Source<'_>, file: &'a File) -> Vec<Function<'a>> {
    let mut find = FunctionFinder { source, module: Vec::new(), owner: None, found: Vec::new() };
    find.visit_file(file);
    find.found
}

struct FunctionFinder<'a, 's> {
    source: &'s Source<'s>,
    module: Module,
    owner: Option<String>,
    found: Vec<Function<'a>>,
}

impl<'a> FunctionFinder<'a, '_> {
    fn push(&mut self, signature: &'a Signature, block: &'a Block) {
        self.found.push(Function {
            module: self.module.clone(),
            owner: self.owner.clone(),
            signature,
            block,
            bindings: bindings(self.source, block),
        });
    }
}

impl<'a> Visit<'a> for FunctionFinder<'a, '_> {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        self.owner = last_name(&item.self_ty);
        visit::visit_item_impl(self, item);
        self.owner = None;
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.push(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.push(&item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.push(&item.sig, block);
        }
    }
}

/// The parameters of a function without `self`.
pub fn inputs(signature: &Signature) -> impl Iterator<Item = &syn::PatType> {
    signature.inputs.iter().filter_map(|input| get!(input, syn::FnArg::Typed))
}

/// The type that a function returns, if it is written.
pub fn output(signature: &Signature) -> Option<&syn::Type> {
    match &signature.output {
        syn::ReturnType::Type(_, ty) => Some(ty),
        syn::ReturnType::Default => None,
    }
}

/// A block and all blocks in it, in order.
pub fn blocks(block: &Block) -> impl Iterator<Item = &Block> {
    nodes(block).filter_map(|node| get!(node, Node::Block))
}

/// A place where a function binds a name to a value.
pub struct Binding<'f> {
    /// The byte from which the binding holds.
    pub at: usize,
    pub scope: Range<usize>,
    /// The bound value, if it is an expression.
    pub value: Option<&'f Expr>,
    pub is_assigned: bool,
}

/// All bindings of a name, and the calls of `dims4` on it.
#[derive(Default)]
pub struct Bindings<'f> {
    pub found: Vec<Binding<'f>>,
    /// The places of these calls, each with the innermost block that runs with it.
    four: Vec<(usize, Range<usize>)>,
}

/// The bindings of all names in a block.
fn bindings<'f>(source: &Source<'_>, block: &'f syn::Block) -> BTreeMap<String, Bindings<'f>> {
    let mut finder = BindingFinder { source, scopes: Vec::new(), found: BTreeMap::new() };
    finder.visit_block(block);
    finder.found
}

impl<'f> Bindings<'f> {
    /// The last binding before a byte that is in scope at another byte; `None` for a parameter.
    pub fn last(&self, at: usize, before: usize) -> Option<&Binding<'f>> {
        let counts =
            |one: &&Binding<'_>| one.at <= before && (one.is_assigned || one.scope.contains(&at));
        self.found.iter().filter(counts).max_by_key(|one| one.at)
    }

    /// Whether a value's four dimensions are read in code that runs before a byte.
    pub fn has_four(&self, value: Option<&Binding<'_>>, at: usize) -> bool {
        let place = |one: Option<&Binding<'_>>| one.map(|one| one.at);
        self.four.iter().any(|(asked, scope)| {
            scope.contains(&at) && place(self.last(*asked, *asked)) == place(value)
        })
    }
}

struct BindingFinder<'f, 's> {
    source: &'s Source<'s>,
    scopes: Vec<Range<usize>>,
    found: BTreeMap<String, Bindings<'f>>,
}

impl<'f> BindingFinder<'f, '_> {
    fn push(&mut self, name: String, binding: Binding<'f>) {
        self.found.entry(name).or_default().found.push(binding);
    }

    fn bind(&mut self, pat: &Pat, at: usize, value: Option<&'f Expr>) {
        if let (Pat::Tuple(pats), Some(Expr::Tuple(values))) = (pat, value)
            && pats.elems.len() == values.elems.len()
        {
            let pairs = pats.elems.iter().zip(&values.elems);
            pairs.for_each(|(pat, value)| self.bind(pat, at, Some(value)));
            return;
        }
        let names = nodes(pat).filter_map(|node| get!(node, Node::PatIdent));
        let names: BTreeSet<_> = names.map(|pat| pat.ident.to_string()).collect();
        for name in names {
            let scope = self.scope();
            self.push(name, Binding { at, scope, value, is_assigned: false });
        }
    }

    fn scope(&self) -> Range<usize> {
        self.scopes.last().cloned().unwrap_or_default()
    }

    /// Visits a scope in which patterns bind names from a byte on.
    fn within<'p>(
        &mut self,
        scope: Range<usize>,
        (pats, at): (impl IntoIterator<Item = &'p Pat>, usize),
        visit: impl FnOnce(&mut Self),
    ) {
        self.scopes.push(scope);
        for pat in pats {
            self.bind(pat, at, None);
        }
        visit(self);
        self.scopes.pop();
    }
}

impl<'f> Visit<'f> for BindingFinder<'f, '_> {
    fn visit_block(&mut self, block: &'f syn::Block) {
        // The range of the braces: a block's range covers all tokens.
        let scope = self.source.range(&block.brace_token.span);
        self.within(scope, ([], 0), |inner| visit::visit_block(inner, block));
    }

    fn visit_arm(&mut self, arm: &'f syn::Arm) {
        let scope = self.source.range(arm);
        let at = self.source.range(&arm.pat).end;
        self.within(scope, ([&arm.pat], at), |inner| visit::visit_arm(inner, arm));
    }

    fn visit_expr_closure(&mut self, closure: &'f syn::ExprClosure) {
        let scope = self.source.range(closure);
        let at = self.source.start(&*closure.body);
        self.within(scope, (&closure.inputs, at), |inner| {
            visit::visit_expr_closure(inner, closure)
        });
    }

    fn visit_expr_for_loop(&mut self, each: &'f syn::ExprForLoop) {
        let scope = self.source.range(each);
        let at = self.source.start(&each.body);
        self.within(scope, ([&*each.pat], at), |inner| visit::visit_expr_for_loop(inner, each));
    }

    fn visit_expr_while(&mut self, each: &'f syn::ExprWhile) {
        let scope = self.source.range(each);
        self.within(scope, ([], 0), |inner| visit::visit_expr_while(inner, each));
    }

    fn visit_expr_if(&mut self, choice: &'f syn::ExprIf) {
        let scope = self.source.start(&*choice.cond)..self.source.range(&choice.then_branch).end;
        self.within(scope, ([], 0), |inner| {
            inner.visit_expr(&choice.cond);
            inner.visit_block(&choice.then_branch);
        });
        if let Some((_, other)) = &choice.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_let(&mut self, bound: &'f syn::ExprLet) {
        visit::visit_expr_let(self, bound);
        let at = self.source.range(bound).end;
        self.bind(&bound.pat, at, None);
    }

    fn visit_local(&mut self, local: &'f syn::Local) {
        visit::visit_local(self, local);
        let at = self.source.range(local).end;
        let value = local.init.as_ref().map(|init| &*init.expr);
        self.bind(&local.pat, at, value);
    }

    fn visit_expr_assign(&mut self, assign: &'f syn::ExprAssign) {
        visit::visit_expr_assign(self, assign);
        if let Some(name) = ident(&assign.left) {
            let (at, scope) = (self.source.range(assign).end, self.scope());
            self.push(name, Binding { at, scope, value: Some(&assign.right), is_assigned: true });
        }
    }

    fn visit_expr_method_call(&mut self, call: &'f syn::ExprMethodCall) {
        if let Some(name) = ident(&call.receiver).filter(|_| call.method == "dims4") {
            let (at, scope) = (self.source.start(call), self.scope());
            self.found.entry(name).or_default().four.push((at, scope));
        }
        visit::visit_expr_method_call(self, call);
    }
}
