//! Parts of expressions and statements, as all passes read them.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{Expr, ExprLit, Lit, Pat, Stmt};

/// The expression inside `?`, parentheses and references.
pub fn strip(expr: &Expr) -> &Expr {
    match expr {
        Expr::Try(inner) => strip(&inner.expr),
        Expr::Paren(inner) => strip(&inner.expr),
        Expr::Group(inner) => strip(&inner.expr),
        Expr::Reference(inner) => strip(&inner.expr),
        _ => expr,
    }
}

/// A variable's name.
pub fn ident(expr: &Expr) -> Option<String> {
    match strip(expr) {
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

/// The names of a path.
pub fn segments(path: &syn::Path) -> Vec<String> {
    let segments = path.segments.iter();
    segments.map(|one| one.ident.to_string()).collect()
}

/// Without calls of these methods at its end.
pub fn without<'x>(expr: &'x Expr, methods: &[&str]) -> &'x Expr {
    match strip(expr) {
        Expr::MethodCall(call) if methods.iter().any(|name| call.method == name) => {
            without(&call.receiver, methods)
        }
        _ => expr,
    }
}

/// Two axes of a `transpose`, from the end.
pub fn axes(args: &[&Expr]) -> Option<(isize, isize)> {
    let axis = |expr: &Expr| match strip(expr) {
        Expr::Lit(ExprLit {
            lit: Lit::Int(int), ..
        }) => int.base10_parse::<isize>().ok(),
        Expr::Path(path) => match path.path.segments.last()?.ident.to_string().as_str() {
            "Minus1" => Some(-1),
            "Minus2" => Some(-2),
            _ => None,
        },
        _ => None,
    };
    let [a, b] = args else { return None };
    let (a, b) = (axis(a)?, axis(b)?);
    Some((a.min(b), a.max(b)))
}

/// The words of a text.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// `let _enter = span.enter();`
pub fn guard(stmt: &Stmt) -> bool {
    let Stmt::Local(local) = stmt else {
        return false;
    };
    let Some(init) = &local.init else {
        return false;
    };
    matches!(&*init.expr, Expr::MethodCall(call) if call.method == "enter" && call.args.is_empty())
}

pub fn is_none(pat: &Pat) -> bool {
    match pat {
        Pat::Ident(pat) => pat.ident == "None",
        Pat::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|last| last.ident == "None"),
        _ => false,
    }
}

/// The variable of `Some(variable)`.
pub fn some_name(pat: &Pat) -> Option<String> {
    let Pat::TupleStruct(pat) = pat else {
        return None;
    };
    if pat.path.segments.last()?.ident != "Some" || pat.elems.len() != 1 {
        return None;
    }
    match pat.elems.first()? {
        Pat::Ident(pat) => Some(pat.ident.to_string()),
        _ => None,
    }
}

/// The last expression of a block, which is its value.
pub fn tail(block: &syn::Block) -> Option<&Expr> {
    match block.stmts.last()? {
        Stmt::Expr(expr, None) => Some(expr),
        _ => None,
    }
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

/// The field in `self.field`, `&self.field`.
pub fn own_field(expr: &Expr) -> Option<String> {
    let Expr::Field(field) = strip(expr) else {
        return None;
    };
    match (&field.member, ident(&field.base)) {
        (syn::Member::Named(name), Some(base)) if base == "self" => Some(name.to_string()),
        _ => None,
    }
}

/// The field, as [`own_field`], or its number in a tuple.
pub fn own_member(expr: &Expr) -> Option<String> {
    let Expr::Field(field) = strip(expr) else {
        return None;
    };
    match ident(&field.base) {
        Some(base) if base == "self" => Some(member(&field.member)),
        _ => None,
    }
}

/// The name of a field, or its number.
pub fn member(member: &syn::Member) -> String {
    match member {
        syn::Member::Named(name) => name.to_string(),
        syn::Member::Unnamed(at) => at.index.to_string(),
    }
}

/// The variable that a statement gives a value, and the value.
pub fn assigned(stmt: &Stmt) -> Option<(String, &Expr)> {
    match stmt {
        Stmt::Local(local) => {
            let init = local.init.as_ref().filter(|init| init.diverge.is_none())?;
            let pat = match &local.pat {
                syn::Pat::Type(typed) => &*typed.pat,
                pat => pat,
            };
            let syn::Pat::Ident(pat) = pat else {
                return None;
            };
            Some((pat.ident.to_string(), &init.expr))
        }
        Stmt::Expr(Expr::Assign(assign), Some(_)) => Some((ident(&assign.left)?, &assign.right)),
        _ => None,
    }
}

pub fn assigns(stmt: &Stmt, name: &str) -> bool {
    assigned(stmt).is_some_and(|(assigned, _)| assigned == name)
}

/// The variables that a statement binds or gives another value, at any depth.
pub fn changed(stmt: &Stmt) -> BTreeSet<String> {
    struct Names(BTreeSet<String>);
    impl<'a> Visit<'a> for Names {
        fn visit_pat_ident(&mut self, pat: &'a syn::PatIdent) {
            self.0.insert(pat.ident.to_string());
        }
        fn visit_expr_assign(&mut self, assign: &'a syn::ExprAssign) {
            self.0.extend(ident(&assign.left));
            visit::visit_expr_assign(self, assign);
        }
        fn visit_expr_binary(&mut self, binary: &'a syn::ExprBinary) {
            use syn::BinOp::{AddAssign, DivAssign, MulAssign, SubAssign};
            if let AddAssign(_) | SubAssign(_) | MulAssign(_) | DivAssign(_) = binary.op {
                self.0.extend(ident(&binary.left));
            }
            visit::visit_expr_binary(self, binary);
        }
        fn visit_expr_reference(&mut self, reference: &'a syn::ExprReference) {
            if reference.mutability.is_some() {
                self.0.extend(ident(&reference.expr));
            }
            visit::visit_expr_reference(self, reference);
        }
    }
    let mut names = Names(BTreeSet::new());
    names.visit_stmt(stmt);
    names.0
}
