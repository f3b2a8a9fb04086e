//! Merges a layer norm and the sum that it reads into `LayerNorm::forward_add`.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Block, Expr, Stmt};

use super::draft::Draft;
use super::facts::{self, Facts};
use super::syntax::{applied, assigned, ident, mentions, own_field, strip};
use super::unit::Unit;

/// Rewrites `self.norm.forward(&(a + b)?)`, and the same sum by way of a variable.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        let mut norms = Norms { facts, sums: Vec::new(), found: Vec::new() };
        norms.visit_block(facts.function.block);
        for FoundSum { call, text, gone } in norms.found {
            let starts = [Some(call.start), gone.as_ref().map(|range| range.start)];
            let mut starts = starts.into_iter().flatten();
            if starts.any(|at| unit.source.is_kept(at)) {
                continue;
            }
            draft.edits.rewrite(call, text);
            if let Some(range) = gone {
                draft.edits.rewrite(unit.source.lines_of(range), "");
            }
        }
    }
}

/// The terms of `(a + b)?` and of `a.broadcast_add(b)?`, as expressions of type `&Tensor`.
pub fn terms(facts: &Facts<'_>, expr: &Expr) -> Option<[String; 2]> {
    let (a, b) = match strip(expr) {
        Expr::Binary(sum) if matches!(sum.op, syn::BinOp::Add(_)) => (&*sum.left, &*sum.right),
        Expr::MethodCall(call) if call.method == "broadcast_add" && call.args.len() == 1 => {
            (&*call.receiver, call.args.first()?)
        }
        _ => return None,
    };
    let is_tensor = |term: &&Expr| facts.is_tensor(term);
    let text = |term: &Expr| facts.borrowed(term);
    [a, b].iter().all(is_tensor).then(|| [text(a), text(b)])
}

/// A norm of a sum: the call, its replacement, and the statement of the sum.
struct FoundSum {
    call: Range<usize>,
    text: String,
    gone: Option<Range<usize>>,
}

/// A variable that holds a sum, and the statement after it.
struct Sum {
    name: String,
    terms: [String; 2],
    statement: Range<usize>,
    next: Range<usize>,
}

struct Norms<'u> {
    facts: Facts<'u>,
    sums: Vec<Sum>,
    found: Vec<FoundSum>,
}

impl Norms<'_> {
    /// The sums that are bound to a variable which only the next statement reads.
    fn sums(&mut self, block: &Block) {
        let source = self.facts.unit.source;
        for (i, pair) in block.stmts.windows(2).enumerate() {
            let Some((name, init)) = assigned(&pair[0]) else {
                continue;
            };
            let Some(terms) = terms(&self.facts, init) else {
                continue;
            };
            let next = &pair[1];
            let shadows = assigned(next).is_some_and(|(variable, _)| variable == name);
            let later = &block.stmts[i + 2..];
            let is_read = |stmt: &Stmt| mentions(source.slice(stmt), &name) > 0;
            if mentions(source.slice(next), &name) != 1 + usize::from(shadows)
                || !shadows && later.iter().any(is_read)
                || !matches!(pair[0], Stmt::Local(_))
            {
                continue;
            }
            let (statement, next) = (source.range(&pair[0]), source.range(next));
            self.sums.push(Sum { name, terms, statement, next });
        }
    }

    fn norm(&self, call: &syn::ExprMethodCall) -> Option<FoundSum> {
        let source = self.facts.unit.source;
        let (layer, input) = applied(call)?;
        let field = own_field(layer)?;
        self.facts.ours(&field, "LayerNorm")?;
        let at = source.range(call);
        let bound = ident(input).and_then(|name| {
            let mut sums = self.sums.iter();
            sums.find(|sum| sum.name == name && sum.next.contains(&at.start))
        });
        let terms = match bound {
            Some(sum) => sum.terms.clone(),
            None => terms(&self.facts, input)?,
        };
        let [a, b] = terms;
        Some(FoundSum {
            call: at,
            text: format!("self.{field}.forward_add({a}, {b})"),
            gone: bound.map(|sum| sum.statement.clone()),
        })
    }
}

impl<'a> Visit<'a> for Norms<'_> {
    /// A block of only the two statements is removed with the first.
    fn visit_expr(&mut self, expr: &'a Expr) {
        let before = self.found.len();
        visit::visit_expr(self, expr);
        let source = self.facts.unit.source;
        if let Expr::Block(block) = expr
            && let [_, Stmt::Expr(last, None)] = block.block.stmts.as_slice()
            && let [found] = &mut self.found[before..]
            && found.gone.is_some()
            && !source.slice(expr).contains("//")
        {
            let last = source.range(last);
            let (start, end) = (
                &source.text[last.start..found.call.start],
                &source.text[found.call.end..last.end],
            );
            found.text = [start, &found.text, end].concat();
            found.call = source.range(expr);
            found.gone = None;
        }
    }

    fn visit_block(&mut self, block: &'a Block) {
        self.sums(block);
        visit::visit_block(self, block);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        match self.norm(call) {
            Some(found) => self.found.push(found),
            None => visit::visit_expr_method_call(self, call),
        }
    }
}
