//! Replaces a choice between a separate head and an embedding's table by a single `Linear`.

use std::ops::Range;

use syn::{Block, Expr, Item, Member, Stmt};

use super::built::given;
use super::draft::Draft;
use super::head::Head;
use super::source::{Source, is_inside};
use super::syntax::{
    self, Branch, Choice, exactly, get, ident, is, is_ok, mentions, own_field, strip,
};
use super::types::{Declared, arguments, is_impl_of, is_named, key, named};
use super::unit::Unit;
use super::walk::{Node, exprs, nodes};

/// The form of a branch's product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Value,
    Result,
    /// The form `Ok(product?)`, which may convert the error.
    Ok,
}

/// The field of the separate head, if a choice between it and the table encloses a product.
pub fn field(unit: &Unit<'_>, one: &Declared, head: &Head<'_>) -> Option<String> {
    let is_head = |name: &String| {
        let (world, types) = (unit.world, unit.types);
        named(&one.fields, name).is_some_and(|field| {
            let multiplies = || world.multiplies(unit.path, types, &one.module, &field.ty);
            is_named(&field.ty, "Option") && multiplies()
        })
    };
    head.around.iter().rev().find_map(|around| {
        let field = by_field(around).map(|(field, _)| field);
        field.or_else(|| {
            let mut reads = exprs(*around).filter_map(own_field);
            reads.find(is_head)
        })
    })
}

/// Makes the optional head a `Linear`, and the choice a call of it; returns `None` if that is not
/// certain.
pub fn rewrite(
    unit: &Unit<'_>,
    draft: &mut Draft,
    one: &Declared,
    head: &Head<'_>,
    linear: &str,
) -> Option<()> {
    let source = unit.source;
    let whole = *head.around.last()?;
    let (name, choice) = by_field(whole)?;
    let table = head.field.as_ref()?;
    let item = get!(&one.item, Item::Struct)?;
    let field = named(&item.fields, &name)?;
    let inner = layer(unit, one, &field.ty)?;
    let public = !matches!(field.vis, syn::Visibility::Inherited);
    let elsewhere = || {
        let names = [&name];
        let world = unit.world;
        world.is_built_elsewhere(unit.path, &one.name, names.into_iter())
    };
    if reads(unit, &one.name, &name) != 1 || public && elsewhere() {
        return None;
    }
    let (some, some_form) = value(choice.some)?;
    let (none, none_form) = of_expr(choice.none)?;
    let is_product = source.range(none) == head.range;
    let same = applied(source, some, &choice.name)? == bare(&head.input);
    let only = stays(source, choice.none, head);
    if !(is_product && same && only) {
        return None;
    }
    let docs = documentation(source, field)?;
    let lets = literals(unit, one, &name, table, linear)?;
    let and = if head.borrowed { "" } else { "&" };
    let call = format!("self.{name}.forward({and}{})", head.input);
    let call = match (some_form, none_form) {
        (Form::Value, _) | (_, Form::Value) => format!("{call}?"),
        (Form::Result, Form::Result) => call,
        _ => format!("Ok({call}?)"),
    };
    draft.edits.rewrite(source.range(whole), call);
    let ty = source.range(&field.ty);
    draft.edits.rewrite(ty, source.slice(inner));
    for range in docs {
        draft.edits.rewrite(range, ".");
    }
    for (at, text) in lets {
        draft.edits.insert(at, text);
    }
    Some(())
}

/// The `Linear` in an `Option`.
fn layer<'t>(unit: &Unit<'_>, one: &Declared, ty: &'t syn::Type) -> Option<&'t syn::Type> {
    let [inner] = exactly(arguments(ty))?;
    let origin = unit.origin(&one.module, inner)?;
    (is_named(ty, "Option") && origin.layer() == Some("Linear")).then_some(inner)
}

/// The field of `self` and the choice in `match self.head { None => .., Some(head) => .. }` or
/// `if let Some(head) = &self.head { .. }`.
fn by_field(expr: &Expr) -> Option<(String, Choice<'_>)> {
    let choice = syntax::choice(expr)?;
    let field = match strip(choice.option) {
        Expr::MethodCall(call) if call.method == "as_ref" => own_field(&call.receiver),
        expr => own_field(expr),
    };
    Some((field?, choice))
}

/// The product that is a branch's value, and its form.
fn value(branch: Branch<'_>) -> Option<(&Expr, Form)> {
    match branch {
        Branch::Block(block) => of_block(block),
        Branch::Expr(expr) => of_expr(expr),
    }
}

fn of_expr(expr: &Expr) -> Option<(&Expr, Form)> {
    match expr {
        Expr::Try(inner) => Some((&*inner.expr, Form::Value)),
        Expr::Block(block) => of_block(&block.block),
        Expr::MethodCall(_) => Some((expr, Form::Result)),
        Expr::Call(call) => Some((ok(call)?, Form::Ok)),
        _ => None,
    }
}

/// The product in `Ok(product?)`.
fn ok(call: &syn::ExprCall) -> Option<&Expr> {
    match call.args.first().filter(|_| is_ok(call))? {
        Expr::Try(inner) => Some(&inner.expr),
        _ => None,
    }
}

