//! The same figures for people, and a few answers of both models.

use std::fmt::Write;

use crate::figures::{Figures, Measured};
use crate::measure::{class, nearest};

/// Texts of which both answers are shown.
const SHOWN: usize = 8;

/// What was run, in two lines.
pub fn head(figures: &Figures, measured: &Measured<'_>, batch: usize) -> String {
    let report = measured.report;
    format!(
        "{}: {} texts in batches of {batch}\n{} of {} layers swapped ({}{})",
        figures.model,
        measured.texts.len(),
        report.swapped().count(),
        report.layers.len(),
        figures.preset,
        if figures.embeddings {
            ", embeddings"
        } else {
            ""
        },
    )
}

/// Some answers, then the figures.
pub fn show(figures: &Figures, measured: &Measured<'_>, labels: &[String]) -> String {
    let mut out = match measured.is_classifier {
        true => classes(measured, labels),
        false => neighbours(measured),
    };
    // Writing to a String cannot fail.
    let _ = write!(out, "\n{}", table(figures));
    out
}

/// Numbers of the texts to show, spread over all.
fn shown(count: usize) -> impl Iterator<Item = usize> {
    let shown = count.min(SHOWN);
    (0..shown).map(move |i| i * count / shown)
}

fn classes(measured: &Measured<'_>, labels: &[String]) -> String {
    let mut out = format!(
        "{:<60}  {:<18}  {:<18}  label\n",
        "text", "float", "quantized"
    );
    for i in shown(measured.texts.len()) {
        let text = &measured.texts[i];
        let [float, quantized] = [0, 1].map(|side| {
            let (class, probability) = class(&measured.runs[side].answers[i]);
            format!("{} {probability:.2}", labels[class])
        });
        let label = text.label.map_or("", |label| &labels[label]);
        let start = short(&text.text, 60);
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

fn table(figures: &Figures) -> String {
    let (float, quantized) = (&figures.float, &figures.quantized);
    let mut out = String::new();
    let mut row = |name: &str, float: String, quantized: String| {
        let _ = writeln!(out, "{name:<28}{float:>12}{quantized:>14}");
    };
    let percent = |share: f64| format!("{:.2} %", 100. * share);
    row("", "float".into(), "quantized".into());
    if let (Some(a), Some(b)) = (float.accuracy, quantized.accuracy) {
        row("accuracy", percent(a), percent(b));
    }
    if let Some(distance) = &quantized.against_float {
        if let Some(agreement) = distance.agreement {
            row("same class as float", String::new(), percent(agreement));
        }
        row(
            "SQNR against float",
            String::new(),
            format!("{:.2} dB", distance.sqnr_db),
        );
        row(
            "cosine with float, mean",
            String::new(),
            format!("{:.5}", distance.cosine_mean),
        );
        row(
            "cosine with float, least",
            String::new(),
            format!("{:.5}", distance.cosine_min),
        );
    }
    row("a batch, median", ms(float.p50_ms), ms(quantized.p50_ms));
    row(
        "a batch, 95th percentile",
        ms(float.p95_ms),
        ms(quantized.p95_ms),
    );
    row(
        "weights of swapped layers",
        mb(float.weight_bytes),
        mb(quantized.weight_bytes),
    );
    row(
        "whole model",
        mb(float.total_bytes),
        mb(quantized.total_bytes),
    );
    let _ = writeln!(
        out,
        "median speedup {:.2}; threads {}, instruction set {}",
        float.p50_ms / quantized.p50_ms,
        figures.threads,
        figures.isa,
    );
    out
}

fn ms(milliseconds: f64) -> String {
    format!("{milliseconds:.2} ms")
}

fn mb(bytes: usize) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

/// The text, or its start and an ellipsis, in at most `length` characters.
fn short(text: &str, length: usize) -> String {
    match text.chars().count() > length {
        true => text.chars().take(length - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}
