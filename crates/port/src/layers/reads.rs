//! Reads of tensors that a layer holds after the rewrite.

use std::collections::BTreeSet;
use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Expr, ExprField};

use super::holder::{Holder, Layers, ProductPlan, Replacements};
use crate::functions::Function;
use crate::scopes::{Module, Origin};
use crate::source::is_inside;
use crate::syntax::{is, member, own_member, words};
use crate::types::key;
use crate::unit::Unit;
use crate::walk::{Node, nodes};

/// Rewrites the other reads of the tensors as reads of the layer; `None` if that is not certain.
pub fn others(holder: &Holder<'_>, plan: &ProductPlan, layers: &Layers) -> Option<Replacements> {
    let mut reads = Reads {
        holder,
        plan,
        layers,
        module: Vec::new(),
        in_impl: false,
        is_const: false,
        called: called(holder.unit, plan),
        is_called: false,
        on_gpu: false,
        changes: Vec::new(),
        certain: true,
    };
    reads.visit_file(holder.unit.file);
    reads.certain.then_some(reads.changes)
}

/// The names of functions that compute products, of functions called `forward`, and of all
/// functions that these call.
fn called(unit: &Unit<'_>, plan: &ProductPlan) -> BTreeSet<String> {
    let used = |node| match node {
        Node::Expr(Expr::MethodCall(call)) => Some(call.method.to_string()),
        Node::Expr(Expr::Path(path)) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    };
    let functions = &unit.functions;
    let computes = |function: &&Function<'_>| {
        let block = unit.source.range(function.block);
        let mut products = plan.products.iter();
        let forward = function.signature.ident.to_string().starts_with("forward");
        forward || products.any(|found| is_inside(&found.range, &block))
    };
    let name = |function: &Function<'_>| function.signature.ident.to_string();
    let mut called: BTreeSet<_> = functions.iter().filter(computes).map(name).collect();
    let mut open: Vec<_> = called.iter().cloned().collect();
    while let Some(next) = open.pop() {
        let of_name = functions.iter().filter(|one| name(one) == next);
        let calls = of_name.flat_map(|one| nodes(one.block).filter_map(used));
        let calls: BTreeSet<_> = calls.collect();
        for function in functions.iter().map(name) {
            if calls.contains(&function) && called.insert(function.clone()) {
                open.push(function);
            }
        }
    }
    called
}

/// Whether a condition or a pattern selects only GPUs.
fn is_gpu(condition: &str) -> bool {
    let condition = condition.to_lowercase();
    let gpu = |part: &str| part.contains("cuda") || part.contains("metal");
    let other = condition.contains('!') || condition.contains("cpu");
    let mut parts = condition.split('|').filter(|one| !one.trim().is_empty());
    !other && parts.all(gpu)
}

/// Whether a condition selects all CPUs.
fn is_cpu(condition: &str) -> bool {
    condition.to_lowercase().contains("cpu") && !condition.contains(['!', '&', '|'])
}

struct Reads<'r> {
    holder: &'r Holder<'r>,
    plan: &'r ProductPlan,
    layers: &'r Layers,
    module: Module,
    /// Whether the code is in an `impl` of the struct.
    in_impl: bool,
    /// Whether the code is in a `const fn`, which cannot call an accessor of a layer.
    is_const: bool,
    /// The functions that run in `forward`.
    called: BTreeSet<String>,
    /// Whether the code is in such a function.
    is_called: bool,
    /// Whether the code is in a branch that no CPU takes.
    on_gpu: bool,
    changes: Replacements,
    certain: bool,
}

