//! Rewrites norms that are written out as `ops::layer_norm` and `ops::rms_norm`.

mod rows;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use syn::{Block, Expr, Pat, Stmt};

use crate::attention::fused::joined;
use crate::draft::Draft;
use crate::facts::{self, Facts};
use crate::functions::blocks;
use crate::layers::product::is_result;
use crate::names::Modules;
use crate::source::Source;
use crate::syntax::{assigned, assigns, changed, condition, exactly, mentions, untyped, words};
use crate::table::Home;
use crate::unit::Unit;
use crate::walk::descend_straight;
use rows::{Known, MAX_PARTS, Norm, RowContext, RowValue, Vectors};

/// Rewrites the norms that are certain.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, modules: &Modules) {
    let by_hand = ["_keepdim(", "broadcast_mul("];
    let vectors = RefCell::default();
    for facts in facts::all(unit) {
        let text = unit.source.slice(facts.function.block);
        if !by_hand.iter().all(|part| text.contains(part)) {
            continue;
        }
        for block in blocks(facts.function.block) {
            // A sum without a fused function stays where it is added.
            for sums in [true, false] {
                let norms = NormSearch::new(facts, &vectors, block, sums);
                if norms.write(draft, modules.name(Home::Ops)) {
                    break;
                }
            }
        }
    }
}

/// A norm in a statement.
struct FoundNorm<'a> {
    stmt: usize,
    expr: &'a Expr,
    norm: Norm,
    made_by: BTreeSet<usize>,
}

/// The norms of a block.
struct NormSearch<'a> {
    facts: Facts<'a>,
    block: &'a Block,
    context: RowContext<'a>,
    /// The values of the statements that bind a value.
    values: BTreeMap<usize, RowValue>,
    found: Vec<FoundNorm<'a>>,
}

impl<'a> NormSearch<'a> {
    fn new(facts: Facts<'a>, vectors: &'a RefCell<Vectors>, block: &'a Block, sums: bool) -> Self {
        let mut search = Self {
            facts,
            block,
            context: RowContext { facts, variables: BTreeMap::new(), sums, vectors },
            values: BTreeMap::new(),
            found: Vec::new(),
        };
        let mut at = 0;
        while at < block.stmts.len() {
            at += search.stmt(at);
        }
        search
    }

    /// Reads a statement, or two statements that form a sum; returns their number.
    fn stmt(&mut self, at: usize) -> usize {
        let stmt = &self.block.stmts[at];
        if let Some((name, value)) = self.sum(at) {
            let made_by = BTreeSet::from([at, at + 1]);
            self.values.insert(at, value.clone());
            self.context.variables.insert(name, Known { value, made_by });
            return 2;
        }
        // Nested blocks are searched separately.
        descend_straight(stmt, &mut |expr| {
            let inner = matches!(expr, Expr::Path(_) | Expr::Paren(_) | Expr::Reference(_));
            match self.context.eval(expr).filter(|_| !inner) {
                Some(Known { value: RowValue::Tensor(norm), made_by }) if norm.is_complete() => {
                    self.found.push(FoundNorm { stmt: at, expr, norm, made_by });
                    false
                }
                _ => true,
            }
        });
        let bound = assigned(stmt).filter(|_| is_constant(stmt));
        let bound = bound.and_then(|(name, expr)| Some((name, self.context.eval(expr)?)));
        let bound = bound.filter(|(_, known)| known.made_by.len() < MAX_PARTS);
        let Some((name, mut known)) = bound else {
            for name in changed(stmt) {
                self.context.variables.remove(&name);
            }
            return 1;
        };
        known.made_by.insert(at);
        self.values.insert(at, known.value.clone());
        self.context.variables.insert(name, known);
        1
    }

    /// The sum in `let mut rows = xs.clone(); if let Some(term) = option { rows = rows.add(term)?;
    /// }`.
    fn sum(&self, at: usize) -> Option<(String, RowValue)> {
        let [first, Stmt::Expr(Expr::If(choice), _), ..] = &self.block.stmts[at..] else {
            return None;
        };
        let (name, init) = assigned(first)?;
        let bound = condition(choice)?;
        let [add] = exactly(&choice.then_branch.stmts)?;
        let (_, sum) = assigned(add).filter(|(sum, _)| *sum == name)?;
        let value = self.context.sum(&bound.expr, &bound.pat, (&name, sum), init)?;
        choice.else_branch.is_none().then_some((name, value))
    }

