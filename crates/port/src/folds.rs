//! Folds batch norms into the convolutions directly before them.

use std::ops::Range;

use syn::{Expr, ExprMethodCall, Lit};

use super::closures::Search;
use super::draft::Draft;
use super::facts::{self, Facts};
use super::syntax::{applied, exactly, get, ident, is, mentions, untyped, variable};
use super::unit::Unit;
use super::walk::{Node, exprs, nodes};

/// The changes that fold a norm; `None` if they are not certain.
type Changes = Option<Vec<(Range<usize>, String)>>;

/// Folds the norms that are certain: both layers are variables, loaded in the same function and
/// read nowhere else.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for (range, text) in all(unit).filter_map(|(_, changes)| changes).flatten() {
        draft.edits.replace(range, text);
    }
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
        let calls = exprs(facts.function.block).filter_map(|expr| get!(expr, Expr::MethodCall));
        calls.filter_map(move |call| {
            let (norm, input) = normed(call)?;
            let (inner, conv) = convolved(input)?;
            let (names, at) = ([ident(conv)?, ident(norm)?], unit.source.start(norm));
            // Arguments of a closure that is given its layers are called as these.
            let is = |name: &str, search| match facts.definitions(name, at).first() {
                Some(value) => facts.gives_layer(value, None, 0, search),
                None => facts.is_layer(name, at, 0, search),
            };
            let is_norm = is(&names[0], Search::CONVOLUTION) && is(&names[1], Search::BATCH_NORM);
            let is_kept = unit.is_left_out(at) || unit.source.is_kept(at);
            let calls = [call, inner].map(|call| unit.source.range(call));
            (is_norm && !is_kept).then(|| (at, changes(&facts, &names, calls)))
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

/// The call and its layer in `layer.forward(xs)?`, or in a reference to that.
fn convolved(expr: &Expr) -> Option<(&ExprMethodCall, &Expr)> {
    match expr {
        Expr::Reference(inner) => convolved(&inner.expr),
        Expr::Try(tried) => {
            let call = get!(&*tried.expr, Expr::MethodCall).filter(|call| call.args.len() == 1)?;
            Some((call, applied(call)?.0))
        }
        _ => None,
    }
}

/// The changes that fold the norm behind the later of the two statements that load, and leave it
/// out of the outer call, which is the inner call then.
fn changes(facts: &Facts<'_>, names: &[String; 2], [outer, inner]: [Range<usize>; 2]) -> Changes {
    let (source, [conv, norm]) = (facts.unit.source, names);
    let last = loaded(facts, conv)?.max(loaded(facts, norm)?);
    let line = source.next_line(last);
    let fold = format!("{line}let {conv} = {conv}.absorb_bn(&{norm})?;");
    let sides = [outer.start..inner.start, inner.end..outer.end];
    let has_comment = sides
        .iter()
        .any(|side| source.text[side.clone()].contains("//"));
    let sides = sides.into_iter().filter(|side| !side.is_empty());
    let sides = sides.map(|side| (side, String::new()));
    (!has_comment).then(|| sides.chain([(last..last, fold)]).collect())
}

/// The end of the statement that loads a layer, if the layer is read in one place.
fn loaded(facts: &Facts<'_>, name: &str) -> Option<usize> {
    let (source, block) = (facts.unit.source, facts.function.block);
    let [bound] = exactly(&facts.bindings(name)?.found)?;
    let mut locals = nodes(block).filter_map(|node| get!(node, Node::Local));
    let local = locals.find(|local| source.range(*local).end == bound.at)?;
    let is_plain = local.attrs.is_empty() && variable(untyped(&local.pat)).is_some();
    let is_tried = matches!(bound.value, Some(Expr::Try(_)));
    let reads = nodes(block).filter(|node| match node {
        Node::Expr(expr @ Expr::Path(_)) => is(expr, name),
        Node::Macro(call) => mentions(&call.tokens.to_string(), name) > 0,
        _ => false,
    });
    let is_certain = is_plain && is_tried && reads.count() == 1;
    (is_certain && !source.is_kept(source.start(local))).then_some(bound.at)
}
