//! The same figures for people, and what both models wrote, side by side.

use std::fmt::Write;

use candle_dynquant::Report;

use crate::figures::Figures;

/// Characters in a column of text.
const COLUMN: usize = 48;

/// What was run, in two lines.
pub fn head(figures: &Figures, report: &Report) -> String {
    format!(
        "{} ({}): {} characters of held-out text\n{} of {} layers swapped ({})",
        figures.model,
        figures.kind,
        figures.tokens,
        report.swapped().count(),
        report.layers.len(),
        figures.preset,
    )
}

/// Both texts, then the figures.
pub fn show(figures: &Figures, prompt: &str) -> String {
    format!("{}\n{}", texts(figures, prompt), table(figures))
}

fn texts(figures: &Figures, prompt: &str) -> String {
    let (float, quantized) = (&figures.float.text, &figures.quantized.text);
    let [left, right] = [float, quantized].map(|text| wrap(&format!("{prompt}{text}")));
    let mut out = format!("{:<COLUMN$}  quantized\n", "float");
    for row in 0..left.len().max(right.len()) {
        let [left, right] = [&left, &right].map(|lines| lines.get(row).map_or("", |l| l.as_str()));
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", format!("{left:<COLUMN$}  {right}").trim_end());
    }
    let same = float.chars().zip(quantized.chars());
    let same = same.take_while(|(a, b)| a == b).count();
    let _ = match same == float.chars().count() {
        true => writeln!(out, "(the same text)"),
        false => writeln!(out, "(the same for {same} characters)"),
    };
    out
}

/// The text in lines of at most [`COLUMN`] characters, broken between words where it can be.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        let mut length = 0;
        for word in paragraph.split_inclusive(' ') {
            let word_length = word.trim_end().chars().count();
            if length > 0 && length + word_length > COLUMN {
                lines.push(std::mem::take(&mut line));
                length = 0;
            }
            for character in word.chars() {
                if length == COLUMN && character != ' ' {
                    lines.push(std::mem::take(&mut line));
                    length = 0;
                }
                line.push(character);
                length += 1;
            }
        }
        lines.push(line);
    }
    lines
        .iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

fn table(figures: &Figures) -> String {
    let (float, quantized) = (&figures.float, &figures.quantized);
    let mut out = String::new();
    let mut row = |name: &str, float: String, quantized: String| {
        let _ = writeln!(out, "{name:<32}{float:>12}{quantized:>14}");
    };
    let number = |figure: f64| format!("{figure:.4}");
    let rate = |per_s: f64| format!("{per_s:.0}");
    row("", "float".into(), "quantized".into());
    row(
        "perplexity of a character",
        number(float.perplexity),
        number(quantized.perplexity),
    );
    row(
        "bits per character",
        number(float.bits_per_token),
        number(quantized.bits_per_token),
    );
    if let Some(share) = quantized.agreement {
        let percent = format!("{:.2} %", 100. * share);
        row("same best guess as float", String::new(), percent);
    }
    row(
        "characters written a second",
        rate(float.tokens_per_s),
        rate(quantized.tokens_per_s),
    );
    row(
        "characters read a second",
        rate(float.scored_tokens_per_s),
        rate(quantized.scored_tokens_per_s),
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
        "speedup of writing {:.2}, of reading {:.2}; threads {}, instruction set {}",
        quantized.tokens_per_s / float.tokens_per_s,
        quantized.scored_tokens_per_s / float.scored_tokens_per_s,
        figures.threads,
        figures.isa,
    );
    out
}

fn mb(bytes: usize) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}