impl Reads<'_> {
    /// `self.inner.weight()` for a weight, `self.inner.bias()` for an optional bias.
    fn accessor(&self, field: &str) -> Option<String> {
        if let Some(layer) = self.layers.get(field) {
            let is_plain = !layer.turned && !layer.is_list;
            return is_plain.then(|| format!("self.{}.weight()", layer.name));
        }
        let layer = self.layers.values().find(|layer| layer.bias.as_deref() == Some(field))?;
        let is_option = self.holder.tensors.options.iter().any(|option| option == field);
        is_option.then(|| format!("self.{}.bias()", layer.name))
    }

    fn goes(&self, name: &str) -> bool {
        let biases = self.layers.values().filter_map(|l| l.bias.as_deref());
        self.layers.contains_key(name) || biases.into_iter().any(|bias| bias == name)
    }

    /// Handles a read that neither takes nor changes the tensor.
    fn read(&mut self, expr: &Expr, whole: Range<usize>, end: &str) -> bool {
        let Expr::Field(_) = expr else { return false };
        let field = own_member(expr).filter(|field| self.in_impl && self.goes(field));
        let Some(field) = field else { return false };
        if self.plan.is_done(&whole) {
            return true;
        }
        // A quantized layer keeps the float weight after its first read.
        let no_cpu = self.on_gpu || self.holder.unit.is_left_out(whole.start);
        let costs = self.layers.contains_key(&field) && self.is_called && !no_cpu;
        match self.accessor(&field).filter(|_| !self.is_const && !costs) {
            Some(text) => self.changes.push((whole, text + end)),
            None => self.certain = false,
        }
        true
    }

    fn branch(&mut self, on_gpu: bool, visit: impl FnOnce(&mut Self)) {
        let outer = self.on_gpu;
        self.on_gpu |= on_gpu;
        visit(self);
        self.on_gpu = outer;
    }

    fn is_option(&self, expr: &Expr) -> bool {
        own_member(expr).is_some_and(|field| self.holder.tensors.options.contains(&field))
    }

    /// Handles a matched value, which may be an option of a reference or a reference to an option.
    fn matched(&mut self, expr: &Expr) {
        let whole = self.holder.unit.source.range(expr);
        let Expr::Reference(reference) = expr else { return self.visit_expr(expr) };
        if !self.read(&reference.expr, whole, "") {
            self.visit_expr(expr);
        }
    }
}

impl<'a> Visit<'a> for Reads<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let Holder { unit, declared, .. } = self.holder;
        let origin = unit.origin(&self.module, &item.self_ty);
        self.in_impl = origin == Some(Origin::Local(key(declared)));
        visit::visit_item_impl(self, item);
        self.in_impl = false;
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.is_const = item.sig.constness.is_some();
        self.is_called = self.called.contains(&item.sig.ident.to_string());
        visit::visit_impl_item_fn(self, item);
        (self.is_const, self.is_called) = (false, false);
    }

    fn visit_expr_if(&mut self, choice: &'a syn::ExprIf) {
        let condition = self.holder.unit.source.slice(&*choice.cond);
        self.visit_expr(&choice.cond);
        self.branch(is_gpu(condition), |branch| branch.visit_block(&choice.then_branch));
        if let Some((_, other)) = &choice.else_branch {
            self.branch(is_cpu(condition), |branch| branch.visit_expr(other));
        }
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        // The pattern, with its guard.
        let on_gpu = is_gpu(self.holder.unit.source.slice(&arm.pat));
        self.visit_pat(&arm.pat);
        self.branch(on_gpu, |branch| branch.visit_expr(&arm.body));
    }

    fn visit_expr_match(&mut self, choice: &'a syn::ExprMatch) {
        self.matched(&choice.expr);
        choice.arms.iter().for_each(|arm| self.visit_arm(arm));
    }

    fn visit_expr_let(&mut self, bound: &'a syn::ExprLet) {
        self.matched(&bound.expr);
    }

    fn visit_expr_reference(&mut self, reference: &'a syn::ExprReference) {
        let whole = self.holder.unit.source.range(reference);
        let other = reference.mutability.is_some() || self.is_option(&reference.expr);
        if other || !self.read(&reference.expr, whole, "") {
            visit::visit_expr_reference(self, reference);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let source = self.holder.unit.source;
        let is_option = self.is_option(&call.receiver);
        let name = call.method.to_string();
        let (range, end) = match (is_option, name.as_str()) {
            (true, "as_ref") => (source.range(call), ""),
            (true, "clone") => (source.range(call), ".cloned()"),
            (true, "is_some" | "is_none") | (false, _) => (source.range(&*call.receiver), ""),
            (true, _) => return visit::visit_expr_method_call(self, call),
        };
        if !self.read(&call.receiver, range, end) {
            visit::visit_expr(self, &call.receiver);
        }
        call.args.iter().for_each(|arg| self.visit_expr(arg));
    }

    fn visit_expr_field(&mut self, field: &'a ExprField) {
        let source = self.holder.unit.source;
        let other = is(&field.base, "self") && !self.in_impl;
        let goes = self.goes(&member(&field.member));
        if goes && !other && !self.plan.is_done(&source.range(field)) {
            self.certain = false;
        }
        visit::visit_expr_field(self, field);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let tokens = call.tokens.to_string();
        let read = words(&tokens).any(|word| self.goes(word));
        self.certain &= !(read && self.in_impl && tokens.contains("self"));
    }
}
