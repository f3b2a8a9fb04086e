//! The search for products in the methods of a struct.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Block, Expr, Item, Stmt};

use super::holder::{FoundProduct, Holder, ProductPlan};
use super::product::{Meaning, Product, ProductContext, is_result};
use crate::source::{Extent, Source, is_inside};
use crate::syntax::{changed, words};

/// The products of all methods of a struct; `biases` includes added terms.
pub fn plan(holder: &Holder<'_>, biases: bool) -> Option<ProductPlan> {
    // Removing a field of a tuple struct would renumber the others.
    let biases = biases && !holder.is_tuple();
    let mut plan = ProductPlan::default();
    for facts in &holder.methods {
        let mut search = ProductSearch {
            context: ProductContext::new(*facts, &holder.tensors, biases),
            plan: ProductPlan::default(),
            stmt: 0..0,
            within: None,
        };
        search.block(facts.function.block);
        plan.gone.extend(search.plan.gone);
        plan.variables.extend(search.plan.variables);
        let products = search.plan.products.into_iter();
        plan.products.extend(products.filter(|found| !found.is_part));
    }
    let read = |(name, range): &(String, Range<usize>)| plan.is_read(holder.unit, name, range);
    let certain = !plan.products.is_empty() && !plan.variables.iter().any(read);
    certain.then_some(plan)
}

/// Whether an expression is a chain of method calls that begins at this place.
fn begins_with(source: &Source<'_>, expr: &Expr, place: &Range<usize>) -> bool {
    if source.range(expr) == *place {
        return true;
    }
    match expr {
        Expr::Try(inner) => begins_with(source, &inner.expr, place),
        Expr::Paren(inner) => begins_with(source, &inner.expr, place),
        Expr::MethodCall(call) => begins_with(source, &call.receiver, place),
        _ => false,
    }
}

/// The search for products in a function.
struct ProductSearch<'e> {
    context: ProductContext<'e>,
    plan: ProductPlan,
    /// The statement that is searched.
    stmt: Range<usize>,
    /// The range to search in: the input of a product.
    within: Option<Range<usize>>,
}

