//! Hints for rules that match nothing, from the names and kinds in the model.

use std::collections::HashSet;

use super::decision::Decision;
use super::rule::Pattern;
use crate::name_regex::NameRegex;
use crate::quantize::float_tensors;
use crate::quantize::hidden::OpaqueField;
use crate::quantize::outcome::LeftReason;
use crate::quantize::survey::{FoundLayer, Survey};
use crate::quantize::text::some;
use crate::words::suggestion;

impl Pattern {
    /// The pattern that was probably meant.
    pub fn hint(&self, survey: &Survey) -> String {
        if survey.layers.is_empty() {
            return nothing_matched(survey, &[]);
        }
        match self {
            Self::Kind(_) => {
                let mut kinds: Vec<_> = survey.layers.iter().map(|l| &l.kind).collect();
                kinds.sort();
                kinds.dedup();
                let kinds: Vec<_> = kinds.iter().map(|k| k.to_string()).collect();
                with_hidden(format!("the model has layers of kind {}", kinds.join(", ")), survey)
            }
            Self::Name(name) => {
                let holds = |f: &&OpaqueField| {
                    let rest = name.strip_prefix(&f.path);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                };
                if let Some(field) = survey.opaque.iter().find(holds) {
                    return format!(
                        "{} is a {}, which is not a module tree",
                        field.path, field.type_name
                    );
                }
                if let Some(regex) = meant(name, survey) {
                    return format!("names are whole paths; {regex}");
                }
                // Names above layers are as good as the layers' own.
                fn ancestors(name: &str) -> impl Iterator<Item = &str> {
                    name.match_indices('.').map(|(at, _)| &name[..at]).chain([name])
                }
                // Most layers have their ancestors in common.
                let mut seen = HashSet::new();
                let names = survey.layers.iter().flat_map(FoundLayer::names);
                let names = names.flat_map(ancestors).filter(|name| seen.insert(*name));
                suggestion(name, names).map_or_else(
                    || examples(survey),
                    |nearest| format!("the nearest name is {nearest:?}"),
                )
            }
            Self::Regex(_) => examples(survey),
        }
    }
}

/// Layers there are, where nothing is like the pattern.
fn examples(survey: &Survey) -> String {
    let some: Vec<_> = survey.layers.iter().take(3).map(|l| l.path.as_str()).collect();
    with_hidden(format!("the model has layers such as {}", some.join(", ")), survey)
}

/// The regex that a pattern which names no path may have meant, such as `*.dense` or `dense`, if it
/// matches any layer.
fn meant(name: &str, survey: &Survey) -> Option<String> {
    let inner = name.trim_start_matches('*').trim_start_matches('.');
    let pieces: Vec<_> = inner.split('*').collect();
    // To compile a regex takes longer than to see that most can match nothing.
    let possible = |name| in_order(&pieces, name);
    if inner.is_empty() || !survey.layers.iter().any(|l| l.names().any(possible)) {
        return None;
    }
    let body: Vec<_> = pieces.iter().map(|piece| regex::escape(piece)).collect();
    let body = body.join(".*");
    let start = if name.starts_with('*') || !name.contains('*') { r"(^|\.)" } else { "^" };
    // Names of layers by preference, or else of their parents.
    [format!("{start}{body}$"), format!(r"{start}{body}\.")].into_iter().find_map(|pattern| {
        let regex = NameRegex::new(&pattern);
        let regex = regex.compiled().ok()?;
        let matches = |l: &&FoundLayer| l.names().any(|name| regex.is_match(name));
        match survey.layers.iter().filter(matches).count() {
            0 => None,
            1 => Some(format!(".regex(r\"{pattern}\", ..) matches 1 layer")),
            count => Some(format!(".regex(r\"{pattern}\", ..) matches {count} layers")),
        }
    })
}

/// Whether a name holds all pieces, one after the other.
fn in_order(pieces: &[&str], mut name: &str) -> bool {
    pieces.iter().all(|piece| match name.split_once(piece) {
        Some((_, rest)) => {
            name = rest;
            true
        }
        None => false,
    })
}

/// Why nothing is swapped.
pub(super) fn nothing_matched(survey: &Survey, decisions: &[Decision]) -> String {
    let mut reasons = decisions.iter().zip(&survey.layers);
    let small = reasons.find_map(|(decision, layer)| match decision {
        Decision::Leave(LeftReason::TooSmall { parameters, min_params }) => Some(format!(
            "min_params is {min_params}, and what rules match is smaller, such as {} with {parameters} weight elements; \
             min_params(0) leaves none",
            named(layer)
        )),
        _ => None,
    });
    let reason = small.or_else(|| {
        let layer = survey.layers.first()?;
        Some(format!(
            "no rule gives a qconfig to any of the model's {} layers, such as {} ({})",
            survey.layers.len(),
            named(layer),
            layer.kind
        ))
    });
    if let Some(reason) = reason {
        return with_hidden(reason, survey);
    }
    let found = elsewhere(survey, "some", "none");
    if found.is_empty() {
        return "the model has no layers; use those of candle_dynquant::nn and derive Quantizable"
            .into();
    }
    format!("the model has no layers, but {}", found.join("; "))
}

fn named(layer: &FoundLayer) -> &str {
    match layer.path.as_str() {
        "" => "the model itself",
        path => path,
    }
}

/// A reason, and where the layers that were meant may be.
pub(crate) fn with_hidden(reason: String, survey: &Survey) -> String {
    [vec![reason], elsewhere(survey, "more", "no layer")].concat().join("; ")
}

/// Fields that may hold layers, float tensors in none, and what to do about them.
fn elsewhere(survey: &Survey, more: &str, layer: &str) -> Vec<String> {
    let fields = some(&survey.hidden());
    let fields = fields.map(|fields| format!("fields that may hold {more}: {fields}"));
    let tensors = float_tensors::of_float(survey);
    let tensors = tensors.map(|tensors| format!("float tensors in {layer}: {tensors}"));
    fields.into_iter().chain(tensors).collect()
}
