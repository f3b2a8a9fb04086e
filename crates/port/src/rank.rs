//! The rank of a tensor, as far as a function's text tells it.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Expr, Pat};

use super::facts::{self, Facts};
use super::source::Source;
use super::syntax::{binds, called, ident, is, strip, tail};

impl Facts<'_> {
    /// The rank of an expression's tensor.
    pub fn rank(&self, expr: &Expr, depth: usize) -> Option<usize> {
        let at = self.unit.source.start(expr);
        let depth = depth.checked_sub(1)?;
        match strip(expr) {
            Expr::Path(_) => self.rank_of(&ident(expr)?, at, depth),
            Expr::Binary(binary) => self.rank(&binary.left, depth),
            Expr::Block(block) => self.rank(tail(&block.block)?, depth),
            Expr::If(choice) => self.rank(tail(&choice.then_branch)?, depth),
            Expr::Tuple(tuple) => tuple.elems.iter().find_map(|elem| self.rank(elem, depth)),
            Expr::Match(choice) => choice
                .arms
                .iter()
                .find_map(|arm| self.rank(&arm.body, depth)),
            Expr::Call(call) => {
                let last = called(call)?.segments.last()?;
                match last.ident.to_string().as_str() {
                    "repeat_kv" | "rope" | "rope_i" => Some(4),
                    "cat" => match strip(call.args.first()?) {
                        Expr::Array(array) => array.elems.iter().find_map(|e| self.rank(e, depth)),
                        _ => None,
                    },
                    _ => None,
                }
            }
            Expr::MethodCall(call) => self.rank_of_call(call, depth),
            // Of what `chunk` returns.
            Expr::Index(index) => self.rank(&index.expr, depth),
            _ => None,
        }
    }

    fn rank_of_call(&self, call: &syn::ExprMethodCall, depth: usize) -> Option<usize> {
        let first = call.args.first();
        match call.method.to_string().as_str() {
            "reshape" | "permute" | "broadcast_as" => self.dims(first?, depth),
            "chunk" | "contiguous" | "to_dtype" | "narrow" | "transpose" | "t" | "clone"
            | "affine" | "to_device" | "detach" => {
                let known = self.rank(&call.receiver, depth);
                let text = call.args.iter().map(|arg| self.unit.source.slice(arg));
                known.or_else(|| text.into_iter().any(|axis| axis == "3").then_some(4))
            }
            "split" if call.args.len() == 2 => self.rank(&call.receiver, depth),
            "flatten_to" if self.unit.source.slice(first?) == "1" => {
                self.rank(&call.receiver, depth)?.checked_sub(1)
            }
            "i" | "get" => {
                let one = matches!(first?, Expr::Lit(_) | Expr::Path(_));
                let rank = self.rank(&call.receiver, depth)?;
                match first? {
                    Expr::Tuple(tuple) => {
                        let fixed = |elem: &&Expr| matches!(elem, Expr::Lit(_) | Expr::Path(_));
                        rank.checked_sub(tuple.elems.iter().filter(fixed).count())
                    }
                    _ => rank.checked_sub(usize::from(one)),
                }
            }
            "unsqueeze" => Some(self.rank(&call.receiver, depth)? + 1),
            "squeeze" => self.rank(&call.receiver, depth)?.checked_sub(1),
            "repeat_kv" => Some(4),
            "forward" | "apply" => self
                .rank(call.args.first()?, depth)
                .filter(|rank| *rank == 4),
            name => {
                // A helper of the same file, or a rotation of its argument.
                let helper = self.helper(name);
                let known = helper.and_then(|facts| {
                    let last = tail(facts.function.block)?;
                    match strip(last) {
                        Expr::Call(call) => facts.rank(call.args.first()?, depth),
                        _ => facts.rank(last, depth),
                    }
                });
                known.or_else(|| {
                    let rotates = name.contains("rotary") || name.contains("rope");
                    rotates.then(|| call.args.iter().find_map(|arg| self.rank(arg, depth)))?
                })
            }
        }
    }

    fn helper(&self, name: &str) -> Option<Self> {
        if ["forward", "load", "new"].contains(&name) {
            return None;
        }
        let methods = facts::of(self.unit).filter(|one| one.function.of.is_some());
        let of_name = methods.filter(|one| one.function.signature.ident == name);
        of_name.last()
    }

    fn rank_of(&self, name: &str, at: usize, depth: usize) -> Option<usize> {
        let bindings = Bindings::of(name, self.unit.source, self.function.block);
        let mut before = at;
        loop {
            let last = bindings.last(at, before);
            if bindings.has_four(last, at) {
                return Some(4);
            }
            let last = last?;
            if let Some(rank) = last.value.and_then(|value| self.rank(value, depth)) {
                return Some(rank);
            }
            // A value assigned in a branch has the rank of the value that it replaces.
            if !last.is_assigned || last.scope.contains(&at) {
                return None;
            }
            before = last.at - 1;
        }
    }

    /// How many dimensions a shape has.
    fn dims(&self, shape: &Expr, depth: usize) -> Option<usize> {
        let at = self.unit.source.start(shape);
        match strip(shape) {
            Expr::Tuple(tuple) => Some(tuple.elems.len()),
            Expr::Array(array) => Some(array.elems.len()),
            Expr::Macro(call) => {
                let tokens = call.mac.tokens.to_string();
                let items = tokens.split(',').filter(|item| !item.trim().is_empty());
                Some(items.count())
            }
            Expr::MethodCall(call) if ["as_slice", "clone"].iter().any(|m| call.method == m) => {
                self.dims(&call.receiver, depth)
            }
            Expr::Path(_) => {
                let name = ident(shape)?;
                let definitions = self.definitions(&name, at);
                let made = definitions.first()?;
                // A shape whose last dimension is cut in two: `[batch, seq, hidden]` becomes four.
                let text = self.unit.source.slice(self.function.block);
                let pops = text.matches(&format!("{name}.pop()")).count();
                let pushes = text.matches(&format!("{name}.push(")).count();
                if pushes == 2 && pops == 1 && self.unit.source.slice(*made).contains(".dims()") {
                    return Some(4);
                }
                self.dims(made, depth.checked_sub(1)?)
            }
            _ => None,
        }
    }
}

