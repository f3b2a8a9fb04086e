//! A `Linear` that a file writes out itself, as T5's does: ours stands for it.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Fields, Item, ReturnType};

use super::draft::Draft;
use super::types::last_name;
use super::unit::Unit;

/// The methods that the forward of such a layer may call.
const METHODS: &[&str] = &[
    "broadcast_add",
    "broadcast_left",
    "dims",
    "dtype",
    "enter",
    "matmul",
    "t",
    "to_dtype",
];

/// Functions of `nn` that load a `Linear`.
const LOADERS: &[&str] = &["linear", "linear_no_bias"];

/// Takes away a file's own `Linear` and its loaders, and imports ours.
pub fn rewrite(unit: &Unit<'_>, draft: &mut Draft) {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut names = vec!["Linear"];
    let mut declared = false;
    for item in &unit.file.items {
        let goes = match item {
            Item::Struct(item) if item.ident == "Linear" => {
                declared = is_layer(unit, item);
                declared.then_some(())
            }
            Item::Impl(item) if last_name(&item.self_ty).is_some_and(|name| name == "Linear") => {
                let module = item
                    .trait_
                    .as_ref()
                    .is_some_and(|(path, _)| path.is_ident("Module"));
                if !module || !is_product(unit, item) {
                    return;
                }
                Some(())
            }
            Item::Fn(item) if LOADERS.iter().any(|name| item.sig.ident == name) => {
                let ReturnType::Type(_, ty) = &item.sig.output else {
                    return;
                };
                if !unit.source.slice(&**ty).contains("Linear") || !is_loader(unit, item) {
                    return;
                }
                names.extend(LOADERS.iter().filter(|name| item.sig.ident == name));
                Some(())
            }
            _ => None,
        };
        if goes.is_some() {
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
    let Fields::Named(fields) = &item.fields else {
        return false;
    };
    let known = |field: &syn::Field| {
        let name = field
            .ident
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let ty = unit.source.slice(&field.ty).replace(' ', "");
        matches!(
            (name.as_str(), ty.as_str()),
            ("weight", "Tensor") | ("bias", "Option<Tensor>") | ("span", "tracing::Span")
        )
    };
    let weight = fields
        .named
        .iter()
        .any(|field| field.ident.as_ref().is_some_and(|i| i == "weight"));
    weight && fields.named.iter().all(known) && item.generics.params.is_empty()
}

/// Whether the forward is `x W^T`, plus a bias, and nothing else.
fn is_product(unit: &Unit<'_>, item: &syn::ItemImpl) -> bool {
    struct Calls {
        products: usize,
        transposes: usize,
        others: usize,
    }
    impl<'a> Visit<'a> for Calls {
        fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
            let name = call.method.to_string();
            self.products += usize::from(name == "matmul");
            self.transposes += usize::from(name == "t");
            self.others += usize::from(!METHODS.contains(&name.as_str()));
            visit::visit_expr_method_call(self, call);
        }
        fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
            let ok = matches!(&*call.func, syn::Expr::Path(path) if path.path.is_ident("Ok"));
            self.others += usize::from(!ok);
            visit::visit_expr_call(self, call);
        }
        fn visit_expr_binary(&mut self, _: &'a syn::ExprBinary) {
            self.others += 1;
        }
    }
    let mut calls = Calls {
        products: 0,
        transposes: 0,
        others: 0,
    };
    calls.visit_item_impl(item);
    let text = unit.source.slice(item);
    calls.products == 1 && calls.transposes > 0 && calls.others == 0 && text.contains("self.weight")
}

/// `fn linear_no_bias(d1: usize, d2: usize, vb: VarBuilder)` that reads `weight` of `[d2, d1]`.
fn is_loader(unit: &Unit<'_>, item: &syn::ItemFn) -> bool {
    let inputs = item.sig.inputs.iter().map(|input| match input {
        syn::FnArg::Typed(input) => match (&*input.pat, last_name(&input.ty)) {
            (syn::Pat::Ident(pat), Some(ty)) => Some((pat.ident.to_string(), ty)),
            _ => None,
        },
        syn::FnArg::Receiver(_) => None,
    });
    let Some(inputs) = inputs.collect::<Option<Vec<_>>>() else {
        return false;
    };
    let [(d1, a), (d2, b), (_, vb)] = inputs.as_slice() else {
        return false;
    };
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
    struct Uses<'u> {
        unit: &'u Unit<'u>,
        ranges: &'u [Range<usize>],
        literal: bool,
    }
    impl Uses<'_> {
        fn outside(&self, at: usize) -> bool {
            !self.ranges.iter().any(|range| range.contains(&at))
        }
    }
    impl<'a> Visit<'a> for Uses<'_> {
        fn visit_expr_struct(&mut self, literal: &'a syn::ExprStruct) {
            let own = literal.path.is_ident("Linear");
            self.literal |= own && self.outside(self.unit.source.range(literal).start);
            visit::visit_expr_struct(self, literal);
        }
    }
    let mut uses = Uses {
        unit,
        ranges,
        literal: false,
    };
    uses.visit_file(unit.file);
    !uses.literal
}
