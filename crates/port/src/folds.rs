//! Folds batch norms into the convolutions directly before them.

use std::ops::Range;

use syn::{Expr, ExprMethodCall, Field, Fields, Item, Lit, Visibility};

use super::built::given;
use super::closures::Search;
use super::draft::Draft;
use super::facts::{self, Facts};
use super::scopes::Origin;
use super::source::is_inside;
use super::syntax::{
    applied, called, exactly, get, has_attribute, ident, is, mentions, own_field, segments, tail,
    untyped, values, variable,
};
use super::types::{is_named, named};
use super::unit::Unit;
use super::walk::{Node, exprs, method_calls, nodes};

/// The changes that fold a norm; `None` if they are not certain.
type Changes = Option<Vec<(Range<usize>, String)>>;

/// Folds the norms that are certain: both layers are variables, loaded in the same function, or
/// fields of `self`, given in one literal, and read nowhere else.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    draft.edits.replace_all(all(unit).filter_map(|(_, changes)| changes).flatten());
}

/// Lists the norms that stay.
pub fn list(unit: &Unit<'_>, draft: &mut Draft) {
    for (at, _) in all(unit).filter(|(_, changes)| changes.is_none()) {
        let what = "a batch norm stays: it or the convolution before it has other uses";
        let advice = "call `conv.absorb_bn(&norm)?` where both are loaded, and leave the norm out; \
                      or put `// dynquant: keep` here";
        draft.list(unit.todo(at, what, advice));
    }
}

/// The norms in evaluation mode of outputs of convolutions, each with its place.
fn all(unit: &Unit<'_>) -> impl Iterator<Item = (usize, Changes)> {
    facts::all(unit).flat_map(move |facts| {
        method_calls(facts.function.block).filter_map(move |call| {
            let (norm, input) = normed(call)?;
            let (conv, output) = convolved(&facts, input)?;
            let at = unit.source.start(norm);
            let is_convolution =
                facts.holds(conv, Search::CONVOLUTION) || facts.wraps(conv).is_some();
            let is_kept = unit.is_left_out(at) || unit.source.is_kept(at);
            let is_it = is_convolution && facts.holds(norm, Search::BATCH_NORM) && !is_kept;
            is_it.then(|| (at, changes(&facts, [conv, norm], call, output)))
        })
    })
}

/// The norm and its input in `norm.forward_t(input, false)` or `input.apply_t(norm, false)`.
fn normed(call: &ExprMethodCall) -> Option<(&Expr, &Expr)> {
    let [first, train] = exactly(&call.args)?;
    let train = get!(&get!(train, Expr::Lit)?.lit, Lit::Bool)?;
    match call.method.to_string().as_str() {
        "forward_t" if !train.value => Some((&call.receiver, first)),
        "apply_t" if !train.value => Some((first, &call.receiver)),
        _ => None,
    }
}

/// The layer and its output in `layer.forward(xs)?`, in a reference to that, or in a variable of
/// that which is read once: the output that a norm leaves, a `Result` or the variable.
fn convolved<'u>(facts: &Facts<'u>, expr: &'u Expr) -> Option<(&'u Expr, &'u Expr)> {
    match expr {
        Expr::Reference(inner) => convolved(facts, &inner.expr),
        Expr::Try(tried) => {
            let call = get!(&*tried.expr, Expr::MethodCall).filter(|call| call.args.len() == 1)?;
            Some((applied(call)?.0, &tried.expr))
        }
        Expr::Path(_) => {
            let (local, source) = (loaded(facts, expr)?, facts.unit.source);
            let between = &source.text[source.range(local).end..source.start(expr)];
            // In a block or a closure the variable may be moved more than once.
            let is_same_block = !between.contains(['{', '|']);
            let (layer, _) = convolved(facts, &local.init.as_ref()?.expr)?;
            is_same_block.then_some((layer, expr))
        }
        _ => None,
    }
}

