//! Rejects attributes that are well formed but contradict each other.

use std::collections::HashSet;

use syn::LitStr;

use crate::ast::{Data, Field, Input, Place};
use crate::errors::Errors;

pub fn check(input: &Input<'_>, errors: &mut Errors) {
    if let Data::Union(token) = &input.data {
        errors.at(
            token.span,
            "a union cannot be `Quantizable`: which of its fields is valid is not known",
        );
    }
    check_layer(input, errors);
    for fields in input.field_lists() {
        for field in fields {
            check_combination(field, errors);
            check_rename(field, errors);
        }
        check_unique(fields, errors);
    }
}

/// A leaf hides its fields from the walk, so attributes of fields may only name its weights and its
/// checkpoint name.
fn check_layer(input: &Input<'_>, errors: &mut Errors) {
    let layer = input.attrs.layer.as_ref();
    if let (Some(_), Some(span)) = (layer, input.attrs.strict) {
        errors
            .at(span, "`strict` and `layer` exclude each other: a layer's fields are not visited");
    }
    let kind = layer.and_then(|layer| layer.kind.as_ref());
    if let Some(kind) = kind {
        check_derived(input, kind, errors);
    }
    for field in input.field_lists().flatten() {
        for (name, span) in field.attrs.spans() {
            match (layer, name) {
                (None, "weight" | "name") => errors.at(
                    span,
                    format!("`{name}` belongs in a layer: write `layer = \"Kind\"` on the type"),
                ),
                (Some(_), "weight" | "name") if kind.is_none() => errors.at(
                    span,
                    format!(
                        "`{name}` has no effect here: `layer` leaves `impl Layer` to you, \
                         `layer = \"Kind\"` derives it"
                    ),
                ),
                (Some(_), "skip" | "flatten" | "rename") => errors.at(
                    span,
                    format!("`{name}` has no effect here: a `layer`'s fields are not visited"),
                ),
                _ => {}
            }
        }
    }
}

/// A derived layer is a struct with one weight or more, under distinct names.
fn check_derived(input: &Input<'_>, kind: &LitStr, errors: &mut Errors) {
    if kind.value().is_empty() {
        errors.at(kind.span(), "empty kind: expected a name, as of the type");
    }
    let Data::Struct(fields) = &input.data else {
        errors.at(
            kind.span(),
            "only a struct can be such a layer: write `layer` and implement `Layer`",
        );
        return;
    };
    let mut seen = HashSet::new();
    for weight in fields.iter().filter_map(|f| f.attrs.weight.as_ref()) {
        check_name(weight, "expected one as in a checkpoint", errors);
        if !seen.insert(weight.value()) {
            let message = format!("another weight is named {:?} too", weight.value());
            errors.at(weight.span(), message);
        }
    }
    if seen.is_empty() {
        errors.at(
            kind.span(),
            "no field is a weight: mark each `nn::Projection` with `#[quantizable(weight)]`",
        );
    }
    for span in fields.iter().filter_map(|f| f.attrs.name).skip(1) {
        errors.at(span, "another field is the name");
    }
}

fn check_combination(field: &Field<'_>, errors: &mut Errors) {
    let mut present = field.attrs.spans();
    if let (Some((first, _)), Some((second, span))) = (present.next(), present.next()) {
        errors.at(span, format!("`{first}` and `{second}` exclude each other on one field"));
    }
}

fn check_rename(field: &Field<'_>, errors: &mut Errors) {
    if let Some(rename) = &field.attrs.rename {
        let advice = "use `flatten` to visit a field without a name of its own";
        check_name(rename, advice, errors);
    }
}

/// A name is one or more path segments with dots between.
fn check_name(name: &LitStr, if_empty: &str, errors: &mut Errors) {
    let (value, span) = (name.value(), name.span());
    if value.is_empty() {
        errors.at(span, format!("empty name: {if_empty}"));
    } else if value.split('.').any(|s| s.is_empty() || s.contains(char::is_whitespace)) {
        errors.at(
            span,
            format!(
                "malformed name {value:?}: expected segments without spaces, and one dot between \
                 two of them"
            ),
        );
    }
}

/// Paths must differ; only the walk can tell what two flattened fields bring along.
fn check_unique(fields: &[Field<'_>], errors: &mut Errors) {
    // Fields that are not renamed come first, so that the blame falls on a rename.
    let (renamed, unrenamed): (Vec<_>, Vec<_>) =
        fields.iter().filter(|f| !f.is_skipped()).partition(|f| f.attrs.rename.is_some());
    let mut seen = HashSet::new();
    for field in unrenamed.into_iter().chain(renamed) {
        if let Place::Below(name, span) = &field.place
            && !seen.insert(name)
        {
            errors.at(*span, format!("another field is named {name:?} too"));
        }
    }
}
