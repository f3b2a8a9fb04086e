//! Rewrites a head that multiplies by an embedding's table as a `Linear` with that table, and a
//! choice between a separate head and the table as a single `Linear`.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprMethodCall, Item, Member, Stmt};

use super::built::given;
use super::draft::Draft;
use super::facts::{self, Facts};
use super::names::Modules;
use super::scopes::Origin;
use super::source::{Source, is_inside};
use super::syntax::{
    self, Branch, Choice, binds, exactly, get, ident, is, is_ok, mentions, method, own_field,
    strip, variable,
};
use super::table::{Home, is_codebook};
use super::types::{Declared, arguments, is_impl_of, is_named, key, named};
use super::unit::Unit;
use super::walk::{Node, Tree, exprs, nodes};

/// The name of the field for a head.
const FIELD: &str = "tied_head";

/// Rewrites heads that are certain, and lists the rest.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, modules: &Modules) {
    let (mut heads, mut transposed) = (Vec::new(), Vec::new());
    for facts in facts::all(unit) {
        let mut find = TableFinder {
            facts,
            heads: Vec::new(),
            lets: lets_of_tables(&facts),
            transposed: Vec::new(),
            around: Vec::new(),
        };
        find.visit_block(facts.function.block);
        heads.extend(find.heads);
        transposed.extend(find.transposed);
    }
    let given_away = transposed.iter().filter(|range| {
        let inside = |outer: &Range<usize>| is_inside(range, outer);
        let mut heads = heads.iter();
        !heads.any(|head| inside(&head.range) || head.gone.iter().any(inside))
    });
    for range in given_away.filter(|range| !unit.source.is_kept(range.start)) {
        let what = "an embedding's table is transposed for a product that is no layer";
        let advice = "hold a `Linear::tied(&embedding, None)` where the product is, and call it";
        draft.list(unit.todo(range.start, what, advice));
    }
    for head in heads {
        if unit.source.is_kept(head.range.start) {
            continue;
        }
        let module = &head.facts.function.module;
        let linear = linear(unit, modules, module);
        let is_rewritten = one(unit, draft, &head, &linear);
        if is_rewritten && linear == "Linear" {
            draft.need_name(module, "Linear");
        } else if is_rewritten {
            draft.need(module, modules.name(Home::Nn), Home::Nn);
        }
    }
}

/// Rewrites or lists a head; returns whether it was rewritten.
fn one(unit: &Unit<'_>, draft: &mut Draft, head: &Head<'_>, linear: &str) -> bool {
    let declared = owner(&head.facts).and_then(|declared| declared.first());
    let field = declared.and_then(|one| Some((one, separate(unit, one, head)?)));
    if let Some((declared, field)) = field {
        let advice = format!(
            "make `{field}` a `Linear`: `{field}.unwrap_or_else(|| \
             Linear::tied(&embedding, None))`; else put `// dynquant: keep` here"
        );
        return untie(unit, draft, declared, head, linear).is_some()
            || list(unit, draft, head, advice);
    }
    let field = head.field.as_ref();
    let Some(edits) = field.and_then(|field| edits(unit, head, field, linear)) else {
        let advice = "if it is the head, hold a `Linear::tied(&embedding, None)` and call it, so \
                      that the table is quantized and kept once; else put `// dynquant: keep` here";
        return list(unit, draft, head, advice.into());
    };
    for (at, text) in edits {
        draft.edits.insert(at, text);
    }
    let and = if head.borrowed { "" } else { "&" };
    let text = format!("self.{FIELD}.forward({and}{})", head.input);
    draft.edits.rewrite(head.range.clone(), text);
    for range in &head.gone {
        draft.edits.rewrite(unit.source.lines_of(range.clone()), "");
    }
    true
}

/// Lists a head, which is then not rewritten.
fn list(unit: &Unit<'_>, draft: &mut Draft, head: &Head<'_>, advice: String) -> bool {
    let what = "a product with an embedding's table is no layer";
    draft.list(unit.todo(head.range.start, what, advice));
    false
}

fn owner<'u>(facts: &Facts<'u>) -> Option<&'u Vec<Declared>> {
    let function = facts.function;
    let key = (function.module.clone(), function.owner.clone()?);
    facts.unit.types.declared.get(&key)
}

