//! A default that is computed whether it is needed or not is computed where it is.

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, Pat};

use super::draft::Draft;
use super::facts::Facts;
use super::functions;
use super::syntax::{exactly, get};
use super::unit::Unit;

/// Rewrites `option.map_or(made()?, |one| ..)` of a parameter as a `match`.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for function in functions::of(unit.file) {
        let mut find = Find {
            facts: &Facts::of(unit, &function),
            draft,
        };
        find.visit_block(function.block);
    }
}

struct Find<'a, 'f, 'u, 'd> {
    facts: &'a Facts<'f, 'u>,
    draft: &'d mut Draft,
}

impl Find<'_, '_, '_, '_> {
    fn text(&self, call: &ExprMethodCall) -> Option<String> {
        let source = self.facts.unit.source;
        let [default, closure] = exactly(&call.args)?;
        let (default, closure) = (get!(default, Expr::Try)?, get!(closure, Expr::Closure)?);
        let [one] = exactly(&closure.inputs)?;
        let one = get!(one, Pat::Ident)?;
        let certain = call.method == "map_or"
            && matches!(&*default.expr, Expr::Call(_))
            && self.facts.is_option(&call.receiver)
            && !source.slice(call).contains("//");
        if !certain {
            return None;
        }
        let at = source.start(call);
        let inner = format!("{}{}    ", source.newline(), source.indent(at));
        let [option, one, some, none] = [
            source.slice(&*call.receiver),
            source.slice(one),
            source.slice(&*closure.body),
            source.slice(default),
        ];
        let end = inner.strip_suffix("    ")?;
        Some(format!(
            "match {option} {{{inner}Some({one}) => {some},{inner}None => {none},{end}}}"
        ))
    }
}

impl<'a> Visit<'a> for Find<'_, '_, '_, '_> {
    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        let range = self.facts.unit.source.range(call);
        match self.text(call) {
            Some(text) if !self.facts.unit.source.is_kept(range.start) => {
                self.draft.edits.rewrite(range, text);
            }
            _ => visit::visit_expr_method_call(self, call),
        }
    }
}
