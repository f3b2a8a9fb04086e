//! The places where a struct of a file is built.

use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprPath, ExprStruct, FieldValue};

use crate::scopes::{Module, Origin, Scopes};
use crate::syntax::{ends_with, member, segments};
use crate::types::{Key, arguments, is_named};
use crate::unit::Unit;

/// The literals of a type, and whether a pattern names all of its fields.
pub struct Literals<'l> {
    scopes: &'l Scopes,
    key: &'l Key,
    /// The enclosing module, and whether `Self` is the type there.
    module: Module,
    is_self: bool,
    /// Whether the enclosing functions return a `Result`, the innermost last.
    results: Vec<bool>,
    /// The literals, each with whether its function returns a `Result`.
    pub found: Vec<(&'l ExprStruct, bool)>,
    /// The calls that build a tuple, each with the same flag.
    pub tuples: Vec<(&'l ExprCall, bool)>,
    /// Whether the function that builds a tuple is used as a value.
    pub is_value: bool,
    pub patterns: bool,
}

/// The value of a field in a literal.
pub fn given<'l>(literal: &'l ExprStruct, name: &str) -> Option<&'l FieldValue> {
    let mut fields = literal.fields.iter();
    fields.find(|given| member(&given.member) == name)
}

impl<'l> Literals<'l> {
    /// Finds the literals of the type `key` in the whole file.
    pub fn find(unit: &Unit<'l>, key: &'l Key) -> Self {
        let mut literals = Self {
            scopes: &unit.types.scopes,
            key,
            module: Vec::new(),
            is_self: false,
            results: Vec::new(),
            found: Vec::new(),
            tuples: Vec::new(),
            is_value: false,
            patterns: false,
        };
        literals.visit_file(unit.file);
        literals
    }

    fn is_it(&self, path: &syn::Path) -> bool {
        if path.is_ident("Self") {
            return self.is_self;
        }
        let (module, name) = self.key;
        ends_with(path, name)
            && self.scopes.resolve(&self.module, &segments(path))
                == Origin::Local(module.clone(), name.clone())
    }

    fn function(&mut self, signature: &syn::Signature, block: &'l syn::Block) {
        let result = match &signature.output {
            // A function with a different error type may not accept candle's.
            syn::ReturnType::Type(_, ty) => is_named(ty, "Result") && arguments(ty).len() == 1,
            syn::ReturnType::Default => false,
        };
        self.results.push(result);
        visit::visit_block(self, block);
        self.results.pop();
    }
}

impl<'l> Visit<'l> for Literals<'l> {
    fn visit_item_mod(&mut self, item: &'l syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_impl(&mut self, item: &'l syn::ItemImpl) {
        let is_self = matches!(&*item.self_ty, syn::Type::Path(ty) if self.is_it(&ty.path));
        let outer = std::mem::replace(&mut self.is_self, is_self);
        visit::visit_item_impl(self, item);
        self.is_self = outer;
    }

    fn visit_expr_struct(&mut self, literal: &'l ExprStruct) {
        if self.is_it(&literal.path) {
            let result = self.results.last().copied().unwrap_or_default();
            self.found.push((literal, result));
        }
        visit::visit_expr_struct(self, literal);
    }

    fn visit_expr_call(&mut self, call: &'l ExprCall) {
        let builds = matches!(&*call.func, Expr::Path(path) if self.is_it(&path.path));
        if !builds {
            return visit::visit_expr_call(self, call);
        }
        let result = self.results.last().copied().unwrap_or_default();
        self.tuples.push((call, result));
        call.args.iter().for_each(|arg| self.visit_expr(arg));
    }

    fn visit_expr_path(&mut self, path: &'l ExprPath) {
        self.is_value |= self.is_it(&path.path);
    }

    fn visit_pat_tuple_struct(&mut self, pat: &'l syn::PatTupleStruct) {
        self.patterns |= self.is_it(&pat.path);
        visit::visit_pat_tuple_struct(self, pat);
    }

    fn visit_pat_struct(&mut self, pat: &'l syn::PatStruct) {
        self.patterns |= self.is_it(&pat.path) && pat.rest.is_none();
        visit::visit_pat_struct(self, pat);
    }

    fn visit_expr_closure(&mut self, closure: &'l syn::ExprClosure) {
        // The return type of a closure is not written.
        self.results.push(false);
        visit::visit_expr_closure(self, closure);
        self.results.pop();
    }

    fn visit_item_fn(&mut self, item: &'l syn::ItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'l syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
    }
}
