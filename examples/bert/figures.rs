//! The figures of a run, for `--json` and as text with a few answers of both models.

use std::fmt::Write;

use candle_dynquant::Report;
use candle_dynquant::ops::Precision;
use candle_dynquant_support::bert::measure::{
    Run, accuracy, agreement, class, cosines, nearest, percentile_ms, sqnr_db,
};
use candle_dynquant_support::bert::texts::Text;
use candle_dynquant_support::table::{Table, megabytes, percent};
use serde::Serialize;

use crate::profile::Stage;

/// The JSON object.
#[derive(Serialize)]
pub struct Figures {
    pub model: String,
    pub preset: String,
    /// Whether the embeddings are quantized too.
    pub embeddings: bool,
    /// Whether layer norms were equalized before.
    pub equalized: bool,
    /// The precision of the quantized model's attention.
    pub attention: Precision,
    /// Instruction set of the quantized layers.
    pub isa: String,
    pub threads: usize,
    pub float: Side,
    pub quantized: Side,
    /// The stages of `--profile`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
}

/// The figures of one of the two models.
#[derive(Serialize)]
pub struct Side {
    /// The share of correct answers among labelled texts, for a classifier with labelled texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    pub p50_ms: f64,
    pub p95_ms: f64,
    /// The bytes of the layers that were swapped.
    pub weight_bytes: usize,
    /// The bytes of the whole model.
    pub total_bytes: usize,
    #[serde(flatten)]
    pub against_float: Option<Distance>,
}

/// How far a model's answers are from the float model's.
#[derive(Serialize)]
pub struct Distance {
    /// `null` when the answers are equal to the last bit.
    pub sqnr_db: f64,
    pub cosine_mean: f64,
    pub cosine_min: f64,
    /// Share of texts that get the same class; a classifier's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
}

/// The measurements that figures are computed from.
pub struct Measured<'a> {
    pub texts: &'a [Text],
    pub runs: &'a [Run; 2],
    pub report: &'a Report,
    pub float_bytes: usize,
    pub is_classifier: bool,
}

impl Figures {
    /// Computes the figures.
    pub fn new(
        model: String,
        preset: String,
        [embeddings, equalized]: [bool; 2],
        attention: Precision,
        measured: &Measured<'_>,
    ) -> Self {
        let Measured { texts, runs, report, float_bytes, is_classifier } = *measured;
        let before = report.bytes_before();
        let side = |run: &Run, weight_bytes, against_float| Side {
            accuracy: accuracy(texts, &run.answers).filter(|_| is_classifier),
            p50_ms: percentile_ms(&run.times, 50),
            p95_ms: percentile_ms(&run.times, 95),
            weight_bytes,
            total_bytes: float_bytes - before + weight_bytes,
            against_float,
        };
        let [float, quantized] = [&runs[0].answers, &runs[1].answers];
        let (cosine_mean, cosine_min) = cosines(float, quantized);
        let distance = Distance {
            sqnr_db: sqnr_db(float, quantized),
            cosine_mean,
            cosine_min,
            agreement: agreement(float, quantized).filter(|_| is_classifier),
        };
        Self {
            model,
            preset,
            embeddings,
            equalized,
            attention,
            isa: report.isa.clone(),
            threads: candle_core::utils::get_num_threads(),
            float: side(&runs[0], before, None),
            quantized: side(&runs[1], report.bytes_after(), Some(distance)),
            stages: Vec::new(),
        }
    }
}

/// The JSON object of a model that was loaded quantized.
#[derive(Serialize)]
pub struct LoadedFigures {
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    pub total_bytes: usize,
    /// Logits or an embedding, for each text.
    pub answers: Vec<Vec<f32>>,
}

/// Number of texts whose answers are shown.
const SHOWN: usize = 8;

impl Figures {
    /// A header, some answers, then the figures.
    pub fn text(&self, measured: &Measured<'_>, labels: &[String], batch: usize) -> String {
        let report = measured.report;
        let answers =
            if measured.is_classifier { classes(measured, labels) } else { neighbours(measured) };
        format!(
            "{}: {} texts in batches of {batch}\n{} of {} layers swapped ({}{})\n\n{answers}\n{}",
            self.model,
            measured.texts.len(),
            report.swapped().count(),
            report.layers.len(),
            self.preset,
            if self.embeddings { ", embeddings" } else { "" },
            self.table(),
        )
    }