/// The product of a block, whose last variable may hold it.
fn of_block(block: &Block) -> Option<(&Expr, Form)> {
    let (last, before) = syntax::value(block)?;
    let name = match last {
        Expr::Call(call) => call.args.first().and_then(ident),
        last => ident(last),
    };
    let Some((name, Stmt::Local(local))) = name.zip(before.last()) else {
        return of_expr(last);
    };
    let (bound, init) = syntax::assigned(before.last()?)?;
    let (product, form) = of_expr(init).filter(|_| bound == name && local.attrs.is_empty())?;
    match (last, form) {
        (Expr::Call(_), Form::Value) => Some((product, Form::Ok)),
        (Expr::Path(_), form) => Some((product, form)),
        _ => None,
    }
}

/// The input of `head.forward(input)` or `input.apply(head)`.
fn applied<'t>(source: &Source<'t>, expr: &Expr, name: &str) -> Option<&'t str> {
    let call = get!(expr, Expr::MethodCall)?;
    let (head, input) = syntax::applied(call)?;
    let is_it = call.args.len() == 1 && is(head, name);
    is_it.then(|| bare(source.slice(input)))
}

fn bare(input: &str) -> &str {
    input.trim_start_matches('&')
}

/// Whether a branch contains only the product and what is removed with it.
fn stays(source: &Source<'_>, branch: &Expr, head: &Head<'_>) -> bool {
    let Expr::Block(block) = branch else {
        return true;
    };
    let Some((_, before)) = block.block.stmts.split_last() else {
        return false;
    };
    before.iter().all(|stmt| {
        let range = source.range(stmt);
        is_inside(&head.range, &range) || head.gone.contains(&range)
    })
}

/// The number of reads of the field of a type, or of a field of this name of any value.
fn reads(unit: &Unit<'_>, owner: &str, field: &str) -> usize {
    let is_it = |one: &Member| matches!(one, Member::Named(name) if name == field);
    let of_item = |item: &Item| {
        let is_own = is_impl_of(item, owner);
        let count = |node| match node {
            Node::Expr(Expr::Field(read)) => {
                usize::from((is_own || !is(&read.base, "self")) && is_it(&read.member))
            }
            Node::Macro(call) => mentions(&call.tokens.to_string(), field),
            Node::FieldPat(pat) => usize::from(is_it(&pat.member)),
            _ => 0,
        };
        nodes(item).map(count).sum::<usize>()
    };
    unit.file.items.iter().map(of_item).sum()
}

/// The ends of a field's documentation that are about `None`, each with the period or semicolon
/// before it; `None` if they are not whole sentences or clauses.
fn documentation(source: &Source<'_>, field: &syn::Field) -> Option<Vec<Range<usize>>> {
    let docs = field.attrs.iter().filter(|attr| attr.path().is_ident("doc"));
    let mut gone = Vec::new();
    for doc in docs {
        let (range, text) = (source.range(doc), source.slice(doc));
        let Some(at) = text.find("None") else {
            continue;
        };
        let start = text[..at].rfind(". ").max(text[..at].rfind("; "))?;
        let ends = text.ends_with('.') && !text[at..text.len() - 1].contains(". ");
        gone.push(ends.then_some(range.start + start..range.end)?);
    }
    Some(gone)
}

/// The declarations of the head before the literals of its struct: their places and text.
fn literals(
    unit: &Unit<'_>,
    one: &Declared,
    field: &str,
    table: &str,
    linear: &str,
) -> Option<Vec<(usize, String)>> {
    let source = unit.source;
    let literals = unit.built.literals(&key(one))?;
    if literals.found.is_empty() || literals.patterns || !one.module.is_empty() {
        return None;
    }
    let mut lets = Vec::new();
    for (literal, _) in &literals.found {
        let variable = |name: &str| ident(&given(literal, name)?.expr);
        let (head, table) = (variable(field)?, variable(table)?);
        let stmt = statement(unit, source.range(*literal))?;
        // The variables are read there and nowhere else in the statement.
        let is_read = |name: &str, field: &str| {
            let shorthand = usize::from(name == field) + 1;
            let text = source.slice(stmt);
            let colon = text.contains(&format!("{field}: {name}"));
            mentions(text, name) > if colon { shorthand } else { 1 }
        };
        if literal.rest.is_some() || is_read(&head, field) {
            return None;
        }
        let at = source.start(stmt);
        let tied = format!("{linear}::new({table}.embeddings().clone(), None)");
        let stmt = format!("let {head} = {head}.unwrap_or_else(|| {tied});");
        lets.push((at, stmt + &source.next_line(at)));
    }
    Some(lets)
}

/// The innermost statement around a place.
fn statement<'u>(unit: &Unit<'u>, place: Range<usize>) -> Option<&'u Stmt> {
    let stmts = nodes(unit.file).filter_map(|node| get!(node, Node::Stmt));
    let around = |stmt: &&Stmt| is_inside(&place, &unit.source.range(*stmt));
    stmts.filter(around).last()
}
