//! Calls that leave a layer in float: convolutions that are methods of tensors, and layers with
//! computed weights.

use std::collections::BTreeSet;
use std::ops::Range;

use syn::{Expr, ExprCall, ExprMethodCall, ExprTuple};

use super::draft::Draft;
use super::facts::{self, DEPTH, Facts};
use super::functions::inputs;
use super::operands::{Root, Trace};
use super::origins::{TensorOrigin, beginning, origin};
use super::syntax::{
    bare_name, binds, called, ends_with, exactly, get, ident, is, method, segments, strip, tail,
    values, variable,
};
use super::table::list;
use super::types::{is_named, referred};
use super::unit::Unit;
use super::walk::{calls, exprs, method_calls};

/// Methods that compute new values from a tensor.
const COMPUTES: &[&str] = list![
    abs add affine broadcast_add broadcast_div broadcast_matmul broadcast_mul broadcast_sub clamp div
    exp index_add matmul mul neg powf recip sqr sqrt sub tanh where_cond
];

/// The input channels of a convolution that the preset quantizes.
const MIN_CHANNELS: usize = 32;

const LINEAR_ADVICE: &str = "quantized, it is saved only under a name: `nn::Linear::computed(inputs, \
    outputs, vb.pp(name), || Ok((weight, bias)))`; or compute with what the layer is given or gives; \
    or put `// dynquant: keep` here";

/// Lists convolutions that are no layers, and layers with computed weights; names those that are
/// computed from tensors of one `VarBuilder`.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        for expr in exprs(facts.function.block) {
            let (at, found) = match expr {
                Expr::Call(call) => (unit.source.start(&call.func), computed(facts, call)),
                Expr::MethodCall(call) => {
                    (unit.source.start(&call.method), convolution(facts, call))
                }
                _ => continue,
            };
            match found.filter(|_| !unit.source.is_kept(at)) {
                Some(Found::Listed(what, advice)) => draft.list(unit.todo(at, what, advice)),
                Some(Found::Named(edits)) => draft.edits.replace_all(edits),
                None => {}
            }
        }
    }
}

/// A call that leaves a layer in float, or one that cannot be saved.
enum Found {
    /// A description, and advice.
    Listed(String, String),
    Named([(Range<usize>, String); 3]),
}

/// A layer with a computed weight.
fn computed(facts: Facts<'_>, call: &ExprCall) -> Option<Found> {
    let origin = facts.resolve(&segments(called(call)?));
    let [.., layer, new] = origin.in_library()? else { return None };
    let is_made = match layer.as_str() {
        "Linear" => ["new", "from_weights"].contains(&new.as_str()),
        "Conv1d" | "Conv2d" | "ConvTranspose1d" => new == "new",
        _ => false,
    };
    let weight = call.args.first().filter(|_| is_made)?;
    let is_read = beginning(facts, weight) > TensorOrigin::Computed;
    if !is_read || !is_computed(facts, weight, DEPTH, &mut BTreeSet::new()) {
        return None;
    }
    let what = format!("the weight of a `{layer}` is computed when it is loaded");
    if layer == "Linear" {
        return Some(Found::Listed(what, LINEAR_ADVICE.into()));
    }
    let advice = format!(
        "quantized, it is saved only under a name: `nn::{layer}::computed(weight, bias, config, \
    vb.pp(name))?`; or put `// dynquant: keep` here"
    );
    Some(named(facts, call).map_or(Found::Listed(what, advice), Found::Named))
}

/// The edits that name a convolution by the function's only `VarBuilder`, of which all tensors are
/// read.
fn named(facts: Facts<'_>, call: &ExprCall) -> Option<[(Range<usize>, String); 3]> {
    let (source, function) = (facts.unit.source, facts.function);
    let is_builder = |input: &&syn::PatType| is_named(referred(&input.ty), "VarBuilder");
    let [builder] = exactly(inputs(function.signature).filter(is_builder))?;
    let name = variable(&builder.pat)?;
    let is_bound = facts.bindings(&name).is_some_and(|all| !all.found.is_empty());
    let reads = |call: &&ExprMethodCall| {
        let method = call.method.to_string();
        is(&call.receiver, &name) && (method.starts_with("get") || method == "contains_tensor")
    };
    let reads = method_calls(function.block).filter(reads).count();
    let uses = exprs(function.block).filter(|expr| bare_name(expr).as_ref() == Some(&name));
    if is_bound || reads == 0 || uses.count() != reads {
        return None;
    }
    let new = source.range(&called(call)?.segments.last()?.ident);
    let (last, end) = (source.range(call.args.last()?).end, source.range(call).end);
    Some([
        (new, "computed".to_owned()),
        (last..last, format!(", {name}.clone()")),
        (end..end, "?".to_owned()),
    ])
}