struct TableFinder<'a> {
    facts: Facts<'a>,
    heads: Vec<Head<'a>>,
    /// The variables that hold tables.
    lets: Vec<Table>,
    /// The places where tables are transposed.
    transposed: Vec<Range<usize>>,
    around: Vec<&'a Expr>,
}

/// A variable that holds a table.
struct Table {
    name: String,
    field: Option<String>,
    /// The number of times that the function mentions it.
    mentions: usize,
    gone: Vec<Range<usize>>,
}

/// The field of `self` that a table belongs to; `Some(None)` for a table of another embedding.
fn table(expr: &Expr) -> Option<Option<String>> {
    let call = method(expr)?;
    match call.method.to_string().as_str() {
        "t" | "broadcast_left" | "contiguous" | "to_dtype" => table(&call.receiver),
        "embeddings" if call.args.is_empty() => Some(own_field(&call.receiver)),
        _ => None,
    }
}

/// Whether a table is an operand without a cast.
fn is_plain(expr: &Expr) -> bool {
    method(expr).is_none_or(|call| call.method != "to_dtype" && is_plain(&call.receiver))
}

/// The variables of a function that hold tables.
fn lets_of_tables(facts: &Facts<'_>) -> Vec<Table> {
    let (source, block) = (facts.unit.source, facts.function.block);
    let lets: Vec<_> = lets(block).collect();
    let text = source.slice(block);
    let table = |local: &&syn::Local| {
        let (init, name) = (local.init.as_ref()?, variable(&local.pat)?);
        let field = table(&init.expr).filter(|_| is_plain(&init.expr))?;
        let reads = source.slice(&*init.expr);
        // A `let b_size = xs.dim(0)?;` that only this table reads.
        let sizes = lets.iter().filter(|size| {
            let call = size.init.as_ref().and_then(|init| method(&init.expr));
            let name = variable(&size.pat).filter(|_| call.is_some_and(|it| it.method == "dim"));
            name.is_some_and(|it| mentions(reads, &it) == 1 && mentions(text, &it) == 2)
        });
        let gone = sizes.chain([local]);
        Some(Table {
            field,
            mentions: mentions(text, &name),
            name,
            gone: gone.map(|local| source.range(*local)).collect(),
        })
    };
    lets.iter().filter_map(table).collect()
}

impl<'a> Visit<'a> for TableFinder<'a> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        let chooses = matches!(expr, Expr::Match(_) | Expr::If(_));
        self.around.extend(chooses.then_some(expr));
        visit::visit_expr(self, expr);
        if chooses {
            self.around.pop();
        }
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        visit::visit_expr_method_call(self, call);
        // A table that is transposed and returned is used as a head elsewhere.
        if call.method == "t" && table(&call.receiver).is_some() {
            self.transposed.push(self.facts.range(call));
        }
        let product = call.method == "matmul" || call.method == "broadcast_matmul";
        let Some(operand) = call.args.first().filter(|_| product) else { return };
        let transposed = method(operand).is_some_and(|call| call.method == "t");
        let found = table(operand).filter(|_| is_plain(operand)).map(|field| (field, Vec::new()));
        let bound = || {
            let name = ident(&method(operand)?.receiver)?;
            let table = self.lets.iter().find(|table| table.name == name)?;
            // The mention in its binding and the mention here.
            let field = table.field.clone().filter(|_| table.mentions == 2);
            Some((field, table.gone.clone()))
        };
        let Some((field, gone)) = found.or_else(bound) else { return };
        let (unit, source) = (self.facts.unit, self.facts.unit.source);
        let input = &*call.receiver;
        let borrowed = matches!(input, Expr::Reference(_)) || unit.is_borrowed_path(input);
        let is_codebook = self.facts.function.owner.as_deref().is_some_and(is_codebook);
        let is_head = transposed && owner(&self.facts).is_some() && !is_codebook;
        self.heads.push(Head {
            facts: self.facts,
            range: source.range(call),
            input: source.slice(input).to_owned(),
            borrowed,
            field: field.filter(|_| is_head),
            gone,
            around: self.around.clone(),
        });
    }
}