/// The changes that fold a norm and leave it out of a call, which is its input then.
fn changes(facts: &Facts<'_>, layers: [&Expr; 2], call: &ExprMethodCall, input: &Expr) -> Changes {
    let source = facts.unit.source;
    if facts.unit.world.sets_variables() {
        return None;
    }
    let mut changes = match layers.map(own_field) {
        [Some(conv), Some(norm)] => fields(facts, layers[0], &[conv, norm])?,
        _ => variables(facts, layers)?,
    };
    let (mut outer, inner) = (source.range(call), source.range(input));
    let mut ends = ["", ""];
    if let Some(name) = ident(input) {
        // A condition may take the variable each time that it runs.
        let mut loops = exprs(facts.function.block).filter_map(|expr| get!(expr, Expr::While));
        if loops.any(|each| is_inside(&outer, &source.range(&*each.cond))) {
            return None;
        }
        // A variable holds no `Result`, and the error of one that is handled here is unknown.
        let rest = source.text[outer.end..].trim_start();
        match rest.chars().next() {
            Some('?') => outer.end = source.text.len() - rest.len() + 1,
            Some('}') => ends = ["Ok(", ")"],
            _ => return None,
        }
        let before = source.text[..outer.start].trim_end();
        let bound = before.strip_suffix(&format!("let {name} ="));
        if let Some(before) = bound.filter(|_| source.text[outer.end..].starts_with(';')) {
            let statement = source.with_comments(before.len()..outer.end + 1);
            changes.push((statement, String::new()));
            return Some(changes);
        }
    }
    let sides = [outer.start..inner.start, inner.end..outer.end];
    let has_comment = |side: &Range<usize>| source.text[side.clone()].contains("//");
    changes.extend(sides.iter().cloned().zip(ends.map(str::to_owned)));
    (!sides.iter().any(has_comment)).then_some(changes)
}

/// The change that folds the norm behind the later of the two statements that load.
fn variables(facts: &Facts<'_>, layers: [&Expr; 2]) -> Changes {
    let source = facts.unit.source;
    let [a, b] = layers.map(|layer| Some(source.range(loaded(facts, layer)?).end));
    let last = a?.max(b?);
    let [conv, norm] = [ident(layers[0])?, ident(layers[1])?];
    let line = source.next_line(last);
    let fold = format!("{line}let {conv} = {conv}.absorb_bn(&{norm})?;");
    // Loaded behind the call, the norm is no part of it.
    let is_certain = last < source.start(layers[0]) && facts.takes_errors(last);
    is_certain.then(|| vec![(last..last, fold)])
}

/// The statement that gives a variable the value of a `Result`, if the variable is read here alone.
fn loaded<'u>(facts: &Facts<'u>, read: &Expr) -> Option<&'u syn::Local> {
    let (source, block, name) = (facts.unit.source, facts.function.block, ident(read)?);
    let bindings = facts.bindings(&name)?;
    let bound = |read: &Expr| {
        let at = source.start(read);
        Some(bindings.last(at, at)?.at)
    };
    let end = bound(read)?;
    let mut locals = nodes(block).filter_map(|node| get!(node, Node::Local));
    let local = locals.find(|local| source.range(*local).end == end)?;
    let is_plain = local.attrs.is_empty() && variable(untyped(&local.pat)).is_some();
    let is_tried = matches!(&*local.init.as_ref()?.expr, Expr::Try(_));
    let reads = nodes(block).filter(|node| match node {
        Node::Expr(expr @ Expr::Path(_)) => is(expr, &name) && bound(expr) == Some(end),
        Node::Macro(call) => mentions(&call.tokens.to_string(), &name) > 0,
        _ => false,
    });
    let is_certain = is_plain && is_tried && reads.count() == 1;
    (is_certain && !source.is_kept(source.start(local))).then_some(local)
}

/// The changes that fold the norm where the type is built, and remove the norm's field.
fn fields(facts: &Facts<'_>, layer: &Expr, names: &[String; 2]) -> Changes {
    let (unit, source, function) = (facts.unit, facts.unit.source, facts.function);
    let key = (function.module.clone(), function.owner.clone()?);
    let [declared] = exactly(unit.types.declared.get(&key)?)?;
    let list = &get!(&get!(&declared.item, Item::Struct)?.fields, Fields::Named)?.named;
    let held = [named(list, &names[0])?, named(list, &names[1])?];
    let literals = unit.built.literals.get(&key)?.found.iter();
    // Others copy both from a value.
    let gives = |literal| names.iter().any(|name| given(literal, name).is_some());
    let [(literal, _)] = exactly(literals.filter(|(literal, _)| gives(literal)))?;
    let [conv, norm] = [given(literal, &names[0])?, given(literal, &names[1])?];
    let [value, norm_value] = [conv, norm].map(|given| source.slice(&given.expr));
    let drops = |ty: &str| unit.types.implementing("Drop").any(|(_, one)| is_named(one, ty));
    let folded = match facts.wraps(layer) {
        // The wrapper's other fields are moved out of it, which its `drop` would forbid.
        Some((ty, field)) if ident(&conv.expr).is_some() && !drops(&ty) => {
            format!("{ty} {{ {field}: {value}.{field}.absorb_bn(&{norm_value})?, ..{value} }}")
        }
        Some(_) => return None,
        None => format!("{value}.absorb_bn(&{norm_value})?"),
    };
    // A value is not moved past others that may take what it reads.
    let between = source.text.get(source.range(conv).end..source.start(norm));
    let in_order = between.is_some_and(|between| between.trim() == ",");
    let is_value = matches!(conv.expr, Expr::Path(_) | Expr::Try(_));
    let is_plain = is_value && (in_order || ident(&norm.expr).is_some());
    // Files that are not given may read a visible field; modules of the type's read any.
    let is_visible = |one: &Field| !matches!(one.vis, Visibility::Inherited);
    let is_type = |line: &str| line.trim_start_matches("pub ").starts_with("type ");
    let alias = |line: &str| is_type(line.trim_start()) && mentions(line, &key.1) > 0;
    let is_seen = held.into_iter().any(is_visible)
        || unit.world.is_named_elsewhere(unit.path, &key.1)
        || unit.world.is_read_below(unit.path)
        || source.text.lines().any(alias);
    let reads = |name| unit.built.self_reads(&key, name);
    let is_sole = !is_seen && names.iter().all(|name| matches!(reads(name), Some((1, _))));
    let is_kept = has_attribute(&held[1].attrs, "cfg") || source.is_kept(source.start(held[1]));
    let at = source.start(*literal);
    let takes_errors = Facts::around(unit, at)?.takes_errors(at);
    let is_certain = takes_errors && is_plain && is_sole && !is_kept;
    is_certain.then(|| {
        vec![
            (source.item_of_list(list, held[1]), String::new()),
            (source.range(conv), format!("{}: {folded}", names[0])),
            (source.item_of_list(&literal.fields, norm), String::new()),
        ]
    })
}

