//! Attention written out, in place of which `ops::scaled_dot_product_attention` stands.

mod chain;
pub mod found;
pub mod fused;
mod masks;
mod scale;

use std::collections::BTreeMap;
use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprMethodCall, Stmt};

use crate::draft::Draft;
use crate::facts::Facts;
use crate::functions::{self, Function, blocks};
use crate::names::House;
use crate::syntax::{assigned, assigns, binds, ident, mentions, strip};
use crate::table::Home;
use crate::unit::Unit;
use chain::{Env, Scores};
use found::{DEPTH, Found};
use masks::{added_maybe, broadcast_mask, excluded_later};

/// Rewrites the attention that is certain, and lists the rest.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, house: &House) {
    for function in functions::of(unit.file) {
        rewrite_in(unit, draft, house.name(Home::Ops), &function);
    }
}

fn rewrite_in(unit: &Unit<'_>, draft: &mut Draft, ops: &str, function: &Function<'_>) {
    let mut softmaxes = Softmaxes {
        unit,
        found: Vec::new(),
        products: 0,
    };
    softmaxes.visit_block(function.block);
    if softmaxes.found.is_empty() || softmaxes.products < 2 {
        return;
    }
    let facts = Facts::of(unit, function);
    for inner in blocks(function.block) {
        if let Some(found) = in_block(&facts, inner) {
            fused::write(&facts, draft, (&function.module, ops), found);
        }
    }
    for at in softmaxes.found {
        if draft.edits.is_rewritten(at) || unit.source.is_kept(at) {
            continue;
        }
        draft.todos.push(
            unit.todo(
                at,
                "attention of a form that is not certain".into(),
                "write it with `ops::scaled_dot_product_attention`, or put `// dynquant: keep` here"
                    .into(),
            ),
        );
    }
}

/// Where probabilities are computed, and how many products there are.
struct Softmaxes<'s, 'u> {
    unit: &'s Unit<'u>,
    found: Vec<usize>,
    products: usize,
}

impl<'a> Visit<'a> for Softmaxes<'_, '_> {
    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        if let Expr::Path(path) = &*call.func {
            let last = path.path.segments.last().map(|last| last.ident.to_string());
            if matches!(last.as_deref(), Some("softmax" | "softmax_last_dim")) {
                self.found.push(self.unit.source.range(path).start);
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        self.products += usize::from(call.method == "matmul");
        visit::visit_expr_method_call(self, call);
    }
}

fn in_block<'a>(facts: &Facts<'a, '_>, block: &'a Block) -> Option<Found<'a>> {
    let is_number = |expr: &Expr| facts.is_number(expr, DEPTH);
    let is_owned = |expr: &Expr| facts.is_owned(expr);
    let is_reference = |expr: &Expr| facts.is_reference(expr);
    let is_identity = |layer: &Expr| facts.is_identity(layer);
    let mut env = Env {
        unit: facts.unit,
        signature: Some(facts.signature),
        current: None,
        masks: BTreeMap::new(),
        is_number: &is_number,
        is_owned: &is_owned,
        is_reference: &is_reference,
        is_identity: &is_identity,
    };
    let mut removed = Vec::new();
    let mut ranks = Vec::new();
    let mut first = None;
    for (index, stmt) in block.stmts.iter().enumerate() {
        let text = facts.unit.source.slice(stmt);
        let range = facts.unit.source.range(stmt);
        if let Some(last) = product(&env, stmt) {
            let scores = used_up(facts, &env, (block, index), last)?;
            let first = first.unwrap_or(index);
            return Some(found(
                facts,
                (block, first, index),
                (scores, last),
                removed,
                ranks,
            ));
        }
        let bound = assigned(stmt).and_then(|(name, expr)| Some((name, env.eval(expr)?, expr)));
        if let Some((name, scores, expr)) = bound {
            // The scores that this replaces must not be read by others.
            let other = env.current.as_ref().is_some_and(|(current, _)| {
                *current != name && is_read_later(facts, block, index, stmt, current)
            });
            if other || removed.is_empty() && env.current.is_some() {
                return None;
            }
            ranks.extend(operand_ranks(facts, expr));
            env.current = Some((name, scores));
            first.get_or_insert(index);
            removed.push((range, None));
            continue;
        }
        let Some((name, scores)) = env.current.clone() else {
            continue;
        };
        if let Some((mask, made)) = broadcast_mask(&env, stmt) {
            env.masks.insert(mask, made);
            removed.push((range, None));
            continue;
        }
        if let Some((scores, text)) = excluded_later(&env, stmt, &name, &scores) {
            env.current = Some((name, scores));
            removed.push((range, Some(text)));
            continue;
        }
        if let Some((scores, text)) = added_maybe(&env, stmt, &name, &scores) {
            env.current = Some((name, scores));
            removed.push((range, text));
            continue;
        }
        let rebinds = scores.reads.iter().any(|read| rebinds(stmt, read));
        let mut masks = env.masks.keys();
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
    facts: &Facts<'_, '_>,
    env: &Env<'_, '_>,
    (block, index): (&Block, usize),
    (product, values): (&Expr, &Expr),
) -> Option<Scores> {
    let stmt = &block.stmts[index];
    let scores = env.eval(receiver(product)?)?;
    let text = |node: &Expr| facts.unit.source.slice(node);
    if let Some((name, _)) = &env.current {
        let outside = mentions(facts.unit.source.slice(stmt), name)
            > mentions(text(product), name) + usize::from(assigns(stmt, name));
        let inside = mentions(text(values), name) > 0;
        if outside || inside || is_read_later(facts, block, index, stmt, name) {
            return None;
        }
    }
    let mut masks = env.masks.keys();
    let is_read = masks.any(|mask| is_read_later(facts, block, index, stmt, mask));
    (!is_read).then_some(scores)
}

