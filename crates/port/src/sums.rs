//! Merges a norm and the sum that it reads: into `LayerNorm::forward_add`, and, where others read
//! the sum too, into `RmsNorm::forward_add`.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Block, Expr, Pat, Stmt};

use super::draft::Draft;
use super::facts::{self, Facts};
use super::functions::blocks;
use super::syntax::{applied, assigned, assigns, get, ident, is, mentions, own_field, strip};
use super::unit::Unit;
use super::walk::descend_straight;

/// Rewrites the norms of sums.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    rewrite_layer(unit, draft);
    rewrite_rms(unit, draft);
}

/// Rewrites `self.norm.forward(&(a + b)?)` of a layer norm, and the same sum by way of a variable.
fn rewrite_layer(unit: &Unit<'_>, draft: &mut Draft) {
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
fn terms(facts: &Facts<'_>, expr: &Expr) -> Option<[String; 2]> {
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
            let Some((name, init)) = assigned(&pair[0]) else { continue };
            let Some(terms) = terms(&self.facts, init) else { continue };
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
            self.sums.iter().find(|sum| sum.name == name && sum.next.contains(&at.start))
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

/// Rewrites `let xs = (a + b)?;` before a statement with `self.norm.forward(&xs)?` of an RMS norm.
fn rewrite_rms(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        let text = unit.source.slice(facts.function.block);
        let mut names = ["normal", "normed", "normalized"].iter();
        let Some(normal) = names.find(|name| mentions(text, name) == 0) else { continue };
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
