//! Rewrites attention that is written out as `ops::scaled_dot_product_attention`.

mod chain;
pub mod fused;
mod masks;

use std::collections::BTreeMap;

use syn::{Block, Expr, ExprMethodCall, Stmt};

use crate::draft::Draft;
use crate::facts::{self, DEPTH, Facts};
use crate::functions::blocks;
use crate::names::Modules;
use crate::syntax::{assigned, assigns, binds, ends_with, exactly, get, is, mentions, method};
use crate::table::Home;
use crate::unit::Unit;
use crate::walk::{Tree, calls, exprs, method_calls};
use chain::{ScoreContext, Scores};
use fused::FoundAttention;
use masks::{added_maybe, broadcast_mask, excluded_later, scale_of_queries};

/// Rewrites attention where that is certain, and lists the rest.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, modules: &Modules) {
    for facts in facts::all(unit) {
        rewrite_in(facts, draft, modules.name(Home::Ops));
    }
}

fn rewrite_in(facts: Facts<'_>, draft: &mut Draft, ops: &str) {
    let (unit, block) = (facts.unit, facts.function.block);
    let softmaxes = calls(block).filter_map(|call| {
        let path = get!(&*call.func, Expr::Path)?;
        is_softmax(&path.path).then(|| unit.source.start(path))
    });
    let softmaxes: Vec<_> = softmaxes.collect();
    if softmaxes.is_empty() || products(block).count() < 2 {
        return;
    }
    for inner in blocks(block) {
        if let Some(found) = in_block(&facts, inner) {
            fused::write(&facts, draft, ops, found);
        }
    }
    for at in softmaxes {
        if draft.edits.is_rewritten(at) || unit.source.is_kept(at) {
            continue;
        }
        let advice =
            "write it with `ops::scaled_dot_product_attention`, or put `// dynquant: keep` here";
        draft.list(unit.todo(at, "attention of a form that is not certain", advice));
    }
}

/// Whether a function computes probabilities.
fn is_softmax(path: &syn::Path) -> bool {
    ends_with(path, "softmax") || ends_with(path, "softmax_last_dim")
}

fn products<T: Tree>(tree: &T) -> impl Iterator<Item = &ExprMethodCall> {
    method_calls(tree).filter(|call| call.method == "matmul")
}

fn in_block<'a>(facts: &Facts<'a>, block: &'a Block) -> Option<FoundAttention<'a>> {
    let mut context = ScoreContext { facts: *facts, current: None, masks: BTreeMap::new() };
    let mut removed = Vec::new();
    let mut ranks = Vec::new();
    let mut first = None;
    for (index, stmt) in block.stmts.iter().enumerate() {
        let text = facts.text(stmt);
        let range = facts.range(stmt);
        if let Some(last) = product(&context, stmt) {
            let mut scores = used_up(facts, &context, (block, index), last)?;
            let (product, values) = last;
            ranks.extend(operand_ranks(facts, product));
            let place = (first.unwrap_or(index), index);
            if let Some(scaled) = scale_of_queries(facts, block, place, &mut scores) {
                removed.insert(0, (scaled, None));
            }
            return Some(FoundAttention { scores, removed, product, values, last: stmt, ranks });
        }
        let bound = assigned(stmt).and_then(|(name, expr)| Some((name, context.eval(expr)?, expr)));
        if let Some((name, scores, expr)) = bound {
            // No other statement may read the scores that these replace.
            let other = context.current.as_ref().is_some_and(|(current, _)| {
                *current != name && is_read_later(facts, block, index, current)
            });
            if other || removed.is_empty() && context.current.is_some() {
                return None;
            }
            ranks.extend(operand_ranks(facts, expr));
            context.current = Some((name, scores));
            first.get_or_insert(index);
            removed.push((range, None));
            continue;
        }
        let Some((name, scores)) = context.current.clone() else { continue };
        if let Some((mask, original)) = broadcast_mask(&context, stmt) {
            context.masks.insert(mask, original);
            removed.push((range, None));
            continue;
        }
        let masked = excluded_later(&context, stmt).or_else(|| added_maybe(&context, stmt));
        if let Some((scores, text)) = masked {
            context.current = Some((name, scores));
            removed.push((range, text));
            continue;
        }
        let rebinds = scores.reads.iter().any(|read| rebinds(stmt, read));
        let mut masks = context.masks.keys();
        let is_read = mentions(text, &name) > 0 || masks.any(|mask| mentions(text, mask) > 0);
        if is_read || rebinds {
            return None;
        }
    }
    None
}

/// The scores in the product with the values, if nothing else reads them or their masks from there
/// on.
fn used_up(
    facts: &Facts<'_>,
    context: &ScoreContext<'_>,
    (block, index): (&Block, usize),
    (product, values): (&Expr, &Expr),
) -> Option<Scores> {
    let stmt = &block.stmts[index];
    let scores = context.eval(&method(product)?.receiver)?;
    let text = |node: &Expr| facts.text(node);
    if let Some((name, _)) = &context.current {
        let outside = mentions(facts.text(stmt), name)
            > mentions(text(product), name) + usize::from(assigns(stmt, name));
        let inside = mentions(text(values), name) > 0;
        if outside || inside || is_read_later(facts, block, index, name) {
            return None;
        }
    }
    let is_read = context.masks.keys().any(|mask| is_read_later(facts, block, index, mask));
    (!is_read).then_some(scores)
}

/// The ranks of a product's operands.
fn operand_ranks(facts: &Facts<'_>, expr: &Expr) -> Vec<usize> {
    let operands = products(expr).flat_map(|call| [Some(&*call.receiver), call.args.first()]);
    operands.flatten().filter_map(|operand| facts.rank(operand, DEPTH)).collect()
}

fn rebinds(stmt: &Stmt, name: &str) -> bool {
    match stmt {
        Stmt::Local(local) => binds(&local.pat, name),
        Stmt::Expr(Expr::Assign(assign), _) => is(&assign.left, name),
        _ => false,
    }
}

/// Whether statements after `index` read a variable that was bound before it.
fn is_read_later(facts: &Facts<'_>, block: &Block, index: usize, name: &str) -> bool {
    if assigns(&block.stmts[index], name) {
        return false;
    }
    for later in &block.stmts[index + 1..] {
        if mentions(facts.text(later), name) > usize::from(assigns(later, name)) {
            return true;
        }
        if assigns(later, name) {
            return false;
        }
    }
    false
}

/// The product of probabilities and values in a statement.
fn product<'a>(context: &ScoreContext<'_>, stmt: &'a Stmt) -> Option<(&'a Expr, &'a Expr)> {
    let is_soft = |expr: &Expr| context.eval(expr).is_some_and(|scores| scores.soft);
    exprs(stmt).find_map(|expr| {
        // The product with its `?`, if it has one.
        let call = match expr {
            Expr::Try(tried) => &*tried.expr,
            _ => expr,
        };
        let call = get!(call, Expr::MethodCall).filter(|call| call.method == "matmul")?;
        let [values] = exactly(&call.args)?;
        is_soft(&call.receiver).then_some((expr, values))
    })
}