impl Facts<'_> {
    /// Whether a variable, or a field of `self`, is a layer that is searched for.
    fn holds(&self, expr: &Expr, search: Search) -> bool {
        if let Some(field) = own_field(expr) {
            let ty = self.field_type(&field);
            return ty.is_some_and(|ty| self.is_layer_type(ty, 0, search));
        }
        // Arguments of a closure that is given its layers are called as these.
        match self.definition(expr) {
            Some(value) => self.gives_layer(value, None, 0, search),
            None => {
                ident(expr).is_some_and(|name| self.is_layer(&name, self.start(expr), 0, search))
            }
        }
    }

    /// Whether `?` takes candle's errors at a byte of the function: a loader is asked so there, or
    /// the function returns a `Result` that is known to.
    fn takes_errors(&self, at: usize) -> bool {
        let (source, block) = (self.unit.source, self.function.block);
        // The closure or the item around a byte, from which `?` returns.
        let around = |at: usize| {
            let all = nodes(block).filter_map(|node| match node {
                Node::Expr(expr @ (Expr::Async(_) | Expr::Closure(_))) => Some(source.range(expr)),
                Node::Item(item) => Some(source.range(item)),
                _ => None,
            });
            all.filter(|range| range.contains(&at)).last()
        };
        let mut asked = exprs(block).filter_map(|expr| get!(expr, Expr::Try));
        let is_asked = asked.any(|asked| {
            let path = get!(&*asked.expr, Expr::Call).and_then(called);
            let is_loader = path.is_some_and(|path| match self.resolve(&segments(path)) {
                Origin::Nn(_) | Origin::Traced(_) => true,
                Origin::Ours(path) => path.first().is_some_and(|name| name == "nn"),
                _ => false,
            });
            is_loader && around(source.start(asked)) == around(at)
        });
        let known = ["anyhow", "candle", "candle_core"];
        is_asked || around(at).is_none() && self.returns_result_of(&known)
    }

    /// The type of a field of `self` whose `forward` calls a convolution on another input, and the
    /// field with the convolution.
    fn wraps(&self, expr: &Expr) -> Option<(String, String)> {
        let ty = self.text(self.field_type(&own_field(expr)?)?);
        let forward = facts::of_name(self.unit, "forward").filter(|Facts { function, .. }| {
            function.owner.as_deref() == Some(ty) && function.module == self.function.module
        });
        let [forward] = exactly(forward)?;
        let block = forward.function.block;
        let returns = exprs(block).any(|expr| matches!(expr, Expr::Return(_)));
        let outputs = outputs(tail(block)?);
        let layers = outputs.iter().map(|output| {
            let (layer, _) = applied(get!(output, Expr::MethodCall)?)?;
            own_field(layer).filter(|_| forward.holds(layer, Search::CONVOLUTION))
        });
        let mut layers = layers.collect::<Option<Vec<_>>>()?;
        layers.dedup();
        let [field] = exactly(layers)?;
        // Other calls of the convolution would be followed by the norm, too.
        let key = (self.function.module.clone(), ty.to_owned());
        let reads = self.unit.built.self_reads(&key, &field)?.0;
        (!returns && reads == outputs.len()).then(|| (ty.to_owned(), field))
    }
}

/// The values of a choice or a block, at any depth.
fn outputs(expr: &Expr) -> Vec<&Expr> {
    match values(expr) {
        inner if inner.is_empty() => vec![expr],
        inner => inner.into_iter().flat_map(outputs).collect(),
    }
}