/// The description of a convolution that is a method of a tensor, by a field or a tensor that is
/// read, and advice.
fn convolution(facts: Facts<'_>, call: &ExprMethodCall) -> Option<Found> {
    let (unit, name) = (facts.unit, call.method.to_string());
    // The place of the groups among the arguments, and the axis of the input channels.
    let (layer, at, axis) = match name.trim_end_matches("_with_algo") {
        "conv1d" => ("Conv1d", 4, 1),
        "conv2d" => ("Conv2d", 4, 1),
        "conv_transpose1d" => ("ConvTranspose1d", 5, 0),
        _ => return None,
    };
    let (weight, groups) = (call.args.first()?, call.args.iter().nth(at)?);
    let groups = sizes(facts, groups, 4);
    if !groups.iter().any(|size| size.is_none_or(|size| size == 1)) {
        return None;
    }
    let mut fields = Trace::new(facts).roots(weight).into_iter().filter_map(|root| match root {
        Root::Field(holder, field) => Some((holder, field)),
        _ => None,
    });
    let read =
        fields.find(|(holder, field)| origin(unit, holder, field).0 > TensorOrigin::Computed);
    let is_narrow = match read {
        Some((holder, field)) => unit.built.given(&holder, &field).any(|value| {
            let facts = Facts::around(unit, unit.source.start(value));
            facts.is_some_and(|facts| is_narrow(facts, value, axis))
        }),
        None if shape(facts, weight).is_none() => return None,
        None => is_narrow(facts, weight, axis),
    };
    let condition = if groups.contains(&None) { "if its groups are 1: " } else { "" };
    let advice = format!(
        "{condition}hold `nn::{layer}::new(weight, bias, config)`, and call its `forward`; or put \
         `// dynquant: keep` here"
    );
    let what = format!("`{name}` is no layer, and stays in float");
    (!is_narrow).then_some(Found::Listed(what, advice))
}

/// Whether a weight has too few input channels to be quantized, by the shape with which it is read.
fn is_narrow(facts: Facts<'_>, weight: &Expr, axis: usize) -> bool {
    let channels = shape(facts, weight).and_then(|shape| shape.elems.iter().nth(axis));
    let sizes = channels.map_or(vec![None], |channels| sizes(facts, channels, 4));
    sizes.iter().all(|size| size.is_some_and(|size| size < MIN_CHANNELS))
}

/// The shape with which a weight is read.
fn shape<'e>(facts: Facts<'e>, weight: &'e Expr) -> Option<&'e ExprTuple> {
    let call = method(facts.definition(weight).unwrap_or(weight))?;
    if call.method.to_string().starts_with("get") {
        get!(call.args.first()?, Expr::Tuple)
    } else {
        shape(facts, &call.receiver)
    }
}

/// The sizes that an expression may have; `None` for a size that is not known.
fn sizes(facts: Facts<'_>, expr: &Expr, depth: usize) -> Vec<Option<usize>> {
    let Some(depth) = depth.checked_sub(1) else { return vec![None] };
    if let Expr::Lit(literal) = strip(expr) {
        return vec![get!(&literal.lit, syn::Lit::Int).and_then(|size| size.base10_parse().ok())];
    }
    let Some(name) = ident(expr) else { return vec![None] };
    if let Some(value) = facts.definition(expr) {
        return sizes(facts, value, depth);
    }
    let unit = facts.unit;
    let mut given = inputs(facts.function.signature);
    let Some(number) = given.position(|input| binds(&*input.pat, &name)) else {
        return unit.built.sizes.get(&name).map_or(vec![None], |value| sizes(facts, value, depth));
    };
    let mut found = Vec::new();
    for caller in facts::all(unit) {
        for call in calls(caller.function.block) {
            let path = called(call).map(segments).unwrap_or_default();
            let [before @ .., last] = &path[..] else { continue };
            let owner = caller.owner_of(before);
            if facts.function.signature.ident == last && facts.function.owner.as_ref() == owner {
                let size = call.args.iter().nth(number);
                found.extend(size.into_iter().flat_map(|size| sizes(caller, size, depth)));
            }
        }
    }
    if found.is_empty() { vec![None] } else { found }
}

/// Whether a tensor is computed from other values; skips the expressions in `seen`.
fn is_computed(facts: Facts<'_>, expr: &Expr, depth: usize, seen: &mut BTreeSet<usize>) -> bool {
    let start = |expr: &Expr| facts.start(expr);
    let Some(depth) = depth.checked_sub(1) else { return false };
    let parts: Vec<&Expr> = match strip(expr) {
        Expr::Binary(_) => return true,
        Expr::MethodCall(call) if COMPUTES.iter().any(|name| call.method == name) => return true,
        Expr::MethodCall(call) => vec![&call.receiver],
        Expr::Call(call) => {
            let Some(path) = called(call) else { return false };
            if ["cat", "stack"].iter().any(|name| ends_with(path, name)) {
                return true;
            }
            let name = segments(path).pop().unwrap_or_default();
            let helper = facts::of_name(facts.unit, &name).next();
            if let Some((helper, last)) =
                helper.and_then(|one| Some((one, tail(one.function.block)?)))
            {
                return seen.insert(start(last)) && is_computed(helper, last, depth, seen);
            }
            call.args.iter().filter(|_| name == "Ok" || name == "Some").collect()
        }
        path @ Expr::Path(_) => {
            let name = ident(path).unwrap_or_default();
            let definitions = facts.definitions(&name, start(path)).into_iter();
            definitions.filter(|definition| seen.insert(start(definition))).collect()
        }
        other => values(other),
    };
    parts.into_iter().any(|part| is_computed(facts, part, depth, seen))
}
