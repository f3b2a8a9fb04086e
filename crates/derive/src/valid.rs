//! Rejects attributes that are well formed but contradict each other.

use std::collections::HashSet;

use crate::Errors;
use crate::ast::{Data, Field, Input, Place};

pub fn check(input: &Input<'_>, errors: &mut Errors) {
    if let Data::Union(token) = &input.data {
        errors.at(
            token.span,
            "a union cannot be `Quantizable`: which of its fields is valid is not known",
        );
    }
    if input.attrs.layer.is_some() {
        check_layer(input, errors);
    }
    for fields in input.field_lists() {
        for field in fields {
            check_combination(field, errors);
            check_rename(field, errors);
        }
        check_unique(fields, errors);
    }
}

/// A leaf shows itself to the walk and nothing below, so nothing can be said of its fields.
fn check_layer(input: &Input<'_>, errors: &mut Errors) {
    if let Some(span) = input.attrs.strict {
        errors.at(
            span,
            "`strict` and `layer` exclude each other: a layer's fields are not visited",
        );
    }
    for (name, span) in input
        .field_lists()
        .flatten()
        .flat_map(|f| f.attrs.spans().collect::<Vec<_>>())
    {
        errors.at(
            span,
            format!("`{name}` has no effect here: a `layer`'s fields are not visited"),
        );
    }
}

fn check_combination(field: &Field<'_>, errors: &mut Errors) {
    let mut present = field.attrs.spans();
    if let (Some((first, _)), Some((second, span))) = (present.next(), present.next()) {
        errors.at(
            span,
            format!("`{first}` and `{second}` exclude each other on one field"),
        );
    }
}

/// A name is one or more path segments with dots between.
fn check_rename(field: &Field<'_>, errors: &mut Errors) {
    let Some(rename) = &field.attrs.rename else {
        return;
    };
    let name = rename.value();
    if name.is_empty() {
        errors.at(
            rename.span(),
            "empty name: use `flatten` to visit a field without a name of its own",
        );
    } else if name
        .split('.')
        .any(|s| s.is_empty() || s.contains(char::is_whitespace))
    {
        errors.at(
            rename.span(),
            format!(
                "malformed name {name:?}: expected segments without spaces, and one dot between two of them"
            ),
        );
    }
}

/// Paths must differ; what two flattened fields bring along only the walk can tell.
fn check_unique(fields: &[Field<'_>], errors: &mut Errors) {
    // Fields that keep their own name come first, so that the blame falls on a rename.
    let (renamed, own): (Vec<_>, Vec<_>) = fields
        .iter()
        .filter(|f| !f.is_skipped())
        .partition(|f| f.attrs.rename.is_some());
    let mut seen = HashSet::new();
    for field in own.into_iter().chain(renamed) {
        if let Place::Below(name, span) = &field.place
            && !seen.insert(name)
        {
            errors.at(*span, format!("another field is named {name:?} too"));
        }
    }
}
