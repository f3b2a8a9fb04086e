//! Merges adjacent products of one input into `Linear::forward_each`.

use std::ops::Range;

use syn::{Block, Expr, Pat, Stmt};

use super::draft::Draft;
use super::facts::{self, Facts};
use super::functions::blocks;
use super::syntax::{applied, exactly, get, ident, own_field};
use super::unit::Unit;
use super::walk::{Node, descend, nodes};

/// Rewrites runs of `let` statements that each multiply the same variable by a `Linear` of
/// candle-dynquant.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        for block in blocks(facts.function.block) {
            ProjectionRuns { facts, draft }.find(block);
        }
    }
}

struct ProjectionRuns<'a, 'd> {
    facts: Facts<'a>,
    draft: &'d mut Draft,
}

/// The statement `let name = .. self.field.forward(input)? ..;`.
struct Projected<'a> {
    stmt: Range<usize>,
    name: String,
    /// The name with its `mut`.
    pattern: String,
    init: &'a Expr,
    call: Range<usize>,
    field: String,
    /// The type of the field as it is written.
    ty: String,
    input: String,
    /// The input as an expression of type `&Tensor`.
    borrowed: String,
}

impl Projected<'_> {
    /// Whether the statement is only the product.
    fn is_whole(&self, unit: &Unit<'_>) -> bool {
        unit.source.range(self.init) == self.call
    }
}

impl ProjectionRuns<'_, '_> {
    fn find(&mut self, block: &Block) {
        let mut run: Vec<Projected<'_>> = Vec::new();
        for stmt in &block.stmts {
            let next = self.projected(stmt);
            if !next.as_ref().is_some_and(|next| self.continues(&run, next)) {
                self.write(&std::mem::take(&mut run));
            }
            run.extend(next);
        }
        self.write(&run);
    }

    /// Whether a statement can be computed together with the statements before it.
    fn continues(&self, run: &[Projected<'_>], next: &Projected<'_>) -> bool {
        let Some(last) = run.last() else { return true };
        let gap = &self.facts.unit.source.text[last.stmt.end..next.stmt.start];
        let differs = |one: &Projected<'_>| one.name != next.name && one.field != next.field;
        // The others may read an earlier variable of this name.
        let reads = |one: &Projected<'_>| reads(one.init, &next.name);
        gap.trim().is_empty()
            && last.input == next.input
            && last.ty == next.ty
            && run.iter().all(|one| differs(one) && !reads(one))
    }

    fn projected<'a>(&self, stmt: &'a Stmt) -> Option<Projected<'a>> {
        let local = get!(stmt, Stmt::Local)?;
        let (pat, init) = (get!(&local.pat, Pat::Ident)?, local.init.as_ref()?);
        if pat.by_ref.is_some() || pat.subpat.is_some() || init.diverge.is_some() {
            return None;
        }
        let [(call, layer, input)] = exactly(calls(&init.expr))?;
        let field = own_field(layer)?;
        let ty = self.facts.ours(&field, "Linear")?;
        let (name, input_name) = (pat.ident.to_string(), ident(input)?);
        let at = self.facts.start(stmt);
        if name == input_name || reads(&init.expr, &name) || self.facts.unit.source.is_kept(at) {
            return None;
        }
        Some(Projected {
            stmt: self.facts.range(stmt),
            pattern: self.facts.text(pat).to_owned(),
            name,
            init: &init.expr,
            call: self.facts.range(call),
            field,
            ty: ty.to_owned(),
            borrowed: self.borrowed(call, input),
            input: input_name,
        })
    }

    /// The input as an expression of type `&Tensor`, which `forward` takes.
    fn borrowed(&self, call: &Expr, input: &Expr) -> String {
        let source = self.facts.unit.source;
        let is_receiver = source.start(call) == source.start(input);
        match input {
            Expr::Path(_) if is_receiver && !self.facts.unit.is_borrowed_path(input) => {
                format!("&{}", source.slice(input))
            }
            _ => source.slice(input).to_owned(),
        }
    }

    fn write(&mut self, run: &[Projected<'_>]) {
        let ([first, .., last], source) = (run, self.facts.unit.source) else { return };
        let list = |text: &dyn Fn(&Projected<'_>) -> String| {
            run.iter().map(text).collect::<Vec<_>>().join(", ")
        };
        let names = list(&|one| {
            let is_whole = one.is_whole(self.facts.unit);
            if is_whole { &one.pattern } else { &one.name }.clone()
        });
        let fields = list(&|one| format!("&self.{}", one.field));
        let call =
            format!("let [{names}] = {}::forward_each([{fields}], {})?;", first.ty, first.borrowed);
        if run.iter().all(|one| one.is_whole(self.facts.unit)) {
            let range = first.stmt.start..last.stmt.end;
            return self.draft.edits.rewrite(range, call);
        }
        let between = source.next_line(first.stmt.start);
        for (i, one) in run.iter().enumerate() {
            let mut text = if i == 0 { call.clone() } else { String::new() };
            let mut range = one.stmt.clone();
            if !one.is_whole(self.facts.unit) {
                let (before, after) = (one.stmt.start..one.call.start, one.call.end..one.stmt.end);
                let gap = if i == 0 { &between } else { "" };
                text += &[gap, &source.text[before], &one.name, &source.text[after]].concat();
            } else if i > 0 {
                range = source.lines_of(range);
            }
            self.draft.edits.rewrite(range, text);
        }
    }
}

/// The calls `layer.forward(input)?` and `input.apply(&layer)?` in an expression that computes each
/// of its parts once.
fn calls(expr: &Expr) -> Vec<(&Expr, &Expr, &Expr)> {
    let mut found = Vec::new();
    descend(expr, &mut |expr| {
        if let Expr::Try(tried) = expr
            && let Expr::MethodCall(call) = &*tried.expr
            && let Some((layer, input)) = applied(call).filter(|_| call.args.len() == 1)
            && own_field(layer).is_some()
        {
            found.push((expr, layer, input));
            return false;
        }
        matches!(
            expr,
            Expr::MethodCall(_)
                | Expr::Call(_)
                | Expr::Try(_)
                | Expr::Reference(_)
                | Expr::Paren(_)
        )
    });
    found
}

/// Whether an expression reads a variable.
fn reads(expr: &Expr, name: &str) -> bool {
    nodes(expr).any(|node| match node {
        Node::Expr(Expr::Path(path)) => path.path.is_ident(name),
        // The tokens of a macro may hold any name.
        Node::Macro(_) => true,
        _ => false,
    })
}
