//! A head that is a product with an embedding's table becomes a `Linear` of that table.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, Item};

use super::draft::Draft;
use super::functions;
use super::head::Head;
use super::layers::literals::{Literals, given};
use super::names::House;
use super::scopes::{Module, Origin};
use super::source::is_inside;
use super::syntax::{binds, exactly, get, ident, mentions, method, own_field, variable};
use super::table::{Home, is_codebook};
use super::types::named;
use super::unit::Unit;
use super::untied;
use super::walk::{Node, Tree, nodes};

/// The name of the field that a head gets.
const FIELD: &str = "tied_head";

/// Rewrites heads that are certain, and lists the rest.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft, house: &House) {
    let mut find = Find {
        unit,
        module: Vec::new(),
        of: None,
        heads: Vec::new(),
        lets: Vec::new(),
        transposed: Vec::new(),
        around: Vec::new(),
    };
    for function in functions::of(unit.file) {
        find.module = function.module;
        find.of = function.of;
        find.function(function.block);
    }
    let heads = find.heads;
    let given_away = find.transposed.iter().filter(|range| {
        let inside = |outer: &Range<usize>| is_inside(range, outer);
        let mut heads = heads.iter();
        !heads.any(|head| inside(&head.range) || head.gone.iter().any(inside))
    });
    for range in given_away.filter(|range| !unit.source.is_kept(range.start)) {
        draft.list(unit.todo(
            range.start,
            "an embedding's table is transposed for a product that is no layer",
            "hold a `Linear::tied(&embedding, None)` where the product is, and call it",
        ));
    }
    for head in heads {
        if unit.source.is_kept(head.range.start) {
            continue;
        }
        let linear = linear(unit, house, &head.module);
        let is_rewritten = one(unit, draft, &head, &linear);
        if is_rewritten && linear == "Linear" {
            draft.need_name(&head.module, "Linear");
        } else if is_rewritten {
            draft.need(&head.module, house.name(Home::Nn), Home::Nn);
        }
    }
}

/// Rewrites one head, or lists it; whether it was rewritten.
fn one(unit: &Unit<'_>, draft: &mut Draft, head: &Head<'_>, linear: &str) -> bool {
    let declared = head.of.as_ref().and_then(|of| {
        let key = (head.module.clone(), of.clone());
        unit.types.declared.get(&key)?.first()
    });
    let own = declared.and_then(|one| Some((one, untied::field(unit, one, head)?)));
    if let Some((declared, own)) = own {
        let advice = format!(
            "make `{own}` a `Linear`: `{own}.unwrap_or_else(|| \
             Linear::tied(&embedding, None))`; else put `// dynquant: keep` here"
        );
        return untied::rewrite(unit, draft, declared, head, linear).is_some()
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

/// Lists a head, which then is not rewritten.
fn list(unit: &Unit<'_>, draft: &mut Draft, head: &Head<'_>, advice: String) -> bool {
    let what = "a product with an embedding's table is no layer";
    draft.list(unit.todo(head.range.start, what, advice));
    false
}

struct Find<'a, 'u> {
    unit: &'a Unit<'u>,
    module: Module,
    of: Option<String>,
    heads: Vec<Head<'a>>,
    /// Variables that are tables.
    lets: Vec<Table>,
    /// Where tables are transposed.
    transposed: Vec<Range<usize>>,
    around: Vec<&'a Expr>,
}

/// A variable that is a table.
struct Table {
    name: String,
    field: Option<String>,
    /// How often the function mentions it.
    mentions: usize,
    gone: Vec<Range<usize>>,
}

/// The field of `self` whose table this is; `Some(None)` for a table of another embedding.
fn table(expr: &Expr) -> Option<Option<String>> {
    let call = method(expr)?;
    match call.method.to_string().as_str() {
        "t" | "broadcast_left" | "contiguous" | "to_dtype" => table(&call.receiver),
        "embeddings" if call.args.is_empty() => Some(own_field(&call.receiver)),
        _ => None,
    }
}

/// Whether a table is the operand as it stands, not brought to another dtype.
fn is_plain(expr: &Expr) -> bool {
    method(expr).is_none_or(|call| call.method != "to_dtype" && is_plain(&call.receiver))
}

impl<'a> Find<'a, '_> {
    fn is_head(&self) -> bool {
        let Some(of) = &self.of else { return false };
        let key = (self.module.clone(), of.clone());
        self.unit.types.declared.contains_key(&key) && !is_codebook(of)
    }

    fn function(&mut self, block: &'a syn::Block) {
        let lets: Vec<_> = lets(block).collect();
        let text = self.unit.source.slice(block);
        for local in &lets {
            let (Some(init), Some(name)) = (&local.init, variable(&local.pat)) else {
                continue;
            };
            let Some(field) = table(&init.expr).filter(|_| is_plain(&init.expr)) else {
                continue;
            };
            let reads = self.unit.source.slice(&*init.expr);
            // `let b_size = xs.dim(0)?;`, read by this table alone.
            let sizes = lets.iter().filter(|size| {
                let made = size.init.as_ref().and_then(|init| method(&init.expr));
                let name =
                    variable(&size.pat).filter(|_| made.is_some_and(|it| it.method == "dim"));
                name.is_some_and(|it| mentions(reads, &it) == 1 && mentions(text, &it) == 2)
            });
            let gone = sizes.chain([local]);
            let gone = gone.map(|local| self.unit.source.range(*local)).collect();
            let mentions = mentions(text, &name);
            self.lets.push(Table {
                name,
                field,
                mentions,
                gone,
            });
        }
        visit::visit_block(self, block);
        self.lets.clear();
    }
}

impl<'a> Visit<'a> for Find<'a, '_> {
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
        // A table that is transposed and given away is a head elsewhere.
        if call.method == "t" && table(&call.receiver).is_some() {
            self.transposed.push(self.unit.source.range(call));
        }
        let product = call.method == "matmul" || call.method == "broadcast_matmul";
        let Some(operand) = call.args.first().filter(|_| product) else {
            return;
        };
        let transposed = method(operand).is_some_and(|call| call.method == "t");
        let found = table(operand).filter(|_| is_plain(operand));
        let found = found.map(|field| (field, Vec::new()));
        let bound = || {
            let name = ident(&method(operand)?.receiver)?;
            let table = self.lets.iter().find(|table| table.name == name)?;
            // Once where it is bound and once here.
            let field = table.field.clone().filter(|_| table.mentions == 2);
            Some((field, table.gone.clone()))
        };
        let Some((field, gone)) = found.or_else(bound) else {
            return;
        };
        let source = self.unit.source;
        let input = &*call.receiver;
        let borrowed = matches!(input, Expr::Reference(_)) || self.unit.is_borrowed_path(input);
        self.heads.push(Head {
            module: self.module.clone(),
            of: self.of.clone(),
            range: source.range(call),
            input: source.slice(input).to_owned(),
            borrowed,
            field: field.filter(|_| transposed && self.is_head()),
            gone,
            around: self.around.clone(),
        });
    }
}

