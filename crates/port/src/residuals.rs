//! A sum that an RMS norm reads, and others too, becomes one pass: `RmsNorm::forward_add`.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Block, Expr, Pat, Stmt};

use super::draft::Draft;
use super::facts::Facts;
use super::functions::{self, Function, blocks};
use super::sums::terms;
use super::syntax::{applied, assigned, assigns, get, is, mentions, own_field};
use super::unit::Unit;

/// Rewrites `let xs = (a + b)?;` before a statement with `self.norm.forward(&xs)?`.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for function in functions::of(unit.file) {
        let facts = Facts::of(unit, &function);
        let text = unit.source.slice(function.block);
        let mut names = ["normal", "normed", "normalized"].iter();
        let Some(normal) = names.find(|name| mentions(text, name) == 0) else {
            continue;
        };
        for block in blocks(function.block) {
            // A later sum may be around the norm of an earlier one: it has its turn after it.
            let mut from = 0;
            while let Some(found) = (from..block.stmts.len())
                .find_map(|at| Found::at(&facts, &function, block, at, normal))
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
    fn at(
        facts: &Facts<'_, '_>,
        function: &Function<'_>,
        block: &Block,
        at: usize,
        normal: &str,
    ) -> Option<Self> {
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
        let mut find = Find {
            facts,
            function,
            name: &name,
            found: None,
        };
        find.visit_stmt(reads);
        let (call, field) = find.found?;
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

/// The first norm of a variable that is surely computed: `self.norm.forward(&name)?`.
struct Find<'a, 'f, 'u> {
    facts: &'a Facts<'f, 'u>,
    function: &'a Function<'f>,
    name: &'a str,
    found: Option<(Range<usize>, String)>,
}

impl Find<'_, '_, '_> {
    fn field(&self, call: &syn::ExprMethodCall) -> Option<String> {
        let (layer, input) = applied(call)?;
        let is_plain = matches!(input, Expr::Path(_) | Expr::Reference(_));
        let is_name = is_plain && is(input, self.name);
        let field = own_field(layer).filter(|_| is_name)?;
        let (unit, of) = (self.facts.unit, self.function.of.as_ref()?);
        unit.ours(&self.function.module, of, &field, "RmsNorm")?;
        Some(field)
    }
}

impl<'a> Visit<'a> for Find<'_, '_, '_> {
    fn visit_expr_try(&mut self, tried: &'a syn::ExprTry) {
        let call = match &*tried.expr {
            Expr::MethodCall(call) if self.found.is_none() => self.field(call),
            _ => None,
        };
        match call {
            Some(field) => self.found = Some((self.facts.unit.source.range(tried), field)),
            None => visit::visit_expr_try(self, tried),
        }
    }

    /// Code in these may run several times, or not at all.
    fn visit_block(&mut self, _: &'a Block) {}
    fn visit_expr_closure(&mut self, _: &'a syn::ExprClosure) {}
    fn visit_arm(&mut self, _: &'a syn::Arm) {}
    fn visit_item(&mut self, _: &'a syn::Item) {}
    fn visit_macro(&mut self, _: &'a syn::Macro) {}
}