    /// Writes the norms that are certain, the last first; returns whether there was one.
    fn write(&self, draft: &mut Draft, ops: &str) -> bool {
        let source = self.facts.unit.source;
        let mut written = false;
        for found in self.found.iter().rev() {
            let range = source.range(found.expr);
            if draft.edits.is_rewritten(range.start) || self.facts.unit.is_left_out(range.start) {
                continue;
            }
            let Some(gone) = self.gone(found) else { continue };
            let ranges = gone.iter().map(|at| source.range(&self.block.stmts[*at]));
            let starts = ranges.clone().map(|range| range.start);
            if starts.chain([range.start]).any(|at| source.is_kept(at)) {
                continue;
            }
            let tried = if is_result(found.expr) { "" } else { "?" };
            let (start, call) = (source.line_start(range.start), self.call(&found.norm, ops));
            draft.edits.insert(start, comments(source, &range));
            draft.edits.rewrite(range, call + tried);
            let at = source.start(&self.block.stmts[found.stmt]);
            let removed = ranges.map(|range| (range, None)).collect();
            for (range, _) in joined(source, removed, at) {
                draft.edits.rewrite(source.lines_of(range), "");
            }
            draft.need(&self.facts.function.module, ops, Home::Ops);
            written = true;
        }
        written
    }

    /// The statements that a norm makes unnecessary, if nothing else reads their tensors and the
    /// norm's inputs are the same at its place.
    fn gone(&self, found: &FoundNorm<'_>) -> Option<BTreeSet<usize>> {
        let mut gone = found.made_by.clone();
        loop {
            let read = gone.iter().find(|at| self.is_read(**at, found, &gone));
            let Some(at) = read.copied() else { break };
            if matches!(self.values.get(&at), Some(RowValue::Tensor(_))) {
                return None;
            }
            gone.remove(&at);
        }
        let text = self.call(&found.norm, "");
        if found.norm.is_hidden() {
            return None;
        }
        let reads: BTreeSet<_> = words(&text).map(str::to_owned).collect();
        let first = found.made_by.first().copied().unwrap_or(found.stmt);
        let mut stays = (first..found.stmt).filter(|at| !gone.contains(at));
        let same = |at: usize| changed(&self.block.stmts[at]).is_disjoint(&reads);
        stays.all(same).then_some(gone)
    }

    /// The call of the fused function.
    fn call(&self, norm: &Norm, ops: &str) -> String {
        let Norm { input, weight, bias, eps, .. } = norm;
        let is_reference = self.facts.is_reference_at(&input.name, input.place.0.start);
        let and = if is_reference { "" } else { "&" };
        let rows = format!("{and}{}", input.name);
        if !norm.centered {
            return format!("{ops}::rms_norm({rows}, {weight}, {eps})");
        }
        let bias = bias.as_deref().unwrap_or("None");
        let plain = format!("{ops}::layer_norm({rows}, {weight}, {bias}, {eps})");
        let Some(residual) = &input.residual else { return plain };
        let (option, pattern, term) = (&residual.option, &residual.pattern, &residual.term);
        let sum = format!("{ops}::add_layer_norm({rows}, {term}, {weight}, {bias}, {eps})");
        format!("match {option} {{ {pattern} => {sum}, None => {plain} }}")
    }

    /// Whether a remaining statement reads the variable of a statement.
    fn is_read(&self, at: usize, found: &FoundNorm<'_>, gone: &BTreeSet<usize>) -> bool {
        let source = self.facts.unit.source;
        let Some((name, _)) = assigned(&self.block.stmts[at]) else { return false };
        for (later, stmt) in self.block.stmts.iter().enumerate().skip(at + 1) {
            let binds = usize::from(assigns(stmt, &name));
            let within =
                if later == found.stmt { mentions(source.slice(found.expr), &name) } else { 0 };
            let stays = !gone.contains(&later);
            if stays && mentions(source.slice(stmt), &name) > within + binds {
                return true;
            }
            if binds > 0 {
                return false;
            }
        }
        false
    }
}

/// Whether a statement binds a variable that is never changed.
fn is_constant(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Local(local) if matches!(untyped(&local.pat), Pat::Ident(pat)
        if pat.mutability.is_none() && pat.by_ref.is_none()))
}

/// The comments in a rewritten range, each on a line.
fn comments(source: &Source<'_>, range: &Range<usize>) -> String {
    let indent = source.indent(range.start);
    let lines = source.text[range.clone()].lines().map(str::trim);
    let comments = lines.filter(|line| line.starts_with("//"));
    comments.map(|line| format!("{indent}{line}{}", source.newline)).collect()
}
