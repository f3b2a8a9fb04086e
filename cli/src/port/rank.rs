//! The rank of a tensor, as far as a function's text tells it.

use syn::visit::Visit;
use syn::{Expr, Stmt};

use super::facts::Facts;
use super::syntax::{ident, strip};

impl<'f> Facts<'f, '_> {
    /// The rank of an expression's tensor.
    pub fn rank(&self, expr: &Expr, depth: usize) -> Option<usize> {
        let at = self.unit.source.range(expr).start;
        let depth = depth.checked_sub(1)?;
        match strip(expr) {
            Expr::Path(_) => self.rank_of(&ident(expr)?, at, depth),
            Expr::Binary(binary) => self.rank(&binary.left, depth),
            Expr::Block(block) => match block.block.stmts.last()? {
                Stmt::Expr(last, None) => self.rank(last, depth),
                _ => None,
            },
            Expr::If(choice) => match choice.then_branch.stmts.last()? {
                Stmt::Expr(last, None) => self.rank(last, depth),
                _ => None,
            },
            Expr::Tuple(tuple) => tuple.elems.iter().find_map(|elem| self.rank(elem, depth)),
            Expr::Match(choice) => choice
                .arms
                .iter()
                .find_map(|arm| self.rank(&arm.body, depth)),
            Expr::Call(call) => {
                let Expr::Path(path) = &*call.func else {
                    return None;
                };
                let last = path.path.segments.last()?.ident.to_string();
                match last.as_str() {
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
                let known = helper.and_then(|(sig, block)| {
                    let facts = Facts {
                        unit: self.unit,
                        block,
                        signature: sig,
                    };
                    match block.stmts.last()? {
                        Stmt::Expr(last, None) => match strip(last) {
                            Expr::Call(call) => facts.rank(call.args.first()?, depth),
                            _ => facts.rank(last, depth),
                        },
                        _ => None,
                    }
                });
                known.or_else(|| {
                    let rotates = name.contains("rotary") || name.contains("rope");
                    rotates.then(|| call.args.iter().find_map(|arg| self.rank(arg, depth)))?
                })
            }
        }
    }

    fn helper(&self, name: &str) -> Option<(&'f syn::Signature, &'f syn::Block)> {
        struct Find<'f, 'n>(&'n str, Option<(&'f syn::Signature, &'f syn::Block)>);
        impl<'f> Visit<'f> for Find<'f, '_> {
            fn visit_impl_item_fn(&mut self, item: &'f syn::ImplItemFn) {
                if item.sig.ident == self.0 {
                    self.1 = Some((&item.sig, &item.block));
                }
            }
        }
        if ["forward", "load", "new"].contains(&name) {
            return None;
        }
        let mut find = Find(name, None);
        // The file outlives every function of it.
        find.visit_file(self.file());
        find.1
    }

    fn rank_of(&self, name: &str, at: usize, depth: usize) -> Option<usize> {
        let text = self.unit.source.slice(self.block);
        if text.contains(&format!("{name}.dims4()")) {
            return Some(4);
        }
        self.definitions(name, at)
            .into_iter()
            .find_map(|expr| self.rank(expr, depth))
    }

    /// How many dimensions a shape has.
    fn dims(&self, shape: &Expr, depth: usize) -> Option<usize> {
        let at = self.unit.source.range(shape).start;
        match strip(shape) {
            Expr::Tuple(tuple) => Some(tuple.elems.len()),
            Expr::Array(array) => Some(array.elems.len()),
            Expr::Macro(call) => Some(
                call.mac
                    .tokens
                    .to_string()
                    .split(',')
                    .filter(|item| !item.trim().is_empty())
                    .count(),
            ),
            Expr::MethodCall(call) if ["as_slice", "clone"].iter().any(|m| call.method == m) => {
                self.dims(&call.receiver, depth)
            }
            Expr::Path(_) => {
                let name = ident(shape)?;
                let definitions = self.definitions(&name, at);
                let made = definitions.first()?;
                // A shape whose last dimension is cut in two: `[batch, seq, hidden]` becomes four.
                let text = self.unit.source.slice(self.block);
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