/// The attention from a statement to another one of a block, which has the last product.
fn found<'a>(
    facts: &Facts<'a, '_>,
    (block, first, index): (&'a Block, usize, usize),
    (mut scores, (product, values)): (Scores, (&'a Expr, &'a Expr)),
    mut removed: Vec<(Range<usize>, Option<String>)>,
    mut ranks: Vec<usize>,
) -> Found<'a> {
    ranks.extend(operand_ranks(facts, product));
    if let Some(scaled) = scale::of_queries(facts, block, (first, index), &mut scores) {
        removed.insert(0, (scaled, None));
    }
    Found {
        scores,
        removed,
        product,
        values,
        last: &block.stmts[index],
        ranks,
    }
}

/// The ranks of a product's operands.
fn operand_ranks(facts: &Facts<'_, '_>, expr: &Expr) -> Vec<usize> {
    struct Products<'a>(Vec<&'a ExprMethodCall>);
    impl<'a> Visit<'a> for Products<'a> {
        fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
            if call.method == "matmul" {
                self.0.push(call);
            }
            visit::visit_expr_method_call(self, call);
        }
    }
    let mut products = Products(Vec::new());
    products.visit_expr(expr);
    let operands = products
        .0
        .iter()
        .flat_map(|call| [Some(&*call.receiver), call.args.first()]);
    operands
        .flatten()
        .filter_map(|operand| facts.rank(operand, DEPTH))
        .collect()
}

fn receiver(product: &Expr) -> Option<&Expr> {
    match strip(product) {
        Expr::MethodCall(call) => Some(&call.receiver),
        _ => None,
    }
}

fn rebinds(stmt: &Stmt, name: &str) -> bool {
    match stmt {
        Stmt::Local(local) => binds(&local.pat, name),
        Stmt::Expr(Expr::Assign(assign), _) => ident(&assign.left).is_some_and(|left| left == name),
        _ => false,
    }
}

/// Whether statements after one read a variable that was bound before it.
fn is_read_later(
    facts: &Facts<'_, '_>,
    block: &Block,
    index: usize,
    stmt: &Stmt,
    name: &str,
) -> bool {
    if assigns(stmt, name) {
        return false;
    }
    for later in &block.stmts[index + 1..] {
        if mentions(facts.unit.source.slice(later), name) > usize::from(assigns(later, name)) {
            return true;
        }
        if assigns(later, name) {
            return false;
        }
    }
    false
}

/// The product of probabilities and values in a statement.
fn product<'a>(env: &Env<'_, '_>, stmt: &'a Stmt) -> Option<(&'a Expr, &'a Expr)> {
    struct Find<'a, 'e, 'v, 'u> {
        env: &'e Env<'v, 'u>,
        found: Option<(&'a Expr, &'a Expr)>,
    }
    impl<'a> Visit<'a> for Find<'a, '_, '_, '_> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if self.found.is_some() {
                return;
            }
            // With its `?`, if it has one.
            let call = match expr {
                Expr::Try(tried) => &*tried.expr,
                _ => expr,
            };
            if let Expr::MethodCall(call) = call
                && call.method == "matmul"
                && call.args.len() == 1
                && self
                    .env
                    .eval(&call.receiver)
                    .is_some_and(|scores| scores.soft)
            {
                self.found = call.args.first().map(|values| (expr, values));
                return;
            }
            visit::visit_expr(self, expr);
        }
    }
    let mut find = Find { env, found: None };
    find.visit_stmt(stmt);
    find.found
}
