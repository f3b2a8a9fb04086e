//! A report as text: totals, fields that may hold layers, float tensors in no layer, table, notes,
//! opaque fields.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::fold::fold;
use super::layers::{LayerReport, Report};
use crate::qconfig::{HalfType, QConfig};
use crate::quantize::float_tensors::{ADVICE, FloatTensor};
use crate::quantize::hidden::{OpaqueField, note};
use crate::quantize::outcome::{LeftReason, Outcome};
use crate::quantize::text::{human_bytes, shown, table};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_totals(f)?;
        fmt_hidden(f, &self.hidden)?;
        fmt_float_tensors(f, &self.float_tensors)?;
        if !self.layers.is_empty() {
            writeln!(f, "{}", table(HEADER, self.rows(f.alternate()).into_values(), &[1, 4, 5]))?;
        }
        self.fmt_out_of_range(f)?;
        self.fmt_tied(f)?;
        self.fmt_opaque(f)
    }
}

const HEADER: [&str; 6] = ["layer", "", "kind", "now", "before", "after"];

/// The row of so many layers, each of which has the kind, outcome and bytes of the first.
fn cells(name: String, first: &LayerReport, count: usize) -> [String; 6] {
    let bytes = |bytes| match first.precision {
        Some(_) => "-".to_owned(),
        None => human_bytes(bytes),
    };
    [
        name,
        match count {
            1 => String::new(),
            count => format!("x{count}"),
        },
        first.kind.to_string(),
        match (&first.outcome, first.precision) {
            (Outcome::Swapped { .. }, Some(precision)) => precision.to_string(),
            (outcome, _) => outcome.to_string(),
        },
        bytes(count * first.bytes_before),
        bytes(count * first.bytes_after),
    ]
}

