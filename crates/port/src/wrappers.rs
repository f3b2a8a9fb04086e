//! Replaces a `Linear` that a file writes out itself, as T5 does, by candle-dynquant's.

use std::ops::Range;

use syn::{Expr, Fields, Item};

use super::draft::Draft;
use super::functions::output;
use super::syntax::{exactly, get, is_ok, variable};
use super::table::list;
use super::types::{is_impl_of, last_name, named};
use super::unit::Unit;
use super::walk::exprs;

/// The methods that the forward of such a layer may call.
const METHODS: &[&str] = list![broadcast_add broadcast_left dims dtype enter matmul t to_dtype];

/// Functions of `nn` that load a `Linear`.
const LOADERS: &[&str] = &["linear", "linear_no_bias"];

/// Removes a file's `Linear` and its loaders, and imports candle-dynquant's.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut names = vec!["Linear"];
    let mut declared = false;
    for item in &unit.file.items {
        let goes = match item {
            Item::Struct(item) if item.ident == "Linear" => {
                declared = is_layer(unit, item);
                declared
            }
            Item::Impl(block) if is_impl_of(item, "Linear") => {
                let module = block.trait_.as_ref().is_some_and(|(path, _)| path.is_ident("Module"));
                if !module || !is_product(unit, block) {
                    return;
                }
                true
            }
            Item::Fn(item) if LOADERS.iter().any(|name| item.sig.ident == name) => {
                let is_linear =
                    output(&item.sig).is_some_and(|ty| unit.source.slice(ty).contains("Linear"));
                if !is_linear || !is_loader(unit, item) {
                    return;
                }
                names.extend(LOADERS.iter().filter(|name| item.sig.ident == name));
                true
            }
            _ => false,
        };
        if goes {
            ranges.push(unit.source.range(item));
        }
    }
    // The type, its forward and at least one loader; a literal elsewhere would need its fields.
    if !declared || ranges.len() < 3 || ranges.len() != names.len() + 1 || !only(unit, &ranges) {
        return;
    }
    for range in ranges {
        let range = unit.source.item_lines(range);
        draft.edits.rewrite(range, "");
    }
    names.iter().for_each(|name| draft.need_name(&[], name));
}

/// `struct Linear { weight: Tensor, bias: Option<Tensor>, span: tracing::Span }`, or part of it.
fn is_layer(unit: &Unit<'_>, item: &syn::ItemStruct) -> bool {
    let Fields::Named(fields) = &item.fields else { return false };
    let known = |field: &syn::Field| {
        let name = field.ident.as_ref().map(ToString::to_string);
        let ty = unit.source.slice(&field.ty).replace(' ', "");
        matches!(
            (name.as_deref(), ty.as_str()),
            (Some("weight"), "Tensor")
                | (Some("bias"), "Option<Tensor>")
                | (Some("span"), "tracing::Span")
        )
    };
    let weight = named(&fields.named, "weight").is_some();
    weight && fields.named.iter().all(known) && item.generics.params.is_empty()
}

/// Whether the forward is `x W^T`, plus a bias, and nothing else.
fn is_product(unit: &Unit<'_>, item: &syn::ItemImpl) -> bool {
    let calls = |name: &str| {
        let is_it = |expr: &&Expr| matches!(expr, Expr::MethodCall(call) if call.method == name);
        exprs(item).filter(is_it).count()
    };
    let is_other = |expr: &Expr| match expr {
        Expr::MethodCall(call) => !METHODS.iter().any(|name| call.method == name),
        Expr::Call(call) => !is_ok(call),
        Expr::Binary(_) => true,
        _ => false,
    };
    let certain = calls("matmul") == 1 && calls("t") > 0 && !exprs(item).any(is_other);
    certain && unit.source.slice(item).contains("self.weight")
}

/// `fn linear_no_bias(d1: usize, d2: usize, vb: VarBuilder)` that reads `weight` of `[d2, d1]`.
fn is_loader(unit: &Unit<'_>, item: &syn::ItemFn) -> bool {
    let inputs = item.sig.inputs.iter().map(|input| {
        let input = get!(input, syn::FnArg::Typed)?;
        Some((variable(&input.pat)?, last_name(&input.ty)?))
    });
    let inputs = inputs.collect::<Option<Vec<_>>>().and_then(exactly);
    let Some([(d1, a), (d2, b), (_, vb)]) = inputs else { return false };
    let text = unit.source.slice(&*item.block);
    let bias = item.sig.ident != "linear" || text.contains("\"bias\"");
    let shape = format!("({d2}, {d1})");
    a == "usize"
        && b == "usize"
        && vb == "VarBuilder"
        && bias
        && text.contains(&shape)
        && text.contains("\"weight\"")
}

/// Whether nothing outside of the ranges builds the type or reads its fields by a literal.
fn only(unit: &Unit<'_>, ranges: &[Range<usize>]) -> bool {
    let is_inside = |at: usize| ranges.iter().any(|range| range.contains(&at));
    let mut literals = exprs(unit.file).filter_map(|expr| get!(expr, Expr::Struct));
    !literals.any(|it| it.path.is_ident("Linear") && !is_inside(unit.source.start(it)))
}
