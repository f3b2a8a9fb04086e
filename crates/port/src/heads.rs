//! Rewrites a head that multiplies by an embedding's table as a `Linear` with that table.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, Item};

use super::built::given;
use super::draft::Draft;
use super::facts::{self, Facts};
use super::head::Head;
use super::names::Modules;
use super::scopes::Origin;
use super::source::is_inside;
use super::syntax::{binds, exactly, get, ident, mentions, method, own_field, variable};
use super::table::{Home, is_codebook};
use super::types::{Declared, key, named};
use super::unit::Unit;
use super::untied;
use super::walk::{Node, Tree, nodes};

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
    let field = declared.and_then(|one| Some((one, untied::field(unit, one, head)?)));
    if let Some((declared, field)) = field {
        let advice = format!(
            "make `{field}` a `Linear`: `{field}.unwrap_or_else(|| \
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

/// Lists a head, which is then not rewritten.
fn list(unit: &Unit<'_>, draft: &mut Draft, head: &Head<'_>, advice: String) -> bool {
    let what = "a product with an embedding's table is no layer";
    draft.list(unit.todo(head.range.start, what, advice));
    false
}

/// The declarations of the type that a function belongs to.
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
            self.transposed.push(self.facts.unit.source.range(call));
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
            // The mention in its binding and the mention here.
            let field = table.field.clone().filter(|_| table.mentions == 2);
            Some((field, table.gone.clone()))
        };
        let Some((field, gone)) = found.or_else(bound) else {
            return;
        };
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
    let literals = unit.built.literals(&key(declared))?;
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
