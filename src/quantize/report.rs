//! What `quantize_dynamic` did, layer by layer.

use std::fmt;

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use serde::Serialize;

use super::spec::Decision;
use super::survey::{Found, Survey};
use super::swap::Quantized;
use super::tied::{Held, Owners};
use crate::kernels::Isa;
use crate::module::LayerKind;
use crate::qconfig::{QConfig, serialize_named};

/// What [`quantize_dynamic`](crate::quantize_dynamic) did.
///
/// `Display` is a table in which layers that differ only by their number share a row;
/// `{:#}` gives every layer its own.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The instruction set that the quantized layers run on.
    pub isa: String,
    /// Every layer of the model, in the order of the walk.
    pub layers: Vec<LayerReport>,
    /// Fields that are no module trees: nothing in them was looked at.
    pub opaque: Vec<OpaqueField>,
}

/// What became of one layer.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LayerReport {
    /// Path in the model.
    pub path: String,
    /// The name it was loaded under, if it remembers one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_name: Option<String>,
    /// What sort of layer it is.
    pub kind: LayerKind,
    /// Other paths that lead to it through a shared pointer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared_as: Vec<String>,
    /// Swapped, or why not.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Elements of its weights.
    pub parameters: usize,
    /// Bytes of its weights before, without those that [`tied_to`](Self::tied_to) counts; of a view
    /// with the rest of the memory that nobody else counts.
    pub bytes_before: usize,
    /// Bytes of its weights now, with scales and padding, and without those that another counts.
    pub bytes_after: usize,
    /// The layer that counts a weight of this one before, where both held one memory: one that
    /// was left and holds it still, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tied_to: Option<String>,
    /// Weights that float16 cannot hold and that became the greatest it can.
    #[serde(skip_serializing_if = "is_zero")]
    pub saturated: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Swapped, or left and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The layer's weights are quantized now.
    Swapped {
        /// As this says.
        #[serde(serialize_with = "serialize_named")]
        to: QConfig,
    },
    /// The layer reads the quantized weight of another layer, which held the same matrix.
    Shared {
        /// The path of that layer, which counts the weight.
        with: String,
    },
    /// The layer is as it was.
    Left {
        /// For this reason.
        reason: LeftReason,
    },
}

/// Why a layer was left as it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeftReason {
    /// A rule keeps it float.
    KeptFloat {
        /// The rule.
        rule: String,
    },
    /// No rule matches it.
    NoRule,
    /// It was quantized before.
    AlreadyQuantized,
    /// It is smaller than [`min_params`](crate::QConfigSpec::min_params) asks.
    TooSmall {
        /// Elements of its weights.
        parameters: usize,
        /// The fewest that are quantized.
        min_params: usize,
    },
}

/// A field that is no module tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OpaqueField {
    /// Path in the model.
    pub path: String,
    /// Its Rust type.
    pub type_name: String,
}

impl Report {
    pub(super) fn new(
        isa: Isa,
        survey: Survey,
        decisions: Vec<Decision>,
        quantized: &Quantized,
    ) -> Self {
        let paths: Vec<String> = survey.layers.iter().map(|l| l.path.clone()).collect();
        let held = |found: &Found, weights| Held {
            swapped: quantized.replacements.contains_key(&found.path),
            kind: found.kind.clone(),
            weights,
        };
        let before = survey.layers.iter().map(|l| held(l, l.weights.clone()));
        let before = Owners::of(before.collect());
        let after = survey.layers.iter().map(|l| {
            let replacement = quantized.replacements.get(&l.path);
            let weights = replacement.map_or_else(|| l.weights.clone(), |r| r.weights());
            held(l, weights)
        });
        let after = Owners::of(after.collect());
        let layers = survey.layers.into_iter().zip(decisions).enumerate();
        let layers = layers.map(|(index, (found, decision))| {
            let swapped = matches!(decision, Decision::Swap(_));
            LayerReport {
                parameters: found.parameters(),
                bytes_before: before.bytes(index),
                bytes_after: after.bytes(index),
                tied_to: before.other(index).map(|owner| paths[owner].clone()),
                saturated: match swapped {
                    true => after.saturated(index),
                    false => 0,
                },
                outcome: match (decision, quantized.sharing.get(&found.path)) {
                    (_, Some(lender)) => Outcome::Shared {
                        with: lender.clone(),
                    },
                    (Decision::Swap(to), None) => Outcome::Swapped { to },
                    (Decision::Leave(reason), None) => Outcome::Left { reason },
                },
                path: found.path,
                checkpoint_name: found.checkpoint_name,
                kind: found.kind,
                shared_as: found.shared_as,
            }
        });
        Self {
            isa: isa.to_string(),
            layers: layers.collect(),
            opaque: survey.opaque,
        }
    }

    /// The layers that were swapped, those that share another's quantized weight included.
    pub fn swapped(&self) -> impl Iterator<Item = &LayerReport> {
        self.layers
            .iter()
            .filter(|l| !matches!(l.outcome, Outcome::Left { .. }))
    }

    /// The layers that were left as they were.
    pub fn left(&self) -> impl Iterator<Item = &LayerReport> {
        self.layers
            .iter()
            .filter(|l| matches!(l.outcome, Outcome::Left { .. }))
    }

    /// Bytes of the swapped layers' weights before; the model is smaller by this less
    /// [`bytes_after`](Self::bytes_after).
    ///
    /// Memory that several layers hold, be it by clones or by views, counts once, and not at all if
    /// a layer that was left holds any of it: it stays. What no layer shows, such as a tensor in a
    /// field that is no module tree, is not known of.
    pub fn bytes_before(&self) -> usize {
        self.swapped().map(|l| l.bytes_before).sum()
    }

