//! Merges a sum and the RMS norm that reads it into `RmsNorm::forward_add`, if others read the sum
//! too.

use std::ops::Range;

use syn::{Block, Expr, Pat, Stmt};

use super::draft::Draft;
use super::facts::{self, Facts};
use super::functions::blocks;
use super::sums::terms;
use super::syntax::{applied, assigned, assigns, get, is, mentions, own_field};
use super::unit::Unit;
use super::walk::descend_straight;

/// Rewrites `let xs = (a + b)?;` before a statement with `self.norm.forward(&xs)?`.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        let text = unit.source.slice(facts.function.block);
        let mut names = ["normal", "normed", "normalized"].iter();
        let Some(normal) = names.find(|name| mentions(text, name) == 0) else {
            continue;
        };
        for block in blocks(facts.function.block) {
            // A later sum may enclose the norm of an earlier sum: it is handled after it.
            let mut from = 0;
            while let Some(found) = (from..block.stmts.len())
                .find_map(|at| FoundResidual::at(&facts, block, at, normal))
            {
                from = found.stmt + 1;
                let [sum, call] = [&found.sum, &found.call];
                let is_kept = [sum, call].iter().any(|(range, _)| {
                    unit.source.is_kept(range.start) || unit.is_left_out(range.start)
                });
                if is_kept {
                    continue;
                }
                for (range, text) in [found.sum, found.call] {
                    draft.edits.rewrite(range, text);
                }
            }
        }
    }
}

/// A sum and its norm.
struct FoundResidual {
    /// The statement of the sum, and its replacement.
    sum: (Range<usize>, String),
    /// The call of the norm with its `?`, and its replacement.
    call: (Range<usize>, String),
    /// The statement of the norm.
    stmt: usize,
}

impl FoundResidual {
    /// The sum that a statement binds, and its norm in the next statement, or behind a reference to
    /// it.
    fn at(facts: &Facts<'_>, block: &Block, at: usize, normal: &str) -> Option<Self> {
        let source = facts.unit.source;
        let stmt = block.stmts.get(at)?;
        let pat = get!(&get!(stmt, Stmt::Local)?.pat, Pat::Ident)?;
        let (name, init) = assigned(stmt)?;
        let [a, b] = terms(facts, init).filter(|_| matches!(init, Expr::Try(_)))?;
        let mut next = at + 1;
        if assigned(block.stmts.get(next)?).is_some_and(|(_, value)| is_reference(value, &name)) {
            next += usize::from(!assigns(&block.stmts[next], &name));
        }
        let reads = block.stmts.get(next)?;
        // The first norm of the sum.
        let mut found = None;
        descend_straight(reads, &mut |expr| {
            let tried = get!(expr, Expr::Try).filter(|_| found.is_none());
            let field = tried.and_then(|tried| norm(facts, &tried.expr, &name));
            let is_other = field.is_none();
            found = found.take().or(field.map(|field| (source.range(expr), field)));
            is_other
        });
        let (call, field) = found?;
        let statement = source.range(stmt);
        if source.text[statement.clone()].contains("//") || source.text[call.clone()].contains("//")
        {
            return None;
        }
        // The statements until the variable is shadowed.
        let later = &block.stmts[at + 1..];
        let shadow = later.iter().position(|stmt| assigns(stmt, &name));
        let later = &later[..shadow.map_or(later.len(), |at| at + 1)];
        let of_name: usize = later.iter().map(|s| mentions(source.slice(s), &name)).sum();
        let is_read = of_name > 1 + usize::from(shadow.is_some());
        let sum = if is_read { source.slice(pat) } else { "_" };
        let text = format!("let ({normal}, {sum}) = self.{field}.forward_add({a}, {b})?;");
        Some(Self { sum: (statement, text), call: (call, normal.to_owned()), stmt: next })
    }
}

/// Whether an expression is `&name` or `name.clone()`.
fn is_reference(value: &Expr, name: &str) -> bool {
    let target = match value {
        Expr::Reference(inner) if inner.mutability.is_none() => &*inner.expr,
        Expr::MethodCall(call) if call.method == "clone" => &*call.receiver,
        _ => return false,
    };
    matches!(target, Expr::Path(_)) && is(target, name)
}

/// The field in `self.norm.forward(&name)`.
fn norm(facts: &Facts<'_>, expr: &Expr, name: &str) -> Option<String> {
    let (layer, input) = applied(get!(expr, Expr::MethodCall)?)?;
    let is_plain = matches!(input, Expr::Path(_) | Expr::Reference(_));
    let field = own_field(layer).filter(|_| is_plain && is(input, name))?;
    facts.ours(&field, "RmsNorm")?;
    Some(field)
}