impl ProductSearch<'_> {
    fn range(&self, node: &impl Extent) -> Range<usize> {
        self.context.facts.range(node)
    }

    fn block(&mut self, block: &Block) {
        let outer = self.context.variables.clone();
        let whole = self.range(block);
        for stmt in &block.stmts {
            self.stmt(stmt, &whole);
        }
        self.context.variables = outer;
    }

    fn stmt(&mut self, stmt: &Stmt, block: &Range<usize>) {
        let range = self.range(stmt);
        if let Some((name, product)) = self.context.added(stmt) {
            self.plan.gone.push(range);
            return self.extend(&name, product);
        }
        let values = match stmt {
            Stmt::Local(local) => self.context.bound(local).unwrap_or_default(),
            _ => Vec::new(),
        };
        let rest = range.end..block.end;
        if values.iter().any(|(_, value)| is_weight(value)) {
            self.plan.gone.push(range);
            self.leave_out(&values, &rest);
            return self.context.variables.extend(values);
        }
        let first = self.plan.products.len();
        self.stmt = range.clone();
        visit::visit_stmt(self, stmt);
        self.rebound(stmt);
        for place in first..self.plan.products.len() {
            self.leave_out_part(place, &values, &range, &rest);
        }
        for (name, value) in values {
            self.bind(name, value, &range);
        }
    }

    /// Removes the variable of a product that is a part of another product.
    fn leave_out_part(
        &mut self,
        place: usize,
        values: &[(String, Meaning)],
        stmt: &Range<usize>,
        rest: &Range<usize>,
    ) {
        let Some(part) = self.plan.products[place].product.before else { return };
        let Some((name, binding)) = self.plan.products[part].bound.clone() else { return };
        let between = binding.end..stmt.start.max(binding.end);
        self.plan.variables.push((name.clone(), between));
        if !values.iter().any(|(bound, _)| *bound == name) {
            self.plan.variables.push((name, rest.clone()));
        }
    }

    /// Binds a variable that holds a product from here on.
    fn bind(&mut self, name: String, value: Meaning, stmt: &Range<usize>) {
        let Meaning::Product(product) = value else { return };
        // The outermost product of a statement comes first.
        let in_stmt = |found: &FoundProduct| is_inside(&found.range, stmt);
        let Some(last) = self.plan.products.iter().position(in_stmt) else { return };
        self.plan.products[last].bound = Some((name.clone(), stmt.clone()));
        let product = Product { before: Some(last), ..product };
        self.context.variables.insert(name, Meaning::Product(product));
    }

    /// Adds a bias from a later statement to a product.
    fn extend(&mut self, name: &str, product: Product) {
        if let Some(place) = product.before {
            let found = &mut self.plan.products[place];
            found.product.bias.clone_from(&product.bias);
            let stmt = found.bound.as_ref().map(|(_, stmt)| stmt.clone());
            let constant = stmt.filter(|_| self.context.facts.assignments(name) == 1);
            let mutable = constant.and_then(|stmt| self.mutable(name, stmt));
            self.plan.gone.extend(mutable);
        }
        let variables = &mut self.context.variables;
        variables.insert(name.to_owned(), Meaning::Product(product));
    }

    /// The range of a declaration's `mut`.
    fn mutable(&self, name: &str, stmt: Range<usize>) -> Option<Range<usize>> {
        let text = &self.context.facts.unit.source.text[stmt.clone()];
        let at = stmt.start + text.find(&format!("mut {name}"))?;
        Some(at..at + "mut ".len())
    }

    /// Forgets the values that a statement changes.
    fn rebound(&mut self, stmt: &Stmt) {
        let names = changed(stmt);
        let is_read = |text: &str| words(text).any(|word| names.contains(word));
        self.context.variables.retain(|name, value| {
            let input = match value {
                Meaning::Input { text, .. } => is_read(text),
                Meaning::Product(product) => is_read(&product.input),
                Meaning::Weight(weight) => weight.index.as_deref().is_some_and(is_read),
                Meaning::One(_, index) => is_read(index),
                Meaning::Stack(_) | Meaning::Bias(_) => false,
            };
            !input && !names.contains(name)
        });
    }

    /// Removes variables that only removed statements read.
    fn leave_out(&mut self, values: &[(String, Meaning)], rest: &Range<usize>) {
        for (name, value) in values {
            let same = matches!(value, Meaning::Input { text, .. }
                if text.trim_start_matches('&') == name);
            if !same {
                self.plan.variables.push((name.clone(), rest.clone()));
            }
        }
    }

    /// Records a product, unless it is only the variable that holds one.
    fn found(&mut self, expr: &Expr) -> bool {
        let range = self.range(expr);
        let within = self.within.as_ref();
        if within.is_some_and(|within| !is_inside(&range, within)) {
            return false;
        }
        let Some(Meaning::Product(product)) = self.context.eval(expr) else { return false };
        if product.flat {
            return false;
        }
        if let Some(place) = product.before {
            let before = &mut self.plan.products[place];
            if before.product.bias == product.bias {
                return false;
            }
            before.is_part = true;
            let stmt = before.bound.as_ref().map(|(_, stmt)| stmt.clone());
            self.plan.gone.extend(stmt);
            // The comments about the bias.
            let source = self.context.facts.unit.source;
            let whole = source.whole_lines(self.stmt.clone());
            let comments = source.with_comments(self.stmt.clone()).start..whole.start;
            let comments = Some(comments).filter(|range| !range.is_empty());
            self.plan.gone.extend(comments);
        }
        let source = self.context.facts.unit.source;
        let place = product.place.0.clone();
        let is_name = source.text[place.clone()].chars().all(|c| c.is_alphanumeric() || c == '_');
        let direct = product.before.is_none() && !is_name && begins_with(source, expr, &place);
        let (range, is_result) = (self.range(expr), is_result(expr));
        self.plan.products.push(FoundProduct {
            range,
            input: direct.then_some(place),
            product,
            is_result,
            bound: None,
            is_part: false,
        });
        true
    }
}

fn is_weight(value: &Meaning) -> bool {
    matches!(value, Meaning::Weight(_) | Meaning::One(..))
}

impl<'a> Visit<'a> for ProductSearch<'_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        let borrowed = matches!(expr, Expr::Reference(_) | Expr::Paren(_));
        if borrowed || !self.found(expr) {
            return visit::visit_expr(self, expr);
        }
        let input = self.plan.products.last().and_then(|found| found.input.clone());
        if input.is_some() {
            let outer = std::mem::replace(&mut self.within, input);
            visit::visit_expr(self, expr);
            self.within = outer;
        }
    }

    fn visit_block(&mut self, block: &'a Block) {
        self.block(block);
    }

    fn visit_expr_closure(&mut self, closure: &'a syn::ExprClosure) {
        // The return type of a closure is not written.
        let outer = std::mem::replace(&mut self.context.is_candle, false);
        visit::visit_expr_closure(self, closure);
        self.context.is_candle = outer;
    }

    fn visit_item(&mut self, _: &'a Item) {}
}
