//! Where a struct of a file is built.

use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprPath, ExprStruct, FieldValue};

use crate::syntax::member;
use crate::types::{arguments, is_impl_of, is_named};
use crate::unit::Unit;

/// The literals of a type, and whether a pattern names all of its fields.
#[derive(Default)]
pub struct Literals<'l> {
    names: Vec<String>,
    /// Whether the functions around return a `Result`, the innermost last.
    results: Vec<bool>,
    /// Each with whether its function returns a `Result`.
    pub found: Vec<(&'l ExprStruct, bool)>,
    /// Calls that build a tuple, each with the same.
    pub tuples: Vec<(&'l ExprCall, bool)>,
    /// Whether the function that builds a tuple is given away.
    pub is_value: bool,
    pub patterns: bool,
}

/// The value of a field in a literal.
pub fn given<'l>(literal: &'l ExprStruct, name: &str) -> Option<&'l FieldValue> {
    let mut fields = literal.fields.iter();
    fields.find(|given| member(&given.member) == name)
}

impl<'l> Literals<'l> {
    /// Of the type `of`, in the whole file.
    pub fn of(unit: &Unit<'l>, of: &str) -> Self {
        let mut literals = Self::default();
        for item in &unit.file.items {
            literals.names = vec![of.to_owned()];
            let own = is_impl_of(item, of).then(|| "Self".to_owned());
            literals.names.extend(own);
            literals.visit_item(item);
        }
        literals
    }

    fn is_it(&self, path: &syn::Path) -> bool {
        self.names.iter().any(|name| path.is_ident(name))
    }

    fn function(&mut self, signature: &syn::Signature, block: &'l syn::Block) {
        let result = match &signature.output {
            // One with an error of its own may take none of candle's.
            syn::ReturnType::Type(_, ty) => is_named(ty, "Result") && arguments(ty).len() == 1,
            syn::ReturnType::Default => false,
        };
        self.results.push(result);
        visit::visit_block(self, block);
        self.results.pop();
    }
}

impl<'l> Visit<'l> for Literals<'l> {
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
        // Its return type is not written.
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