/// How a module calls our `Linear`.
fn linear(unit: &Unit<'_>, house: &House, module: &[String]) -> String {
    let path = vec!["nn".to_owned(), "Linear".to_owned()];
    let origin = unit.types.scopes.resolve(module, &path[1..]);
    let free = origin == Origin::Other(path[1..].to_vec());
    let mapped = origin.mapped().map(|mapped| mapped.name);
    if free || mapped == Some("Linear") || origin == Origin::Ours(path) {
        return "Linear".to_owned();
    }
    format!("{}::Linear", house.name(Home::Nn))
}

/// The field and its value in every constructor; `None` where a constructor is not understood.
fn edits(
    unit: &Unit<'_>,
    head: &Head<'_>,
    field: &str,
    linear: &str,
) -> Option<Vec<(usize, String)>> {
    let of = head.of.as_deref()?;
    let source = unit.source;
    let key = (head.module.clone(), of.to_owned());
    let [declared] = exactly(unit.types.declared.get(&key)?)?;
    let item = get!(&declared.item, Item::Struct)?;
    let embedding = named(&item.fields, field)?;
    if named(&item.fields, FIELD).is_some() {
        return None;
    }
    let literals = Literals::of(unit, of);
    if literals.found.is_empty() || literals.patterns || !head.module.is_empty() {
        return None;
    }
    let mut edits = Vec::new();
    let at = source.start(embedding);
    let newline = source.newline();
    let indent = source.indent(at);
    edits.push((at, format!("{FIELD}: {linear},{newline}{indent}")));
    for (literal, _) in literals.found {
        let given = given(literal, field)?;
        let name = ident(&given.expr).filter(|_| literal.rest.is_none())?;
        let at = source.start(given);
        let alone = source.text[source.line_start(at)..at].trim().is_empty();
        let gap = if alone {
            format!("{newline}{}", source.indent(at))
        } else {
            " ".to_owned()
        };
        // `tied` writes it as a tied one where it is certain that the name is an embedding.
        edits.push((
            at,
            format!("{FIELD}: {linear}::new({name}.embeddings().clone(), None),{gap}"),
        ));
    }
    // A variable of the field's name would be read in the place of the field.
    let is_shadowed = lets(unit.file).any(|local| binds(&local.pat, FIELD));
    (!is_shadowed).then_some(edits)
}

/// All declarations of variables.
fn lets<T: Tree>(tree: &T) -> impl Iterator<Item = &syn::Local> {
    nodes(tree).filter_map(|node| get!(node, Node::Local))
}
