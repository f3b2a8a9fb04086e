//! The result of a search, and Neural Compressor's two tables of it.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::presets::ASCII_FULL_CONDENSED;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use serde::Serialize;

use super::search::Search;
use super::stop::Stopped;
use super::trial::Trial;
use super::units::LayerPrecision;
use crate::error::Result;
use crate::inspect::PagePoint;
use crate::module::{LayerKind, Quantizable};
use crate::quantize::report::fold::fold;
use crate::quantize::report::{fmt_float_tensors, fmt_hidden};
use crate::quantize::survey::Survey;
use crate::quantize::{FloatTensor, OpaqueField};

/// The result of [`tune`](crate::tune()).
///
/// `Display` prints Neural Compressor's tables *Mixed Precision Statistics* and *Tune Result
/// Statistics*, the layers that fell back, fields that may hold layers, float tensors in no layer,
/// keys of the configuration that were ignored, and why the search ended.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TuningOutcome {
    /// Whether the model meets the criterion.
    pub met: bool,
    /// Why the search ended.
    pub stopped: Stopped,
    /// The accuracy of the float model.
    pub baseline: f64,
    /// The worst accuracy that meets the criterion.
    pub target: f64,
    pub(crate) higher_is_better: bool,
    /// Seconds that the evaluation of the float model took.
    pub(crate) baseline_seconds: f64,
    /// Every trial, in order, including the trials of a resumed history.
    pub trials: Vec<Trial>,
    /// Index of the [`best`](Self::best) one.
    pub(crate) best_trial: Option<usize>,
    /// Calls of the evaluation; trials of a resumed history have none.
    pub evals: usize,
    /// Every layer of the model, in the order of the walk.
    pub layers: Vec<TunedLayer>,
    /// Fields that may hold layers, which then stayed float.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<OpaqueField>,
    /// Float tensors in no layer, as in [`Report::float_tensors`](crate::Report::float_tensors).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub float_tensors: Vec<FloatTensor>,
    /// Keys of a configuration file that mean nothing here: [`TuningConfig::ignored`](crate::TuningConfig::ignored).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
}

/// A layer and what it became.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TunedLayer {
    /// Path in the model.
    pub path: String,
    /// The kind of layer.
    pub kind: LayerKind,
    /// The precision of the layer now.
    pub precision: LayerPrecision,
    /// Elements of its weights.
    pub parameters: usize,
    /// SQNR of its output with an int8 weight, on its inputs in the float model, in dB: where the
    /// strategy measured it. Infinite, `null` in JSON, for a layer that reports nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqnr_db: Option<f64>,
}

impl TuningOutcome {
    pub(super) fn new<M: Quantizable + ?Sized>(
        search: Search<'_, M>,
        stopped: Stopped,
    ) -> Result<Self> {
        let config = search.config;
        let survey = Survey::new(search.model)?;
        let best = search.best.map(|best| &search.trials[best].1);
        let ranking = search.baseline.ranking.as_deref().unwrap_or_default();
        let units = &search.candidates.units.0;
        let hidden = survey.hidden();
        let layers = survey.layers.into_iter().map(|layer| {
            let tuned = best.and_then(|trial| precision_in(trial, &layer.path));
            let mut ranked =
                ranking.iter().filter(|(unit, _)| units[*unit].paths.contains(&layer.path));
            TunedLayer {
                precision: tuned.unwrap_or_else(|| LayerPrecision::now(&layer)),
                parameters: layer.parameters(),
                sqnr_db: ranked.next().map(|(_, db)| *db),
                path: layer.path,
                kind: layer.kind,
            }
        });
        Ok(Self {
            layers: layers.collect(),
            hidden,
            float_tensors: search.candidates.float_tensors.clone(),
            met: search.met(),
            stopped,
            baseline: search.baseline.value,
            target: config.criterion.target(search.baseline.value),
            higher_is_better: config.criterion.higher_is_better,
            baseline_seconds: search.baseline.seconds,
            best_trial: search.best,
            evals: search.evals,
            trials: search.trials.into_iter().map(|(_, trial)| trial).collect(),
            ignored: config.ignored.clone(),
        })
    }

    /// The trial that the model is; `None` if there is none, and the model is float.
    pub fn best(&self) -> Option<&Trial> {
        self.best_trial.and_then(|best| self.trials.get(best))
    }

    /// The curve of the search, for [`Inspection::page`](crate::inspect::Inspection::page): the
    /// accuracy of each trial, and of the best one until then.
    pub fn curve(&self) -> Vec<PagePoint> {
        let mut best: Option<&Trial> = None;
        let mut points = Vec::with_capacity(self.trials.len());
        for (number, trial) in self.trials.iter().enumerate() {
            best = match best {
                Some(best) if !trial.is_better(best, self.higher_is_better) => Some(best),
                _ => Some(trial),
            };
            points.push(PagePoint {
                label: (number + 1).to_string(),
                score: Some(trial.value),
                best: best.map(|best| best.value),
            });
        }
        points
    }
}