/// Where a function gives a name to a value.
struct Binding<'f> {
    /// From here on.
    at: usize,
    /// In these bytes.
    scope: Range<usize>,
    /// The text that replaces it, if it is one.
    value: Option<&'f Expr>,
    is_assigned: bool,
}

/// All of a name, and the calls of `dims4` on it.
struct Bindings<'f, 's, 't> {
    name: &'s str,
    source: &'s Source<'t>,
    scopes: Vec<Range<usize>>,
    found: Vec<Binding<'f>>,
    /// Where they are, and the innermost bytes that run with them.
    four: Vec<(usize, Range<usize>)>,
}

impl<'f, 's, 't> Bindings<'f, 's, 't> {
    fn of(name: &'s str, source: &'s Source<'t>, block: &'f syn::Block) -> Self {
        let mut bindings = Self {
            name,
            source,
            scopes: vec![source.range(block)],
            found: Vec::new(),
            four: Vec::new(),
        };
        bindings.visit_block(block);
        bindings
    }

    /// The last one before a byte that is in scope at another; `None` for a parameter.
    fn last(&self, at: usize, before: usize) -> Option<&Binding<'f>> {
        let counts =
            |one: &&Binding<'_>| one.at <= before && (one.is_assigned || one.scope.contains(&at));
        self.found.iter().filter(counts).max_by_key(|one| one.at)
    }

    /// Whether a value of four dimensions is asked for in whatever runs to a byte.
    fn has_four(&self, value: Option<&Binding<'_>>, at: usize) -> bool {
        let place = |one: Option<&Binding<'_>>| one.map(|one| one.at);
        let mut four = self.four.iter();
        four.any(|(asked, scope)| {
            scope.contains(&at) && place(self.last(*asked, *asked)) == place(value)
        })
    }

    fn bind(&mut self, pat: &Pat, at: usize, value: Option<&'f Expr>) {
        if binds(pat, self.name) {
            let scope = self.scope();
            self.found.push(Binding {
                at,
                scope,
                value,
                is_assigned: false,
            });
        }
    }

    fn scope(&self) -> Range<usize> {
        self.scopes.last().cloned().unwrap_or_default()
    }

    /// In a scope where patterns bind names from a byte on.
    fn within<'p>(
        &mut self,
        scope: Range<usize>,
        (pats, at): (impl IntoIterator<Item = &'p Pat>, usize),
        visit: impl FnOnce(&mut Self),
    ) {
        self.scopes.push(scope);
        for pat in pats {
            self.bind(pat, at, None);
        }
        visit(self);
        self.scopes.pop();
    }
}