impl Report {
    fn fmt_totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (swapped, layers) = (self.swapped().count(), self.layers.len());
        write!(f, "{swapped} of {layers} layers swapped")?;
        let already =
            |l: &&LayerReport| l.outcome == Outcome::Left { reason: LeftReason::AlreadyQuantized };
        match self.layers.iter().filter(already).count() {
            already if swapped == 0 && already > 0 => {
                write!(f, ": {already} are quantized already")?
            }
            _ => self.fmt_bytes(f)?,
        }
        write!(f, ", running on {}", self.isa)?;
        if !self.hidden.is_empty() {
            let fields = counted(self.hidden.len(), "field");
            let paths = self.hidden.iter().map(|field| field.path.as_str());
            write!(f, "; {fields} may hold more: {}", some(paths))?;
        }
        if !self.float_tensors.is_empty() {
            let tensors = counted(self.float_tensors.len(), "tensor");
            let bytes = self.float_tensors.iter().map(|tensor| tensor.bytes).sum();
            let (bytes, paths) = (human_bytes(bytes), self.float_tensors.iter());
            let paths = some(paths.map(|tensor| shown(&tensor.path)));
            write!(f, "; {tensors} of {bytes} in no layer: {paths}")?;
        }
        writeln!(f)
    }

    fn fmt_bytes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = (self.bytes_before(), self.bytes_after());
        let (from, to) = (human_bytes(before), human_bytes(after));
        write!(f, ", weights {from} -> {to}")?;
        match before {
            0 => Ok(()),
            _ => write!(f, " ({:.1} %)", 100. * after as f64 / before as f64),
        }
    }

    /// The rows, by the index of the first layer: a row for each layer, or for all layers that
    /// differ only in their paths.
    fn rows(&self, each: bool) -> BTreeMap<usize, [String; 6]> {
        let mut groups: Vec<Vec<(usize, &LayerReport)>> = Vec::new();
        for layer in self.layers.iter().enumerate() {
            let group = groups.iter_mut().find(|g| !each && alike(g[0].1, layer.1));
            match group {
                Some(group) => group.push(layer),
                None => groups.push(vec![layer]),
            }
        }
        let mut rows = BTreeMap::new();
        for group in groups {
            for folded in fold(group.iter().map(|(_, layer)| layer.path.as_str())) {
                let (index, first) = group[folded.first];
                let path = shown(&folded.text).to_owned();
                let names: Vec<_> = [path].into_iter().chain(other_names(first, each)).collect();
                rows.insert(index, cells(names.join(" = "), first, folded.count));
            }
        }
        rows
    }

    fn fmt_out_of_range(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for layer in &self.layers {
            let (path, saturated) = (shown(&layer.path), layer.saturated);
            let mut dtype = HalfType::Float16;
            if let Outcome::Swapped { to: QConfig::Half(half) } = layer.outcome {
                dtype = half;
            }
            let [max, least] = dtype.facts().range;
            if saturated > 0 {
                let weights = counted(saturated, "weight");
                let were = if saturated == 1 { "was" } else { "were" };
                writeln!(
                    f,
                    "{path}: {weights} exceeded the {dtype} range and {were} clamped to ±{max}"
                )?;
            }
            if layer.underflowed > 0 {
                let weights = counted(layer.underflowed, "weight");
                writeln!(
                    f,
                    "{path}: {weights} in channels below the {dtype} range, {least}, lost \
                     precision or became 0"
                )?;
            }
        }
        Ok(())
    }

    /// Weights that are counted with another layer, unless the outcome shows it.
    fn fmt_tied(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for layer in &self.layers {
            let (path, Some(owner)) = (&layer.path, &layer.tied_to) else { continue };
            let owner_left = !self.swapped().any(|l| l.path == *owner);
            match layer.outcome {
                Outcome::Left { .. } => {
                    writeln!(
                        f,
                        "{path}: its weight is counted with {owner}, which holds the same memory"
                    )?;
                }
                _ if owner_left => {
                    writeln!(
                        f,
                        "{path}: its float weight stays in memory, because {owner} still holds it"
                    )?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Opaque fields by type, without the ones that may hold layers.
    fn fmt_opaque(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden: HashSet<_> = self.hidden.iter().map(|field| &field.path).collect();
        let fields = self.opaque.iter().filter(|field| !hidden.contains(&field.path));
        let what = |type_name: &str| match note(type_name) {
            Some(note) => format!("{type_name} ({note})"),
            None => type_name.to_owned(),
        };
        let fields = fields.map(|field| (what(&field.type_name), field.path.as_str()));
        fmt_by(f, "opaque fields (not visited)", fields)
    }
}

/// Fields that may hold layers, by type.
pub(crate) fn fmt_hidden(f: &mut fmt::Formatter<'_>, hidden: &[OpaqueField]) -> fmt::Result {
    let type_and_advice = |field: &OpaqueField| {
        let advice = field.advice.as_deref().unwrap_or_default();
        format!("{} ({advice})", field.type_name)
    };
    let fields = hidden.iter().map(|field| (type_and_advice(field), field.path.as_str()));
    fmt_by(f, "fields that may hold layers (not visited)", fields)
}

/// Float tensors in no layer, by what they are.
pub(crate) fn fmt_float_tensors(
    f: &mut fmt::Formatter<'_>,
    tensors: &[FloatTensor],
) -> fmt::Result {
    let tensors = tensors.iter().map(|t| (t.description(), shown(&t.path)));
    fmt_by(f, &format!("float tensors in no layer ({ADVICE})"), tensors)
}

/// `1 field`, `2 fields`.
fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Some of the paths, in short.
fn some<'a>(paths: impl Iterator<Item = &'a str>) -> String {
    let folded = fold(paths);
    let mut names: Vec<_> = folded.iter().take(3).map(|f| f.text.as_str()).collect();
    if folded.len() > names.len() {
        names.push("..");
    }
    names.join(", ")
}

/// Paths of fields, if there are some, by their advice: a model has few types and many fields.
fn fmt_by<'a>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    fields: impl Iterator<Item = (String, &'a str)>,
) -> fmt::Result {
    let each = f.alternate();
    let mut by: Vec<(String, Vec<&str>)> = Vec::new();
    for (what, path) in fields {
        match by.iter_mut().find(|(known, _)| !each && *known == what) {
            Some((_, paths)) => paths.push(path),
            None => by.push((what, vec![path])),
        }
    }
    if !by.is_empty() {
        writeln!(f, "{title}:")?;
    }
    for (what, paths) in by {
        for folded in fold(paths) {
            writeln!(f, "  {}: {what}", folded.text)?;
        }
    }
    Ok(())
}

/// Whether two layers may share a row; a layer with several paths has a separate row.
fn alike(a: &LayerReport, b: &LayerReport) -> bool {
    (a.bytes_before, a.bytes_after) == (b.bytes_before, b.bytes_after)
        && a.kind == b.kind
        && a.outcome == b.outcome
        && a.shared_as.is_empty()
        && b.shared_as.is_empty()
}

/// The other paths of a layer, one by one or folded.
fn other_names(layer: &LayerReport, each: bool) -> Vec<String> {
    if each {
        return layer.shared_as.clone();
    }
    let folded = fold(layer.shared_as.iter().map(String::as_str));
    folded.into_iter().map(|folded| folded.text).collect()
}
