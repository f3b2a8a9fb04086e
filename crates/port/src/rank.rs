//! The rank of a tensor, as far as a function's text states it.

use syn::Expr;

use super::facts::{self, Facts};
use super::syntax::{called, ident, strip, tail};

impl Facts<'_> {
    /// The rank of an expression's tensor.
    pub fn rank(&self, expr: &Expr, depth: usize) -> Option<usize> {
        let depth = depth.checked_sub(1)?;
        match strip(expr) {
            Expr::Path(_) => self.rank_of(&ident(expr)?, self.start(expr), depth),
            Expr::Binary(binary) => self.rank(&binary.left, depth),
            Expr::Block(block) => self.rank(tail(&block.block)?, depth),
            Expr::If(choice) => self.rank(tail(&choice.then_branch)?, depth),
            Expr::Tuple(tuple) => tuple.elems.iter().find_map(|elem| self.rank(elem, depth)),
            Expr::Match(choice) => choice.arms.iter().find_map(|arm| self.rank(&arm.body, depth)),
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
            // An element of the result of `chunk`.
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
                let text = call.args.iter().map(|arg| self.text(arg));
                known.or_else(|| text.into_iter().any(|axis| axis == "3").then_some(4))
            }
            "split" if call.args.len() == 2 => self.rank(&call.receiver, depth),
            "flatten_to" if self.text(first?) == "1" => {
                self.rank(&call.receiver, depth)?.checked_sub(1)
            }
            "i" | "get" => {
                let is_fixed = |index: &&Expr| matches!(index, Expr::Lit(_) | Expr::Path(_));
                let fixed = match first? {
                    Expr::Tuple(tuple) => tuple.elems.iter().filter(is_fixed).count(),
                    index => usize::from(is_fixed(&index)),
                };
                self.rank(&call.receiver, depth)?.checked_sub(fixed)
            }
            "unsqueeze" => Some(self.rank(&call.receiver, depth)? + 1),
            "squeeze" => self.rank(&call.receiver, depth)?.checked_sub(1),
            "repeat_kv" => Some(4),
            "forward" | "apply" => self.rank(call.args.first()?, depth).filter(|rank| *rank == 4),
            name => {
                // A helper of the same file, or a rotation of its argument.
                let known = self.helper(name).and_then(|facts| {
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
        facts::of_name(self.unit, name).filter(|one| one.function.owner.is_some()).last()
    }

    fn rank_of(&self, name: &str, at: usize, depth: usize) -> Option<usize> {
        let bindings = self.bindings(name)?;
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

    /// The number of dimensions of a shape.
    fn dims(&self, shape: &Expr, depth: usize) -> Option<usize> {
        match strip(shape) {
            Expr::Tuple(tuple) => Some(tuple.elems.len()),
            Expr::Array(array) => Some(array.elems.len()),
            Expr::Macro(call) => {
                let items = call.mac.tokens.to_string();
                Some(items.split(',').filter(|item| !item.trim().is_empty()).count())
            }
            Expr::MethodCall(call) if ["as_slice", "clone"].iter().any(|m| call.method == m) => {
                self.dims(&call.receiver, depth)
            }
            Expr::Path(_) => {
                let name = ident(shape)?;
                let definition = self.definition(shape)?;
                // A shape whose last dimension is split: `[batch, seq, hidden]` becomes four
                // dimensions.
                let text = self.text(self.function.block);
                let pops = text.matches(&format!("{name}.pop()")).count();
                let pushes = text.matches(&format!("{name}.push(")).count();
                if pushes == 2 && pops == 1 && self.text(definition).contains(".dims()") {
                    return Some(4);
                }
                self.dims(definition, depth.checked_sub(1)?)
            }
            _ => None,
        }
    }
}
