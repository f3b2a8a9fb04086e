//! The figures of a run, for `--json` and as text with the output of both models.

use std::fmt::Write;

use candle_dynquant::Report;
use candle_dynquant_support::table::{Table, megabytes, percent};
use serde::Serialize;

use crate::measure::{Reading, Writing};

/// The JSON object. A token is a character.
#[derive(Serialize)]
pub struct Figures {
    pub model: String,
    /// `lstm` or `gru`.
    pub kind: &'static str,
    pub preset: String,
    /// Instruction set of the quantized layers.
    pub isa: String,
    pub threads: usize,
    /// Characters of the held-out text that were predicted.
    pub tokens: usize,
    pub float: Side,
    pub quantized: Side,
}

/// The figures of one of the two models.
#[derive(Serialize)]
pub struct Side {
    /// The perplexity of the next character.
    pub perplexity: f64,
    pub bits_per_token: f64,
    /// The speed of writing, one character at a time.
    pub tokens_per_s: f64,
    /// The speed of reading, in batches of `--batch`.
    pub scored_tokens_per_s: f64,
    /// The bytes of the layers that were swapped.
    pub weight_bytes: usize,
    /// The bytes of the whole model.
    pub total_bytes: usize,
    /// Share of characters where its most likely prediction equals the float model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
    /// The text that it wrote after the prompt.
    pub text: String,
}

/// The measurements that figures are computed from: float first, then quantized.
pub struct Measured<'a> {
    pub readings: &'a [Reading; 2],
    pub writings: &'a [Writing; 2],
    pub texts: [String; 2],
    pub report: &'a Report,
    pub float_bytes: usize,
}

impl Figures {
    /// Computes the figures.
    pub fn new(model: String, kind: &'static str, preset: String, measured: Measured<'_>) -> Self {
        let report = measured.report;
        let (before, after) = (report.bytes_before(), report.bytes_after());
        let [float, quantized] = measured.readings;
        let pairs = float.guesses.iter().zip(&quantized.guesses);
        let same = pairs.filter(|(a, b)| a == b).count();
        let [float_text, quantized_text] = measured.texts;
        let side = |side: usize, weight_bytes, agreement, text| {
            let reading = &measured.readings[side];
            Side {
                perplexity: reading.perplexity(),
                bits_per_token: reading.bits(),
                tokens_per_s: measured.writings[side].per_s,
                scored_tokens_per_s: reading.per_s,
                weight_bytes,
                total_bytes: measured.float_bytes - before + weight_bytes,
                agreement,
                text,
            }
        };
        Self {
            model,
            kind,
            preset,
            isa: report.isa.clone(),
            threads: candle_core::utils::get_num_threads(),
            tokens: float.count,
            float: side(0, before, None, float_text),
            quantized: side(1, after, Some(same as f64 / float.count as f64), quantized_text),
        }
    }
}

/// Characters in a column of text.
const COLUMN: usize = 48;

impl Figures {
    /// A header, both texts, then the figures.
    pub fn text(&self, report: &Report, prompt: &str) -> String {
        format!(
            "{} ({}): {} characters of held-out text\n{} of {} layers swapped ({})\n\n{}\n{}",
            self.model,
            self.kind,
            self.tokens,
            report.swapped().count(),
            report.layers.len(),
            self.preset,
            texts(self, prompt),
            self.table(),
        )
    }

    fn table(&self) -> String {
        let (float, quantized) = (&self.float, &self.quantized);
        let mut table = Table::with_header();
        let mut row = |name: &str, show: fn(&Side) -> String| {
            table.row(name, show(float), show(quantized));
        };
        row("perplexity per character", |s| format!("{:.4}", s.perplexity));
        row("bits per character", |s| format!("{:.4}", s.bits_per_token));
        row("same best guess as float", |s| s.agreement.map_or_else(String::new, percent));
        row("characters written per second", |s| format!("{:.0}", s.tokens_per_s));
        row("characters read per second", |s| format!("{:.0}", s.scored_tokens_per_s));
        row("weights of swapped layers", |s| megabytes(s.weight_bytes));
        row("whole model", |s| megabytes(s.total_bytes));
        table.finish(&format!(
            "speedup of writing {:.2}, of reading {:.2}; threads {}, instruction set {}",
            quantized.tokens_per_s / float.tokens_per_s,
            quantized.scored_tokens_per_s / float.scored_tokens_per_s,
            self.threads,
            self.isa,
        ))
    }
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
    let _ = if same == float.chars().count() {
        writeln!(out, "(the same text)")
    } else {
        writeln!(out, "(the same for {same} characters)")
    };
    out
}

/// The text in lines of at most [`COLUMN`] characters, broken between words if possible.
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
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}