    fn table(&self) -> String {
        let (float, quantized) = (&self.float, &self.quantized);
        let mut table = Table::with_header();
        if let (Some(a), Some(b)) = (float.accuracy, quantized.accuracy) {
            table.row("accuracy", percent(a), percent(b));
        }
        if let Some(distance) = &quantized.against_float {
            if let Some(agreement) = distance.agreement {
                table.row("same class as float", "", percent(agreement));
            }
            let sqnr = format!("{:.2} dB", distance.sqnr_db);
            table.row("SQNR against float", "", sqnr);
            let cosine = |cosine| format!("{cosine:.5}");
            table.row("cosine with float, mean", "", cosine(distance.cosine_mean));
            table.row("cosine with float, min", "", cosine(distance.cosine_min));
        }
        let ms = |milliseconds| format!("{milliseconds:.2} ms");
        table.row("batch, median", ms(float.p50_ms), ms(quantized.p50_ms));
        table.row("batch, 95th percentile", ms(float.p95_ms), ms(quantized.p95_ms));
        let weights = (megabytes(float.weight_bytes), megabytes(quantized.weight_bytes));
        table.row("weights of swapped layers", weights.0, weights.1);
        let total = (megabytes(float.total_bytes), megabytes(quantized.total_bytes));
        table.row("whole model", total.0, total.1);
        let profile = self.profile();
        table.finish(&format!(
            "median speedup {:.2}; threads {}, instruction set {}{profile}",
            float.p50_ms / quantized.p50_ms,
            self.threads,
            self.isa,
        ))
    }
}

impl Figures {
    /// The stages, with the share of the quantized model's time.
    fn profile(&self) -> String {
        if self.stages.is_empty() {
            return String::new();
        }
        let mut out = format!(
            "\n\n{:<60}{:>10}{:>12}{:>11}{:>8}",
            "own time, ms a batch", "calls", "float", "quantized", "share"
        );
        let total: f64 = self.stages.iter().map(|stage| stage.quantized_ms).sum();
        for stage in &self.stages {
            // Writing to a String cannot fail.
            let _ = write!(
                out,
                "\n{:<60}{:>10}{:>12.3}{:>11.3}{:>8}",
                stage.stage,
                stage.calls,
                stage.float_ms,
                stage.quantized_ms,
                format!("{:.0} %", 100. * stage.quantized_ms / total),
            );
        }
        out
    }
}

/// Numbers of the texts to show, spread over all.
fn shown(count: usize) -> impl Iterator<Item = usize> {
    let shown = count.min(SHOWN);
    (0..shown).map(move |i| i * count / shown)
}

fn classes(measured: &Measured<'_>, labels: &[String]) -> String {
    let mut out = format!("{:<60}  {:<18}  {:<18}  label\n", "text", "float", "quantized");
    for i in shown(measured.texts.len()) {
        let text = &measured.texts[i];
        let [float, quantized] = [0, 1].map(|side| {
            let (class, probability) = class(&measured.runs[side].answers[i]);
            format!("{} {probability:.2}", labels[class])
        });
        let label = text.label.map_or("", |label| &labels[label]);
        let start = short(&text.text, 60);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{start:<60}  {float:<18}  {quantized:<18}  {label}");
    }
    out
}

fn neighbours(measured: &Measured<'_>) -> String {
    let mut out = "nearest text by float and by quantized embeddings\n".to_owned();
    for i in shown(measured.texts.len()) {
        let _ = writeln!(out, "{}", short(&measured.texts[i].text, 70));
        for (side, name) in ["float", "quantized"].into_iter().enumerate() {
            if let Some((other, cosine)) = nearest(&measured.runs[side].answers, i) {
                let text = short(&measured.texts[other].text, 70);
                let _ = writeln!(out, "    {name:<10} {cosine:.3}  {text}");
            }
        }
    }
    out
}

/// The text, or its start and an ellipsis, in at most `length` characters.
fn short(text: &str, length: usize) -> String {
    if text.chars().count() > length {
        text.chars().take(length - 1).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}
