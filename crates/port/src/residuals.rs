//! A sum that an RMS norm reads, and others too, becomes one pass: `RmsNorm::forward_add`.

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
    for facts in facts::of(unit) {
        let text = unit.source.slice(facts.function.block);
        let mut names = ["normal", "normed", "normalized"].iter();
        let Some(normal) = names.find(|name| mentions(text, name) == 0) else {
            continue;
        };
        for block in blocks(facts.function.block) {
            // A later sum may be around the norm of an earlier one: it has its turn after it.
            let mut from = 0;
            while let Some(found) =
                (from..block.stmts.len()).find_map(|at| Found::at(&facts, block, at, normal))
            {
                from = found.stmt + 1;
                let [made, call] = [&found.made, &found.call];
                let is_kept = [made, call].iter().any(|(range, _)| {
                    unit.source.is_kept(range.start) || unit.is_left_out(range.start)
                });
                if is_kept {
                    continue;
                }
                for (range, text) in [found.made, found.call] {
                    draft.edits.rewrite(range, text);
                }
            }
        }
    }
}

/// A sum and the norm of it.
struct Found {
    /// The statement of the sum, and what stands for it.
    made: (Range<usize>, String),
    /// The call of the norm with its `?`, and its result.
    call: (Range<usize>, String),
    /// The statement of the norm.
    stmt: usize,
}

impl Found {
    /// The sum that a statement binds, and the norm in the next one, or behind a reference to it.
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
        // The first norm of it.
        let mut found = None;
        descend_straight(reads, &mut |expr| {
            let tried = get!(expr, Expr::Try).filter(|_| found.is_none());
            let field = tried.and_then(|tried| norm(facts, &tried.expr, &name));
            let is_other = field.is_none();
            found = found
                .take()
                .or(field.map(|field| (source.range(expr), field)));
            is_other
        });
        let (call, field) = found?;
        let made = source.range(stmt);
        if source.text[made.clone()].contains("//") || source.text[call.clone()].contains("//") {
            return None;
        }
        // Until it is shadowed.
        let later = &block.stmts[at + 1..];
        let shadow = later.iter().position(|stmt| assigns(stmt, &name));
        let later = &later[..shadow.map_or(later.len(), |at| at + 1)];
        let of_name: usize = later.iter().map(|s| mentions(source.slice(s), &name)).sum();
        let is_read = of_name > 1 + usize::from(shadow.is_some());
        let sum = if is_read { source.slice(pat) } else { "_" };
        let text = format!("let ({normal}, {sum}) = self.{field}.forward_add({a}, {b})?;");
        Some(Self {
            made: (made, text),
            call: (call, normal.to_owned()),
            stmt: next,
        })
    }
}

/// `&name` or `name.clone()`.
fn is_reference(value: &Expr, name: &str) -> bool {
    let of = match value {
        Expr::Reference(inner) if inner.mutability.is_none() => &*inner.expr,
        Expr::MethodCall(call) if call.method == "clone" => &*call.receiver,
        _ => return false,
    };
    matches!(of, Expr::Path(_)) && is(of, name)
}

/// The field in `self.norm.forward(&name)`.
fn norm(facts: &Facts<'_>, expr: &Expr, name: &str) -> Option<String> {
    let (layer, input) = applied(get!(expr, Expr::MethodCall)?)?;
    let is_plain = matches!(input, Expr::Path(_) | Expr::Reference(_));
    let field = own_field(layer).filter(|_| is_plain && is(input, name))?;
    facts.ours(&field, "RmsNorm")?;
    Some(field)
}
