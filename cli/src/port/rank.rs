//! The rank of a tensor, as far as a function's text tells it; and what else it tells of a
//! variable.

use syn::visit::{self, Visit};
use syn::{Expr, Pat, Stmt};

use super::Unit;
use super::chain::{ident, strip, words};

/// What a function and its file say.
pub struct Facts<'f, 'u> {
    pub unit: &'f Unit<'u>,
    pub block: &'f syn::Block,
    pub signature: &'f syn::Signature,
}

impl<'f> Facts<'f, '_> {
    /// The definitions of a variable before a byte, the last first.
    fn definitions(&self, name: &str, before: usize) -> Vec<&'f Expr> {
        struct Find<'f, 'n> {
            name: &'n str,
            found: Vec<&'f Expr>,
        }
        impl<'f> Visit<'f> for Find<'f, '_> {
            fn visit_local(&mut self, local: &'f syn::Local) {
                if let Some(init) = &local.init
                    && binds(&local.pat, self.name)
                {
                    self.found.push(&init.expr);
                }
                visit::visit_local(self, local);
            }
            fn visit_expr_assign(&mut self, assign: &'f syn::ExprAssign) {
                if ident(&assign.left).is_some_and(|name| name == self.name) {
                    self.found.push(&assign.right);
                }
            }
        }
        let mut find = Find {
            name,
            found: Vec::new(),
        };
        find.visit_block(self.block);
        let at = |expr: &Expr| self.unit.source.range(expr).start;
        find.found.retain(|expr| at(expr) < before);
        find.found.reverse();
        find.found
    }

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
            _ => None,
        }
    }

    fn rank_of_call(&self, call: &syn::ExprMethodCall, depth: usize) -> Option<usize> {
        let first = call.args.first();
        match call.method.to_string().as_str() {
            "reshape" | "permute" | "broadcast_as" => self.dims(first?, depth),
            "contiguous" | "to_dtype" | "narrow" | "transpose" | "t" | "clone" | "affine"
            | "to_device" | "detach" => {
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

    fn file(&self) -> &'f syn::File {
        self.unit.file
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

    /// Whether an expression is a number, not a tensor.
    pub fn is_number(&self, expr: &Expr, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else {
            return false;
        };
        match expr {
            Expr::Lit(_) => true,
            Expr::Cast(_) => true,
            Expr::Paren(inner) => self.is_number(&inner.expr, depth),
            Expr::Unary(inner) => self.is_number(&inner.expr, depth),
            Expr::Binary(binary) => {
                self.is_number(&binary.left, depth) || self.is_number(&binary.right, depth)
            }
            Expr::MethodCall(call) => ["sqrt", "powf", "powi", "recip"]
                .iter()
                .any(|m| call.method == m),
            Expr::Call(call) => {
                let text = self.unit.source.slice(&*call.func);
                text.starts_with("f64::") || text.starts_with("f32::")
            }
            Expr::Path(_) => {
                let Some(name) = ident(expr) else {
                    return false;
                };
                let at = self.unit.source.range(expr).start;
                let typed = self.signature.inputs.iter().any(|input| match input {
                    syn::FnArg::Typed(input) => {
                        binds(&input.pat, &name) && is_float(self.unit.source.slice(&input.ty))
                    }
                    syn::FnArg::Receiver(_) => false,
                });
                let definitions = self.definitions(&name, at);
                typed
                    || definitions
                        .first()
                        .is_some_and(|expr| self.is_number(expr, depth))
            }
            Expr::Field(field) => {
                let syn::Member::Named(name) = &field.member else {
                    return false;
                };
                let fields = self
                    .unit
                    .types
                    .declared
                    .values()
                    .flatten()
                    .flat_map(|one| &one.fields);
                let mut same = fields
                    .filter(|one| one.ident.as_ref() == Some(name))
                    .map(|one| is_float(self.unit.source.slice(&one.ty)))
                    .peekable();
                same.peek().is_some() && same.all(|float| float)
            }
            _ => false,
        }
    }

    /// Whether a variable is an `Option<Tensor>`: it is given `Some(tensor.clone())`.
    pub fn is_owned(&self, expr: &Expr) -> bool {
        let Some(name) = ident(expr) else {
            return false;
        };
        let at = self.unit.source.range(expr).start;
        self.definitions(&name, at).iter().any(|made| {
            self.unit
                .source
                .slice(*made)
                .contains(&format!("Some({name}.clone())"))
        })
    }

    /// Whether a field's own type returns in `forward` what it is given.
    pub fn is_identity(&self, layer: &Expr) -> bool {
        let Expr::Field(field) = strip(layer) else {
            return false;
        };
        let syn::Member::Named(name) = &field.member else {
            return false;
        };
        let fields = self
            .unit
            .types
            .declared
            .values()
            .flatten()
            .flat_map(|one| &one.fields);
        let types: Vec<_> = fields
            .filter(|one| one.ident.as_ref() == Some(name))
            .filter_map(|one| super::types::last_name(&one.ty))
            .collect();
        !types.is_empty() && types.iter().all(|name| identity(self.file(), name))
    }
}

fn is_float(ty: &str) -> bool {
    ty == "f64" || ty == "f32"
}

/// Whether `forward` of a type of this file is `Ok(x.clone())`.
fn identity(file: &syn::File, name: &str) -> bool {
    let mut found = false;
    for item in &file.items {
        let syn::Item::Impl(item) = item else {
            continue;
        };
        if super::types::last_name(&item.self_ty).is_none_or(|last| last != name) {
            continue;
        }
        for item in &item.items {
            let syn::ImplItem::Fn(function) = item else {
                continue;
            };
            if function.sig.ident != "forward" {
                continue;
            }
            let [Stmt::Expr(Expr::Call(call), None)] = function.block.stmts.as_slice() else {
                return false;
            };
            let clone = match call.args.first() {
                Some(Expr::MethodCall(method)) => {
                    method.method == "clone" && ident(&method.receiver).is_some()
                }
                _ => false,
            };
            let ok = matches!(&*call.func, Expr::Path(path) if path.path.is_ident("Ok"));
            found = ok && clone;
        }
    }
    found
}

/// Whether a pattern binds a name.
pub fn binds(pat: &Pat, name: &str) -> bool {
    struct Find<'n>(&'n str, bool);
    impl<'a> Visit<'a> for Find<'_> {
        fn visit_pat_ident(&mut self, pat: &'a syn::PatIdent) {
            self.1 |= pat.ident == self.0;
        }
    }
    let mut find = Find(name, false);
    find.visit_pat(pat);
    find.1
}

/// How often a text mentions a name.
pub fn mentions(text: &str, name: &str) -> usize {
    words(text).filter(|word| *word == name).count()
}