impl<'f> Visit<'f> for Bindings<'f, '_, '_> {
    fn visit_block(&mut self, block: &'f syn::Block) {
        let scope = self.source.range(block);
        self.within(scope, ([], 0), |inner| visit::visit_block(inner, block));
    }

    fn visit_arm(&mut self, arm: &'f syn::Arm) {
        let scope = self.source.range(arm);
        let at = self.source.range(&arm.pat).end;
        self.within(scope, ([&arm.pat], at), |inner| {
            visit::visit_arm(inner, arm)
        });
    }

    fn visit_expr_closure(&mut self, closure: &'f syn::ExprClosure) {
        let scope = self.source.range(closure);
        let at = self.source.start(&*closure.body);
        self.within(scope, (&closure.inputs, at), |inner| {
            visit::visit_expr_closure(inner, closure);
        });
    }

    fn visit_expr_for_loop(&mut self, each: &'f syn::ExprForLoop) {
        let scope = self.source.range(each);
        let at = self.source.start(&each.body);
        self.within(scope, ([&*each.pat], at), |inner| {
            visit::visit_expr_for_loop(inner, each);
        });
    }

    fn visit_expr_while(&mut self, each: &'f syn::ExprWhile) {
        let scope = self.source.range(each);
        self.within(scope, ([], 0), |inner| visit::visit_expr_while(inner, each));
    }

    fn visit_expr_if(&mut self, choice: &'f syn::ExprIf) {
        let condition = self.source.start(&*choice.cond);
        let scope = condition..self.source.range(&choice.then_branch).end;
        self.within(scope, ([], 0), |inner| {
            inner.visit_expr(&choice.cond);
            inner.visit_block(&choice.then_branch);
        });
        if let Some((_, other)) = &choice.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_let(&mut self, bound: &'f syn::ExprLet) {
        visit::visit_expr_let(self, bound);
        let at = self.source.range(bound).end;
        self.bind(&bound.pat, at, None);
    }

    fn visit_local(&mut self, local: &'f syn::Local) {
        visit::visit_local(self, local);
        let at = self.source.range(local).end;
        let value = local.init.as_ref().map(|init| &*init.expr);
        self.bind(&local.pat, at, value);
    }

    fn visit_expr_assign(&mut self, assign: &'f syn::ExprAssign) {
        visit::visit_expr_assign(self, assign);
        if is(&assign.left, self.name) {
            let (at, scope) = (self.source.range(assign).end, self.scope());
            self.found.push(Binding {
                at,
                scope,
                value: Some(&assign.right),
                is_assigned: true,
            });
        }
    }

    fn visit_expr_method_call(&mut self, call: &'f syn::ExprMethodCall) {
        if is(&call.receiver, self.name) && call.method == "dims4" {
            let at = self.source.start(call);
            let scope = self.scope();
            self.four.push((at, scope));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_item(&mut self, _: &'f syn::Item) {}
}
