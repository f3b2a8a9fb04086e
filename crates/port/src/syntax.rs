//! Parts of expressions and statements, for all passes.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::{
    Arm, Attribute, Expr, ExprCall, ExprIf, ExprLet, ExprMatch, ExprMethodCall, Lit, Pat, Stmt,
    Token,
};

pub(crate) use super::walk::get;
use super::walk::{Node, Tree, nodes};

/// The items, if there are exactly `N`.
pub fn exactly<T, const N: usize>(items: impl IntoIterator<Item = T>) -> Option<[T; N]> {
    items.into_iter().collect::<Vec<_>>().try_into().ok()
}

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

/// Whether an expression is the variable `name`.
pub fn is(expr: &Expr, name: &str) -> bool {
    ident(expr).is_some_and(|variable| variable == name)
}

/// Whether a path's last segment is `name`.
pub fn ends_with(path: &syn::Path, name: &str) -> bool {
    path.segments.last().is_some_and(|last| last.ident == name)
}

/// Whether a call is `Ok(..)`.
pub fn is_ok(call: &ExprCall) -> bool {
    called(call).is_some_and(|path| path.is_ident("Ok"))
}

/// The name of a variable.
pub fn ident(expr: &Expr) -> Option<String> {
    let name = get!(strip(expr), Expr::Path)?.path.get_ident()?;
    Some(name.to_string())
}

/// The name of an expression that is nothing but a variable.
pub fn bare_name(expr: &Expr) -> Option<String> {
    Some(get!(expr, Expr::Path)?.path.get_ident()?.to_string())
}

pub fn method(expr: &Expr) -> Option<&ExprMethodCall> {
    get!(strip(expr), Expr::MethodCall)
}

pub fn called(call: &ExprCall) -> Option<&syn::Path> {
    let function = get!(&*call.func, Expr::Path)?;
    function.qself.is_none().then_some(&function.path)
}

/// The layer and the input in `layer.forward(input)` or `input.apply(layer)`.
pub fn applied(call: &ExprMethodCall) -> Option<(&Expr, &Expr)> {
    let argument = call.args.first()?;
    match call.method.to_string().as_str() {
        "forward" => Some((&call.receiver, argument)),
        "apply" => Some((argument, &call.receiver)),
        _ => None,
    }
}

/// The condition of `if let`.
pub fn condition(choice: &ExprIf) -> Option<&ExprLet> {
    get!(&*choice.cond, Expr::Let)
}

/// The arms `Some(name)` and `None` of a `match`, with the name.
pub fn optional(choice: &ExprMatch) -> Option<(String, &Arm, &Arm)> {
    let [a, b] = exactly(&choice.arms)?;
    let (none, some) = if is_none(&a.pat) { (a, b) } else { (b, a) };
    let name = some_name(&some.pat).filter(|_| is_none(&none.pat))?;
    Some((name, some, none))
}

/// A choice by an option: `match option { None => .., Some(name) => .. }`, or
/// `if let Some(name) = option { .. } else { .. }`.
pub struct Choice<'c> {
    pub option: &'c Expr,
    pub name: String,
    pub some: Branch<'c>,
    pub none: &'c Expr,
}

/// A branch of a choice.
#[derive(Clone, Copy)]
pub enum Branch<'c> {
    Expr(&'c Expr),
    Block(&'c syn::Block),
}

impl<'c> Branch<'c> {
    /// The expression that is the whole branch.
    pub fn only(self) -> Option<&'c Expr> {
        match self {
            Self::Expr(expr) => Some(expr),
            Self::Block(block) => only(block),
        }
    }
}

/// An expression as a choice by an option.
pub fn choice(expr: &Expr) -> Option<Choice<'_>> {
    if let Expr::Match(choice) = expr {
        let (name, some, none) = optional(choice)?;
        return Some(Choice {
            option: &choice.expr,
            name,
            some: Branch::Expr(&some.body),
            none: &none.body,
        });
    }
    let choice = get!(expr, Expr::If)?;
    let bound = condition(choice)?;
    Some(Choice {
        option: &bound.expr,
        name: some_name(&bound.pat)?,
        some: Branch::Block(&choice.then_branch),
        none: &choice.else_branch.as_ref()?.1,
    })
}

/// The expressions that a macro is given, if it is given nothing else.
pub fn arguments(call: &syn::Macro) -> Option<Punctuated<Expr, Token![,]>> {
    call.parse_body_with(Punctuated::parse_terminated).ok()
}

/// Whether one of the attributes has this name.
pub fn has_attribute(attrs: &[Attribute], name: &str) -> bool {
    attrs.iter().any(|attr| attr.path().is_ident(name))
}

