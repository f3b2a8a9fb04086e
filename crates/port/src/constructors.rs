//! Calls of candle's constructors whose layers could be quantized better: convolutions of size 1,
//! and computed weights.

use std::collections::BTreeSet;

use syn::{Expr, ExprCall, ExprMethodCall};

use super::draft::Draft;
use super::facts::{self, DEPTH, Facts};
use super::functions::inputs;
use super::operands::{Root, Trace};
use super::origins::{TensorOrigin, beginning, origin};
use super::scopes::Origin;
use super::syntax::{
    binds, called, ends_with, get, ident, member, method, segments, strip, tail, values,
};
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
        for expr in exprs(facts.function.block) {
            let (at, found) = match expr {
                Expr::Call(call) => (unit.source.start(&call.func), found(facts, call)),
                Expr::MethodCall(call) => (unit.source.start(&call.method), raw(facts, call)),
                _ => continue,
            };
            if let Some((what, advice)) = found.filter(|_| !unit.source.is_kept(at)) {
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
    let (one, name, config) = match path
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
        [.., "Conv1d" | "Conv2d", "new"] => (kernel(facts, first), &path[path.len() - 2], 2),
        [.., name] if name.starts_with("conv1d") || name.starts_with("conv2d") => {
            let size = call.args.iter().nth(2)?;
            (is_one(facts, size), &path[path.len() - 1], 3)
        }
        _ => return None,
    };
    let plain = |field: &syn::FieldValue| match member(&field.member).as_str() {
        "groups" | "stride" => sizes(facts, &field.expr, 4).contains(&Some(1)),
        "padding" => may_be(facts, &field.expr, 0),
        _ => true,
    };
    let config = get!(
        strip(resolved(facts, call.args.iter().nth(config)?)),
        Expr::Struct
    );
    let plain = config.is_none_or(|config| config.fields.iter().all(plain));
    convolution(name, one).filter(|_| plain)
}

/// The same of a convolution that is a method of a tensor, by a field or a tensor that is read.
fn raw(facts: Facts<'_>, call: &ExprMethodCall) -> Option<(String, String)> {
    let (unit, name) = (facts.unit, call.method.to_string());
    let args: Vec<_> = call.args.iter().collect();
    let ("conv1d" | "conv2d", [weight, padding, stride, _, groups, ..]) = (&*name, &*args) else {
        return None;
    };
    let plain = may_be(facts, padding, 0) && may_be(facts, stride, 1) && may_be(facts, groups, 1);
    let roots = Trace::new(facts).roots(weight).into_iter();
    let mut fields = roots.filter_map(|root| match root {
        Root::Field(holder, field) => Some((holder, field)),
        _ => None,
    });
    let read =
        fields.find(|(holder, field)| origin(unit, holder, field).0 > TensorOrigin::Computed);
    let one = match read {
        Some((holder, field)) => {
            let given = unit.built.given(&holder, &field);
            let of_value = |value| kernel(Facts::around(unit, unit.source.start(value))?, value);
            same(&given.map(of_value).collect::<Vec<_>>())
        }
        None => Some(kernel(facts, weight)?),
    };
    convolution(&name, one).filter(|_| plain)
}

/// The description of a convolution, if its size is or may be 1.
fn convolution(name: &str, one: Option<bool>) -> Option<(String, String)> {
    let size = match one {
        Some(true) => "of size 1 is a `Linear` by another name",
        Some(false) => return None,
        None => "is a `Linear` by another name if its size is 1",
    };
    let ones = if name.contains("2d") { "1, 1" } else { "1" };
    let advice = format!(
        "if its stride and groups are 1: hold `nn::Linear::new(vb.get((out, in, {ones}), \
         \"weight\")?.flatten_from(1)?, bias)`, and apply it where channels are the last \
         dimension; or put `// dynquant: keep` here"
    );
    Some((format!("`{name}` {size}, and stays in float"), advice))
}

/// Whether a size is 1; `None` if that is not known, or differs between calls.
fn is_one(facts: Facts<'_>, expr: &Expr) -> Option<bool> {
    let sizes = sizes(facts, expr, 4).into_iter();
    same(&sizes.map(|size| Some(size? == 1)).collect::<Vec<_>>())
}

/// The common value of all elements, if it is known.
fn same(all: &[Option<bool>]) -> Option<bool> {
    let first = (*all.first()?)?;
    all.iter().all(|one| *one == Some(first)).then_some(first)
}

fn may_be(facts: Facts<'_>, expr: &Expr, size: usize) -> bool {
    let sizes = sizes(facts, expr, 4);
    sizes.contains(&None) || sizes.contains(&Some(size))
}

/// Whether the kernel of a weight has size 1, by the shape with which it is read.
fn kernel(facts: Facts<'_>, weight: &Expr) -> Option<bool> {
    let call = method(resolved(facts, weight))?;
    if !call.method.to_string().starts_with("get") {
        return kernel(facts, &call.receiver);
    }
    let shape = get!(call.args.first()?, Expr::Tuple)?;
    let sizes = shape.elems.iter().skip(2);
    let sizes: Vec<_> = sizes.map(|size| is_one(facts, size)).collect();
    let is_none = sizes.is_empty() || sizes.contains(&Some(false));
    if is_none { Some(false) } else { same(&sizes) }
}

/// The sizes that an expression may have; `None` for a size that is not known.
fn sizes(facts: Facts<'_>, expr: &Expr, depth: usize) -> Vec<Option<usize>> {
    let Some(depth) = depth.checked_sub(1) else {
        return vec![None];
    };
    let unit = facts.unit;
    if let Expr::Lit(literal) = strip(expr) {
        return vec![get!(&literal.lit, syn::Lit::Int).and_then(|size| size.base10_parse().ok())];
    }
    let Some(name) = ident(expr) else {
        return vec![None];
    };
    if let Some(value) = facts.definitions(&name, unit.source.start(expr)).first() {
        return sizes(facts, value, depth);
    }
    let mut given = inputs(facts.function.signature);
    let Some(number) = given.position(|input| binds(&*input.pat, &name)) else {
        let constant = unit.built.sizes.get(&name);
        return constant.map_or(vec![None], |value| sizes(facts, value, depth));
    };
    let mut found = Vec::new();
    for caller in facts::all(unit) {
        for call in exprs(caller.function.block).filter_map(|expr| get!(expr, Expr::Call)) {
            let path = called(call).map(segments).unwrap_or_default();
            let [before @ .., last] = &path[..] else {
                continue;
            };
            let owner = before
                .last()
                .filter(|one| one.starts_with(char::is_uppercase));
            let owner = match owner {
                Some(name) if name == "Self" => caller.function.owner.as_ref(),
                owner => owner,
            };
            if facts.function.signature.ident == last && facts.function.owner.as_ref() == owner {
                let size = call.args.iter().nth(number);
                found.extend(size.into_iter().flat_map(|size| sizes(caller, size, depth)));
            }
        }
    }
    if found.is_empty() { vec![None] } else { found }
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
