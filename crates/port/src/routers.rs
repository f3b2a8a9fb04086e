//! A `Linear` whose scores choose the experts of a token becomes a `Router`.

use std::ops::Range;

use syn::{Expr, ExprMethodCall, Type};

use super::draft::Draft;
use super::facts::{self, DEPTH, Facts};
use super::scopes::{Module, Origin};
use super::syntax::{applied, called, get, ident, own_field, segments, strip};
use super::unit::Unit;
use super::walk::method_calls;

/// Rewrites the field and its constructors.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    for facts in facts::all(unit) {
        let calls: Vec<_> = method_calls(facts.function.block).collect();
        // Numbers of rows that are sorted later, or a tensor's order.
        let is_sorted = |call: &&ExprMethodCall| call.method.to_string().starts_with("sort");
        let reads = calls.iter().any(is_sorted).then_some("to_vec2");
        let orders = ["arg_sort_last_dim", reads.unwrap_or_default()];
        for call in calls {
            if !orders.iter().any(|name| call.method == name) {
                continue;
            }
            let field = scorer(facts, &call.receiver, DEPTH);
            let Some(Routed { ty, makers }) = field.and_then(|field| routed(facts, &field)) else {
                continue;
            };
            let module = &facts.function.module;
            draft.edits.replace(ty, "Router".to_owned());
            draft.need_name(module, "Router");
            for (maker, module) in makers {
                draft.edits.replace(maker, "router".to_owned());
                module.iter().for_each(|module| draft.need_name(module, "router"));
            }
        }
    }
}

/// The field of `self` whose product is, or becomes by a softmax or a sigmoid, the scores.
fn scorer(facts: Facts<'_>, scores: &Expr, depth: usize) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    match strip(scores) {
        Expr::MethodCall(call) => match applied(call).and_then(|(layer, _)| own_field(layer)) {
            Some(field) => facts.ours(&field, "Linear").map(|_| field),
            None => scorer(facts, &call.receiver, depth),
        },
        Expr::Call(call) => {
            let name = segments(called(call)?).pop()?;
            let is_order = name.starts_with("softmax") || name == "sigmoid";
            scorer(facts, call.args.first().filter(|_| is_order)?, depth)
        }
        path => scorer(facts, facts.definition(path)?, depth),
    }
}

/// The type of a field, and the names of the functions that make it, each with the module that has to
/// import it, if there is one.
struct Routed {
    ty: Range<usize>,
    makers: Vec<(Range<usize>, Option<Module>)>,
}

/// The places to change if the field is a `Linear` without a bias wherever it is made.
fn routed(facts: Facts<'_>, field: &str) -> Option<Routed> {
    let (unit, module) = (facts.unit, &facts.function.module);
    let owner = facts.function.owner.as_ref()?;
    let ty: &Type = unit.field(module, owner, field)?;
    let key = (module.clone(), owner.clone());
    let makers = unit.built.given(&key, field).map(|value| {
        let at = unit.source.start(value);
        let around = Facts::around(unit, at)?;
        let value = if ident(value).is_some() { around.definition(value)? } else { value };
        let path = called(get!(strip(value), Expr::Call)?)?;
        let maker = Origin::Ours(vec!["nn".into(), "linear_no_bias".into()]);
        let is_known = around.resolve(&segments(path)) == maker;
        let module = path.get_ident().map(|_| around.function.module.clone());
        let made = (unit.source.range(&path.segments.last()?.ident), module);
        is_known.then_some(made)
    });
    let mut makers = makers.collect::<Option<Vec<_>>>()?;
    makers.dedup_by(|a, b| a.0 == b.0);
    (!makers.is_empty() && unit.built.assigned(field).is_empty())
        .then(|| Routed { ty: unit.source.range(ty), makers })
}