/// Whether a list attribute such as `derive` contains such a path.
pub fn lists(attrs: &[Attribute], list: &str, is_it: impl Fn(&syn::Path) -> bool) -> bool {
    let mut found = false;
    for attr in attrs.iter().filter(|attr| attr.path().is_ident(list)) {
        // Reading stops at the first entry that is not a path.
        let _ = attr.parse_nested_meta(|meta| {
            found |= is_it(&meta.path);
            Ok(())
        });
    }
    found
}

pub fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|one| one.ident.to_string()).collect()
}

/// The expression without trailing calls of these methods.
pub fn without<'x>(expr: &'x Expr, methods: &[&str]) -> &'x Expr {
    match strip(expr) {
        Expr::MethodCall(call) if methods.iter().any(|name| call.method == name) => {
            without(&call.receiver, methods)
        }
        _ => expr,
    }
}

/// An axis of a tensor, which is negative if it is counted from the end.
pub fn axis(expr: &Expr) -> Option<isize> {
    match strip(expr) {
        Expr::Lit(value) => get!(&value.lit, Lit::Int)?.base10_parse().ok(),
        Expr::Path(path) if ends_with(&path.path, "Minus1") => Some(-1),
        Expr::Path(path) if ends_with(&path.path, "Minus2") => Some(-2),
        _ => None,
    }
}

/// The two axes of a `transpose`, in order.
pub fn axes(args: &[&Expr]) -> Option<(isize, isize)> {
    let [a, b] = args else { return None };
    let (a, b) = (axis(a)?, axis(b)?);
    Some((a.min(b), a.max(b)))
}

/// The words of a text.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Whether a statement is `let _enter = span.enter();`.
pub fn guard(stmt: &Stmt) -> bool {
    let init = get!(stmt, Stmt::Local).and_then(|local| local.init.as_ref());
    let call = init.and_then(|init| get!(&*init.expr, Expr::MethodCall));
    call.is_some_and(|call| call.method == "enter" && call.args.is_empty())
}

pub fn is_none(pat: &Pat) -> bool {
    match pat {
        Pat::Ident(pat) => pat.ident == "None",
        Pat::Path(path) => ends_with(&path.path, "None"),
        _ => false,
    }
}

/// The variable of `Some(variable)`.
pub fn some_name(pat: &Pat) -> Option<String> {
    let some = get!(pat, Pat::TupleStruct).filter(|some| ends_with(&some.path, "Some"))?;
    let [inner] = exactly(&some.elems)?;
    variable(inner)
}

/// The variable of a pattern that is a plain variable.
pub fn variable(pat: &Pat) -> Option<String> {
    Some(get!(pat, Pat::Ident)?.ident.to_string())
}