/// The path of `nn::Linear` in a module.
fn linear(unit: &Unit<'_>, modules: &Modules, module: &[String]) -> String {
    let path = vec!["nn".to_owned(), "Linear".to_owned()];
    let origin = unit.types.scopes.resolve(module, &path[1..]);
    let free = origin == Origin::Other(path[1..].to_vec());
    let mapped = origin.mapped().map(|mapped| mapped.name);
    if free || mapped == Some("Linear") || origin == Origin::Ours(path) {
        return "Linear".to_owned();
    }
    format!("{}::Linear", modules.name(Home::Nn))
}

/// The field and its value in every constructor; `None` if a constructor is not understood.
fn edits(
    unit: &Unit<'_>,
    head: &Head<'_>,
    field: &str,
    linear: &str,
) -> Option<Vec<(usize, String)>> {
    let source = unit.source;
    let [declared] = exactly(owner(&head.facts)?)?;
    let item = get!(&declared.item, Item::Struct)?;
    let embedding = named(&item.fields, field)?;
    if named(&item.fields, FIELD).is_some() {
        return None;
    }
    let literals = unit.built.literals.get(&key(declared))?;
    if literals.found.is_empty() || literals.patterns || !declared.module.is_empty() {
        return None;
    }
    let mut edits = Vec::new();
    let at = source.start(embedding);
    let next_line = source.next_line(at);
    edits.push((at, format!("{FIELD}: {linear},{next_line}")));
    for (literal, _) in &literals.found {
        let given = given(literal, field)?;
        let name = ident(&given.expr).filter(|_| literal.rest.is_none())?;
        let at = source.start(given);
        let gap = source.gap(at);
        // `tied` writes it as a tied one where it is certain that the name is an embedding.
        edits
            .push((at, format!("{FIELD}: {linear}::new({name}.embeddings().clone(), None),{gap}")));
    }
    // A variable with the field's name would be read instead of the field.
    let is_shadowed = lets(unit.file).any(|local| binds(&local.pat, FIELD));
    (!is_shadowed).then_some(edits)
}

/// All declarations of variables.
fn lets<T: Tree>(tree: &T) -> impl Iterator<Item = &syn::Local> {
    nodes(tree).filter_map(|node| get!(node, Node::Local))
}

/// A product with an embedding's table.
struct Head<'a> {
    facts: Facts<'a>,
    range: Range<usize>,
    input: String,
    borrowed: bool,
    /// The field of `self` that holds the embedding, if the product is certainly a head.
    field: Option<String>,
    /// The statements to remove: the binding of the table, and of a size that only it reads.
    gone: Vec<Range<usize>>,
    /// The enclosing `match`es and `if`s, the innermost last.
    around: Vec<&'a Expr>,
}

/// The form of a branch's product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Value,
    Result,
    /// The form `Ok(product?)`, which may convert the error.
    Ok,
}

/// The field of the separate head, if a choice between it and the table encloses a product.
fn separate(unit: &Unit<'_>, one: &Declared, head: &Head<'_>) -> Option<String> {
    let is_head = |name: &String| {
        named(&one.fields, name).is_some_and(|field| {
            is_named(&field.ty, "Option") && unit.multiplies(&one.module, &field.ty)
        })
    };
    head.around.iter().rev().find_map(|around| {
        by_field(around)
            .map(|(field, _)| field)
            .or_else(|| exprs(*around).filter_map(own_field).find(is_head))
    })
}

/// Makes the optional head a `Linear`, and the choice a call of it; returns `None` if that is not
/// certain.
fn untie(
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
    let elsewhere = || unit.world.is_built_elsewhere(unit.path, &one.name, [&name].into_iter());
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
    Some(&get!(call.args.first().filter(|_| is_ok(call))?, Expr::Try)?.expr)
}

/// The product of a block, whose last variable may hold it.
fn of_block(block: &Block) -> Option<(&Expr, Form)> {
    let (last, before) = syntax::value(block)?;
    let name = match last {
        Expr::Call(call) => call.args.first().and_then(ident),
        last => ident(last),
    };
    let Some((name, Stmt::Local(local))) = name.zip(before.last()) else { return of_expr(last) };
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
    let Expr::Block(block) = branch else { return true };
    let Some((_, before)) = block.block.stmts.split_last() else { return false };
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
        let Some(at) = text.find("None") else { continue };
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
    let literals = unit.built.literals.get(&key(one))?;
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
