//! Products of one input that follow one another become one: `Linear::forward_each`.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Block, Expr, Pat, Stmt};

use super::draft::Draft;
use super::functions::{self, Function};
use super::scopes::Module;
use super::syntax::{applied, exactly, get, ident, own_field};
use super::unit::Unit;
use super::walk::{Node, nodes};

/// Rewrites runs of `let` statements that each multiply the same variable by a `Linear` of ours.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for Function {
        module, of, block, ..
    } in functions::of(unit.file)
    {
        let Some(of) = of else { continue };
        let mut blocks = Blocks {
            unit,
            draft,
            module: &module,
            of: &of,
        };
        blocks.visit_block(block);
    }
}

struct Blocks<'a, 'u, 'd> {
    unit: &'a Unit<'u>,
    draft: &'d mut Draft,
    module: &'a Module,
    of: &'a str,
}

/// `let name = .. self.field.forward(input)? ..;`
struct Projected<'a> {
    stmt: Range<usize>,
    name: String,
    /// The name with its `mut`.
    pattern: String,
    init: &'a Expr,
    call: Range<usize>,
    field: String,
    /// The type of the field, as it is written there.
    ty: String,
    input: String,
    /// An expression of type `&Tensor`.
    borrowed: String,
}

impl Projected<'_> {
    /// Whether the statement does nothing more.
    fn is_whole(&self, unit: &Unit<'_>) -> bool {
        unit.source.range(self.init) == self.call
    }
}

impl Blocks<'_, '_, '_> {
    fn runs(&mut self, block: &Block) {
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

    /// Whether a statement can be computed together with those before it.
    fn continues(&self, run: &[Projected<'_>], next: &Projected<'_>) -> bool {
        let Some(last) = run.last() else { return true };
        let gap = &self.unit.source.text[last.stmt.end..next.stmt.start];
        let differs = |one: &Projected<'_>| one.name != next.name && one.field != next.field;
        // A variable that the others read may have been another one of this name.
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
        let mut calls = Calls(Vec::new());
        calls.visit_expr(&init.expr);
        let [(call, layer, input)] = exactly(calls.0)?;
        let field = own_field(layer)?;
        let ty = self.unit.ours(self.module, self.of, &field, "Linear")?;
        let (name, input_name) = (pat.ident.to_string(), ident(input)?);
        let at = self.unit.source.start(stmt);
        if name == input_name || reads(&init.expr, &name) || self.unit.source.is_kept(at) {
            return None;
        }
        Some(Projected {
            stmt: self.unit.source.range(stmt),
            pattern: self.unit.source.slice(pat).to_owned(),
            name,
            init: &init.expr,
            call: self.unit.source.range(call),
            field,
            ty: ty.to_owned(),
            borrowed: self.borrowed(call, input),
            input: input_name,
        })
    }

    /// The input as an expression of type `&Tensor`, as which `forward` has it.
    fn borrowed(&self, call: &Expr, input: &Expr) -> String {
        let source = self.unit.source;
        let is_receiver = source.start(call) == source.start(input);
        match input {
            Expr::Path(_) if is_receiver && !self.unit.is_borrowed_path(input) => {
                format!("&{}", source.slice(input))
            }
            _ => source.slice(input).to_owned(),
        }
    }

    fn write(&mut self, run: &[Projected<'_>]) {
        let ([first, .., last], source) = (run, self.unit.source) else {
            return;
        };
        let list = |text: &dyn Fn(&Projected<'_>) -> String| {
            run.iter().map(text).collect::<Vec<_>>().join(", ")
        };
        let names = list(&|one| {
            let is_whole = one.is_whole(self.unit);
            if is_whole { &one.pattern } else { &one.name }.clone()
        });
        let fields = list(&|one| format!("&self.{}", one.field));
        let call = format!(
            "let [{names}] = {}::forward_each([{fields}], {})?;",
            first.ty, first.borrowed
        );
        if run.iter().all(|one| one.is_whole(self.unit)) {
            let range = first.stmt.start..last.stmt.end;
            return self.draft.edits.rewrite(range, call);
        }
        let between = format!("{}{}", source.newline(), source.indent(first.stmt.start));
        for (i, one) in run.iter().enumerate() {
            let mut text = if i == 0 { call.clone() } else { String::new() };
            let mut range = one.stmt.clone();
            if !one.is_whole(self.unit) {
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

impl<'a> Visit<'a> for Blocks<'_, '_, '_> {
    fn visit_block(&mut self, block: &'a Block) {
        self.runs(block);
        visit::visit_block(self, block);
    }
}

/// Calls `layer.forward(input)?` and `input.apply(&layer)?` in an expression that computes each of
/// its parts once.
struct Calls<'a>(Vec<(&'a Expr, &'a Expr, &'a Expr)>);

impl<'a> Visit<'a> for Calls<'a> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Try(tried) = expr
            && let Expr::MethodCall(call) = &*tried.expr
            && let Some((layer, input)) = applied(call).filter(|_| call.args.len() == 1)
            && own_field(layer).is_some()
        {
            return self.0.push((expr, layer, input));
        }
        match expr {
            Expr::MethodCall(_)
            | Expr::Call(_)
            | Expr::Try(_)
            | Expr::Reference(_)
            | Expr::Paren(_) => visit::visit_expr(self, expr),
            _ => {}
        }
    }
}

/// Whether an expression reads a variable.
fn reads(expr: &Expr, name: &str) -> bool {
    nodes(expr).any(|node| match node {
        Node::Expr(Expr::Path(path)) => path.path.is_ident(name),
        // Its tokens may hold any name.
        Node::Macro(_) => true,
        _ => false,
    })
}