/// The possible values of a choice or a block.
pub fn values(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::If(choice) => {
            let other = choice.else_branch.iter().map(|(_, other)| &**other);
            tail(&choice.then_branch).into_iter().chain(other).collect()
        }
        Expr::Match(choice) => choice.arms.iter().map(|arm| &*arm.body).collect(),
        Expr::Block(block) => tail(&block.block).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The last expression of a block, which is its value, and the statements before it.
pub fn value(block: &syn::Block) -> Option<(&Expr, &[Stmt])> {
    match block.stmts.split_last()? {
        (Stmt::Expr(expr, None), before) => Some((expr, before)),
        _ => None,
    }
}

/// The value of a block.
pub fn tail(block: &syn::Block) -> Option<&Expr> {
    Some(value(block)?.0)
}

/// The expression that is the whole block.
pub fn only(block: &syn::Block) -> Option<&Expr> {
    let (last, before) = value(block)?;
    before.is_empty().then_some(last)
}

/// Whether a pattern, or a pattern in code, binds a name.
pub fn binds<T: Tree>(tree: &T, name: &str) -> bool {
    nodes(tree).any(|node| matches!(node, Node::PatIdent(pat) if pat.ident == name))
}

/// The number of times that a text mentions a name.
pub fn mentions(text: &str, name: &str) -> usize {
    words(text).filter(|word| *word == name).count()
}

/// The field in `self.field` or `&self.field`.
pub fn own_field(expr: &Expr) -> Option<String> {
    get!(&get!(strip(expr), Expr::Field)?.member, syn::Member::Named)?;
    own_member(expr)
}

/// The field, as in [`own_field`], or its number in a tuple.
pub fn own_member(expr: &Expr) -> Option<String> {
    let field = get!(strip(expr), Expr::Field)?;
    is(&field.base, "self").then(|| member(&field.member))
}

/// The name of a field, or its number.
pub fn member(member: &syn::Member) -> String {
    match member {
        syn::Member::Named(name) => name.to_string(),
        syn::Member::Unnamed(at) => at.index.to_string(),
    }
}

/// A pattern without its type.
pub fn untyped(pat: &Pat) -> &Pat {
    match pat {
        Pat::Type(typed) => &typed.pat,
        pat => pat,
    }
}

/// The variable that a statement assigns, and the value.
pub fn assigned(stmt: &Stmt) -> Option<(String, &Expr)> {
    match stmt {
        Stmt::Local(local) => {
            let init = local.init.as_ref().filter(|init| init.diverge.is_none())?;
            Some((variable(untyped(&local.pat))?, &init.expr))
        }
        Stmt::Expr(Expr::Assign(assign), Some(_)) => Some((ident(&assign.left)?, &assign.right)),
        _ => None,
    }
}

pub fn assigns(stmt: &Stmt, name: &str) -> bool {
    assigned(stmt).is_some_and(|(assigned, _)| assigned == name)
}

/// The variables that a statement binds or assigns, at any depth.
pub fn changed(stmt: &Stmt) -> BTreeSet<String> {
    use syn::BinOp::{AddAssign, DivAssign, MulAssign, SubAssign};
    let name = |node| match node {
        Node::PatIdent(pat) => Some(pat.ident.to_string()),
        Node::Expr(Expr::Assign(assign)) => ident(&assign.left),
        Node::Expr(Expr::Binary(binary)) => match binary.op {
            AddAssign(_) | SubAssign(_) | MulAssign(_) | DivAssign(_) => ident(&binary.left),
            _ => None,
        },
        Node::Expr(Expr::Reference(inner)) => inner.mutability.and_then(|_| ident(&inner.expr)),
        _ => None,
    };
    nodes(stmt).filter_map(name).collect()
}

/// A name as the root of an import, among the names of a file.
pub fn root(name: &str) -> String {
    format!("use {name}")
}

/// The numbers of occurrences of names outside of imports and of literals.
pub fn idents(text: &str) -> BTreeMap<String, usize> {
    fn count(tokens: TokenStream, counts: &mut BTreeMap<String, usize>) {
        let (mut in_use, mut is_root) = (false, false);
        let mut tokens = tokens.into_iter();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(ident) if ident == "use" => (in_use, is_root) = (true, true),
                TokenTree::Ident(ident) if is_root => {
                    is_root = false;
                    *counts.entry(root(&ident.to_string())).or_default() += 1;
                }
                TokenTree::Ident(ident) if ident == "fn" => function(&mut tokens, counts),
                TokenTree::Punct(punct) if punct.as_char() == ';' => in_use = false,
                TokenTree::Ident(ident) if !in_use => {
                    *counts.entry(ident.to_string()).or_default() += 1;
                }
                TokenTree::Group(group) if !in_use => count(group.stream(), counts),
                _ => {}
            }
        }
    }
    /// Counts to the end of the function; names of its type parameters are not uses.
    fn function(
        tokens: &mut impl Iterator<Item = TokenTree>,
        counts: &mut BTreeMap<String, usize>,
    ) {
        let (mut function, mut parameters) = (TokenStream::new(), Vec::new());
        // The depth of angle brackets; `None` from the arguments on.
        let mut depth = Some(0);
        let mut before = ' ';
        for token in tokens.by_ref() {
            let mut is_end = false;
            let mut now = ' ';
            match (&token, &mut depth) {
                (TokenTree::Punct(punct), depth) => {
                    now = punct.as_char();
                    is_end = now == ';';
                    if let Some(depth) = depth {
                        *depth += i32::from(now == '<') - i32::from(now == '>' && before != '-');
                    }
                }
                (TokenTree::Ident(name), Some(1)) if matches!(before, '<' | ',') => {
                    parameters.push(name.to_string());
                }
                (TokenTree::Group(group), depth) => {
                    is_end = group.delimiter() == Delimiter::Brace && *depth != Some(1);
                    if *depth == Some(0) {
                        *depth = None;
                    }
                }
                _ => {}
            }
            before = now;
            function.extend([token]);
            if is_end {
                break;
            }
        }
        let mut inside = BTreeMap::new();
        count(function, &mut inside);
        for (name, number) in inside {
            if !parameters.contains(&name) {
                *counts.entry(name).or_default() += number;
            }
        }
    }
    let mut counts = BTreeMap::new();
    count(text.parse().unwrap_or_default(), &mut counts);
    counts
}
