//! Rewrites a default that is always computed, so that it is computed only where needed.

use syn::{Expr, ExprMethodCall, Pat};

use super::draft::Draft;
use super::facts::{self, Facts};
use super::syntax::{exactly, get};
use super::unit::Unit;
use super::walk::descend;

/// Rewrites `option.map_or(made()?, |one| ..)` of a parameter as a `match`.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        descend(facts.function.block, &mut |expr| {
            let found = get!(expr, Expr::MethodCall).and_then(|call| text(&facts, call));
            let found = found.filter(|_| !unit.source.is_kept(unit.source.start(expr)));
            let is_other = found.is_none();
            if let Some(text) = found {
                draft.edits.rewrite(unit.source.range(expr), text);
            }
            is_other
        });
    }
}

/// The text that replaces a call of `map_or`.
fn text(facts: &Facts<'_>, call: &ExprMethodCall) -> Option<String> {
    let source = facts.unit.source;
    let [default, closure] = exactly(&call.args)?;
    let (default, closure) = (get!(default, Expr::Try)?, get!(closure, Expr::Closure)?);
    let [one] = exactly(&closure.inputs)?;
    let one = get!(one, Pat::Ident)?;
    let certain = call.method == "map_or"
        && matches!(&*default.expr, Expr::Call(_))
        && facts.is_option(&call.receiver)
        && !source.slice(call).contains("//");
    if !certain {
        return None;
    }
    let at = source.start(call);
    let end = source.next_line(at);
    let [option, one, some, none] = [
        source.slice(&*call.receiver),
        source.slice(one),
        source.slice(&*closure.body),
        source.slice(default),
    ];
    Some(format!("match {option} {{{end}    Some({one}) => {some},{end}    None => {none},{end}}}"))
}
