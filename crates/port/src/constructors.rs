//! Calls of candle's constructors whose layers could be quantized better: convolutions of size 1,
//! and computed weights.

use std::collections::BTreeSet;

use syn::{Expr, ExprCall};

use super::draft::Draft;
use super::facts::{self, DEPTH, Facts};
use super::origins::{TensorOrigin, beginning};
use super::scopes::Origin;
use super::syntax::{called, ends_with, get, ident, member, segments, strip, tail, values};
use super::table::list;
use super::unit::Unit;
use super::walk::exprs;

/// Methods that compute new values from a tensor.
const COMPUTES: &[&str] = list![
    abs add affine broadcast_add broadcast_div broadcast_matmul broadcast_mul broadcast_sub clamp div
    exp index_add matmul mul neg powf recip sqr sqrt sub tanh where_cond
];

const COMPUTED: (&str, &str) = (
    "the weight of a `Linear` is computed when it is loaded",
    "quantized, it is saved only under a name: `nn::Linear::computed(inputs, outputs, vb.pp(name), || \
     Ok((weight, bias)))`; or compute with what the layer is given or gives; or put `// dynquant: \
     keep` here",
);

/// Lists convolutions of size 1, and layers with computed weights.
pub fn list(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        for call in exprs(facts.function.block).filter_map(|expr| get!(expr, Expr::Call)) {
            let at = unit.source.start(&call.func);
            if let Some((what, advice)) = found(facts, call).filter(|_| !unit.source.is_kept(at)) {
                draft.list(unit.todo(at, what, advice));
            }
        }
    }
}

/// The description of a listed call, and advice.
fn found(facts: Facts<'_>, call: &ExprCall) -> Option<(String, String)> {
    let path = match facts.resolve(&segments(called(call)?)) {
        Origin::Nn(path) | Origin::Traced(path) | Origin::Ours(path) => path,
        _ => return None,
    };
    let first = call.args.first()?;
    let ones = match path
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [.., "Linear", "new" | "from_weights"] => {
            let is_read = beginning(facts, first) > TensorOrigin::Computed;
            let computed = is_read && is_computed(facts, first, DEPTH, &mut BTreeSet::new());
            return computed.then(|| (COMPUTED.0.into(), COMPUTED.1.into()));
        }
        [.., "conv1d" | "conv1d_no_bias"] => "1",
        [.., "conv2d" | "conv2d_no_bias"] => "1, 1",
        _ => return None,
    };
    let mut arguments = call.args.iter().skip(2);
    let is_one = |expr: &Expr| facts.unit.source.slice(resolved(facts, expr)) == "1";
    let plain = match strip(resolved(facts, arguments.clone().nth(1)?)) {
        Expr::Struct(config) => config.fields.iter().all(|field| {
            let counts = ["groups", "stride"].contains(&member(&field.member).as_str());
            !counts || is_one(&field.expr)
        }),
        _ => true,
    };
    (plain && is_one(arguments.next()?)).then(|| {
        let name = path.last().map(String::as_str).unwrap_or_default();
        let advice = format!(
            "if its stride and groups are 1: hold `nn::Linear::new(vb.get((out, in, {ones}), \
             \"weight\")?.flatten_from(1)?, bias)`, and apply it where channels are the last \
             dimension; or put `// dynquant: keep` here"
        );
        (
            format!("`{name}` of size 1 is a `Linear` by another name, and stays in float"),
            advice,
        )
    })
}

/// The last definition of a variable, or the expression itself.
fn resolved<'e>(facts: Facts<'e>, expr: &'e Expr) -> &'e Expr {
    let at = facts.unit.source.start(expr);
    let definition = ident(expr).and_then(|name| facts.definitions(&name, at).into_iter().next());
    definition.unwrap_or(expr)
}

/// Whether a tensor is computed from other values; skips the expressions in `seen`.
fn is_computed(facts: Facts<'_>, expr: &Expr, depth: usize, seen: &mut BTreeSet<usize>) -> bool {
    let start = |expr: &Expr| facts.unit.source.start(expr);
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    let parts: Vec<&Expr> = match strip(expr) {
        Expr::Binary(_) => return true,
        Expr::MethodCall(call) if COMPUTES.iter().any(|name| call.method == name) => return true,
        Expr::MethodCall(call) => vec![&call.receiver],
        Expr::Call(call) => {
            let Some(path) = called(call) else {
                return false;
            };
            if ["cat", "stack"].iter().any(|name| ends_with(path, name)) {
                return true;
            }
            let name = segments(path).pop().unwrap_or_default();
            let helper = facts::all(facts.unit).find(|one| one.function.signature.ident == name);
            if let Some((helper, last)) =
                helper.and_then(|one| Some((one, tail(one.function.block)?)))
            {
                return seen.insert(start(last)) && is_computed(helper, last, depth, seen);
            }
            call.args
                .iter()
                .filter(|_| name == "Ok" || name == "Some")
                .collect()
        }
        path @ Expr::Path(_) => {
            let name = ident(path).unwrap_or_default();
            let definitions = facts.definitions(&name, start(path)).into_iter();
            definitions
                .filter(|definition| seen.insert(start(definition)))
                .collect()
        }
        other => values(other),
    };
    parts
        .into_iter()
        .any(|part| is_computed(facts, part, depth, seen))
}