    /// Bytes of the swapped layers' weights now; one that several layers read counts once.
    pub fn bytes_after(&self) -> usize {
        self.swapped().map(|l| l.bytes_after).sum()
    }
}

/// Layers that share a row of the table.
struct Row<'a> {
    path: String,
    first: &'a LayerReport,
    count: usize,
}

impl Report {
    fn rows(&self, each: bool) -> Vec<Row<'_>> {
        let mut rows: Vec<Row<'_>> = Vec::new();
        for layer in &self.layers {
            let path = match each {
                true => layer.path.clone(),
                false => without_numbers(&layer.path),
            };
            let same = rows.iter_mut().find(|row| {
                row.path == path
                    && row.first.kind == layer.kind
                    && row.first.outcome == layer.outcome
                    && row.first.bytes_before == layer.bytes_before
                    && row.first.bytes_after == layer.bytes_after
            });
            match same {
                Some(row) => row.count += 1,
                None => rows.push(Row {
                    path,
                    first: layer,
                    count: 1,
                }),
            }
        }
        for row in rows.iter_mut().filter(|row| row.count == 1) {
            row.path.clone_from(&row.first.path);
        }
        rows
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(RULED);
        table.set_header(["layer", "kind", "", "now", "before", "after"]);
        for row in self.rows(f.alternate()) {
            let layer = row.first;
            let name = match (row.path.as_str(), layer.shared_as.is_empty()) {
                ("", _) => "(the model itself)".to_owned(),
                (path, true) => path.to_owned(),
                (path, false) => format!("{path} = {}", layer.shared_as.join(" = ")),
            };
            table.add_row([
                name,
                layer.kind.to_string(),
                match row.count {
                    1 => String::new(),
                    count => format!("x{count}"),
                },
                layer.outcome.to_string(),
                human_bytes(row.count * layer.bytes_before),
                human_bytes(row.count * layer.bytes_after),
            ]);
        }
        for column in [2, 4, 5] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(f, "{}", table.trim_fmt())?;
        let (before, after) = (self.bytes_before(), self.bytes_after());
        write!(
            f,
            "{} of {} layers swapped, weights {} -> {}",
            self.swapped().count(),
            self.layers.len(),
            human_bytes(before),
            human_bytes(after),
        )?;
        if before > 0 {
            write!(f, " ({:.1} %)", 100. * after as f64 / before as f64)?;
        }
        writeln!(f, ", running on {}", self.isa)?;
        for layer in self.layers.iter().filter(|layer| layer.saturated > 0) {
            let (path, count) = (&layer.path, layer.saturated);
            writeln!(
                f,
                "{path}: {count} weights beyond float16 became its greatest"
            )?;
        }
        self.fmt_tied(f)?;
        self.fmt_opaque(f)
    }
}

impl Report {
    /// Weights that are counted with another layer, where the outcome does not say so.
    fn fmt_tied(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for layer in &self.layers {
            let (path, Some(owner)) = (&layer.path, &layer.tied_to) else {
                continue;
            };
            let owner_left = self.left().any(|l| l.path == *owner);
            match layer.outcome {
                Outcome::Left { .. } => writeln!(f, "{path}: its weight is that of {owner}")?,
                _ if owner_left => {
                    writeln!(
                        f,
                        "{path}: its float weight stays in memory, {owner} holds it"
                    )?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Opaque fields by type: a model has few types and many fields.
    fn fmt_opaque(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.opaque.is_empty() {
            return Ok(());
        }
        let mut by_type: Vec<(&str, Vec<String>)> = Vec::new();
        for field in &self.opaque {
            let path = match f.alternate() {
                true => field.path.clone(),
                false => without_numbers(&field.path),
            };
            match by_type
                .iter_mut()
                .find(|(name, _)| *name == field.type_name)
            {
                Some((_, paths)) if paths.contains(&path) => {}
                Some((_, paths)) => paths.push(path),
                None => by_type.push((&field.type_name, vec![path])),
            }
        }
        writeln!(f, "opaque fields, not looked into:")?;
        for (type_name, paths) in by_type {
            writeln!(f, "  {type_name}: {}", paths.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Swapped { to } => to.fmt(f),
            Self::Shared { with } => write!(f, "shares the weight of {with}"),
            Self::Left { reason } => reason.fmt(f),
        }
    }
}

impl fmt::Display for LeftReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeptFloat { rule } => write!(f, "left: kept float by {rule}"),
            Self::NoRule => f.write_str("left: no rule matches"),
            Self::AlreadyQuantized => f.write_str("left: quantized before"),
            Self::TooSmall {
                parameters,
                min_params,
            } => write!(
                f,
                "left: {parameters} weight elements, min_params is {min_params}"
            ),
        }
    }
}

/// A rule below the header and one at the end.
const RULED: TableStyle = {
    let rule = LineStyle::none().fill('─').junction('─');
    TableStyle::new().header_separator(rule).bottom_border(rule)
};

/// `encoder.layer.3.query` as `encoder.layer.*.query`.
fn without_numbers(path: &str) -> String {
    path.split('.')
        .map(|s| match s.bytes().all(|b| b.is_ascii_digit()) {
            true => "*",
            false => s,
        })
        .collect::<Vec<_>>()
        .join(".")
}

fn human_bytes(bytes: usize) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