fn precision_in(trial: &Trial, path: &str) -> Option<LayerPrecision> {
    let mut layers = trial.layers.iter();
    let found = layers.find(|(_, paths)| paths.iter().any(|own| own == path));
    found.map(|(precision, _)| *precision)
}

impl fmt::Display for TuningOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in &self.ignored {
            writeln!(f, "{key}")?;
        }
        fmt_table(f, "Mixed Precision Statistics", &self.mixed_precision())?;
        fmt_table(f, "Tune Result Statistics", &self.tune_result())?;
        for precision in [LayerPrecision::BFloat16, LayerPrecision::Float16, LayerPrecision::Float]
        {
            let fell_back = self.layers.iter();
            let fell_back = fell_back.filter(|layer| layer.precision == precision);
            let folded = fold(fell_back.map(|layer| layer.path.as_str()));
            if !folded.is_empty() {
                let paths: Vec<_> = folded.into_iter().map(|folded| folded.text).collect();
                writeln!(f, "{precision}: {}", paths.join(", "))?;
            }
        }
        fmt_hidden(f, &self.hidden)?;
        fmt_float_tensors(f, &self.float_tensors)?;
        let met = if self.met { "met" } else { "not met" };
        let (higher, target) = (self.higher_is_better, self.target);
        let at = if higher { "at least" } else { "at most" };
        writeln!(f, "criterion {met}: {at} {target:.6}")?;
        let (trials, evals) = (self.trials.len(), self.evals);
        write!(f, "{trials} trials, {evals} evaluations; stopped because {}", self.stopped)
    }
}

/// A title in stars, as wide as its table.
fn fmt_table(f: &mut fmt::Formatter<'_>, title: &str, table: &Table) -> fmt::Result {
    let text = table.to_string();
    let width = text.lines().map(str::len).max();
    let width = width.unwrap_or(0).saturating_sub(2);
    writeln!(f, "|{title:*^width$}|\n{text}")
}

/// The style of Python's PrettyTable.
const ASCII: TableStyle = ASCII_FULL_CONDENSED.header_separator(LineStyle::new('+', '-', '+', '+'));

fn table(header: Vec<String>, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Center);
    }
    table
}

impl TuningOutcome {
    /// Layers by kind and precision, without precisions that no layer has.
    fn mixed_precision(&self) -> Table {
        let columns = [
            ("INT4", &[LayerPrecision::Int4][..]),
            ("INT8", &[LayerPrecision::Int8, LayerPrecision::Int8PerRow]),
            ("BF16", &[LayerPrecision::BFloat16]),
            ("FP16", &[LayerPrecision::Float16]),
            ("FP32", &[LayerPrecision::Float]),
        ];
        let is = |layer: &TunedLayer, precisions: &[LayerPrecision]| {
            precisions.contains(&layer.precision)
        };
        let mut columns = columns.to_vec();
        columns.retain(|(_, precisions)| self.layers.iter().any(|layer| is(layer, precisions)));
        let header = ["Op Type", "Total"].into_iter();
        let header = header.chain(columns.iter().map(|(name, _)| *name));
        let mut kinds: BTreeMap<&LayerKind, Vec<&TunedLayer>> = BTreeMap::new();
        for layer in &self.layers {
            kinds.entry(&layer.kind).or_default().push(layer);
        }
        let rows = kinds.into_iter().map(|(kind, layers)| {
            let count = |precisions| layers.iter().filter(|layer| is(layer, precisions)).count();
            let counts = columns.iter().map(|(_, precisions)| count(precisions).to_string());
            let first = [kind.to_string(), layers.len().to_string()];
            first.into_iter().chain(counts).collect()
        });
        table(header.map(str::to_owned).collect(), rows)
    }

    /// Baseline, last trial and best trial.
    fn tune_result(&self) -> Table {
        let last = match self.trials.len() {
            0 => "Tune result".to_owned(),
            last => format!("Tune {last} result"),
        };
        let header = ["Info Type", "Baseline", &last, "Best tune result"];
        let cell = |trial: Option<&Trial>, figure: fn(&Trial) -> f64| {
            trial.map_or_else(|| "n/a".to_owned(), |trial| format!("{:.4}", figure(trial)))
        };
        let (last, best) = (self.trials.last(), self.best());
        let row = |name: &str, baseline: f64, figure: fn(&Trial) -> f64| {
            let baseline = format!("{baseline:.4}");
            vec![name.to_owned(), baseline, cell(last, figure), cell(best, figure)]
        };
        let (accuracy, seconds) = (self.baseline, self.baseline_seconds);
        let rows = [
            row("Accuracy", accuracy, |trial| trial.value),
            row("Duration (seconds)", seconds, |trial| trial.seconds),
        ];
        table(header.map(str::to_owned).to_vec(), rows)
    }
}
