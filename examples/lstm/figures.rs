//! The figures of a run, as `--json` prints them.

use candle_dynquant::Report;
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

/// One of the two models.
#[derive(Serialize)]
pub struct Side {
    /// Of the next character.
    pub perplexity: f64,
    pub bits_per_token: f64,
    /// Of writing, one after the other.
    pub tokens_per_s: f64,
    /// Of reading, as many side by side as `--batch` says.
    pub scored_tokens_per_s: f64,
    /// Of the layers that were swapped.
    pub weight_bytes: usize,
    /// Of the whole model.
    pub total_bytes: usize,
    /// Share of characters for which it holds the same one likeliest as the float model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
    /// What it wrote after the prompt.
    pub text: String,
}

/// What the figures are taken from: float first, then quantized.
pub struct Measured<'a> {
    pub readings: &'a [Reading; 2],
    pub writings: &'a [Writing; 2],
    pub texts: [String; 2],
    pub report: &'a Report,
    pub float_bytes: usize,
}

impl Figures {
    /// Draws up the figures.
    pub fn new(
        model: String,
        kind: &'static str,
        preset: String,
        threads: usize,
        measured: Measured<'_>,
    ) -> Self {
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
            threads,
            tokens: float.count,
            float: side(0, before, None, float_text),
            quantized: side(
                1,
                after,
                Some(same as f64 / float.count as f64),
                quantized_text,
            ),
        }
    }
}
