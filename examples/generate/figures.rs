//! The figures of a run, for `--json` and as text.

use std::fmt::Write;

use anyhow::Result;
use candle_dynquant::Isa;
use candle_dynquant_support::table::megabytes;
use serde::Serialize;

use crate::profile::{Steps, Times};
use crate::reader::Perplexity;
use crate::writer::Written;

/// The JSON object.
#[derive(Serialize)]
pub struct Figures {
    pub model: String,
    pub preset: String,
    /// Instruction set of the quantized layers.
    pub isa: String,
    pub threads: usize,
    pub prompt_tokens: usize,
    pub tokens: u32,
    /// The tokens that were guessed, and those that were right.
    pub guessed: [usize; 2],
    /// The text after the prompt.
    pub text: String,
    /// The milliseconds from the prompt to the first token.
    pub first_token_ms: f64,
    /// The mean milliseconds of each later token.
    pub token_ms: Option<f64>,
    /// The bytes of all layers.
    pub weight_bytes: usize,
    /// Keys and values at the end.
    pub cache_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float: Option<Perplexity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantized: Option<Perplexity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Steps>,
}

impl Figures {
    pub fn new(
        model: String,
        preset: String,
        weight_bytes: usize,
        written: &Written,
    ) -> Result<Self> {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        Ok(Self {
            model,
            preset,
            isa: Isa::active()?.to_string(),
            threads: candle_core::utils::get_num_threads(),
            prompt_tokens: written.prompt,
            tokens: written.tokens,
            guessed: written.guessed,
            text: written.text.clone(),
            first_token_ms: ms(written.first),
            token_ms: written.token.map(ms),
            weight_bytes,
            cache_bytes: written.cache_bytes,
            float: None,
            quantized: None,
            profile: None,
        })
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "{}, {}: {} of weights, {} of keys and values; {}, {} threads\n",
            self.model,
            self.preset,
            megabytes(self.weight_bytes),
            megabytes(self.cache_bytes),
            self.isa,
            self.threads,
        );
        let _ = write!(
            text,
            "{} tokens read, first token after {:.1} ms; {} written",
            self.prompt_tokens, self.first_token_ms, self.tokens,
        );
        if let Some(ms) = self.token_ms {
            let _ = write!(text, ", {ms:.2} ms each ({:.0} a second)", 1e3 / ms);
        }
        let [guessed, right] = self.guessed;
        if guessed > 0 {
            let _ = write!(text, "; {right} of {guessed} guesses were right");
        }
        if let Some(read) = self.quantized {
            let _ = write!(text, "\nperplexity of {} tokens: {:.3}", read.tokens, read.perplexity);
            if let Some(float) = self.float {
                let loss = (read.perplexity / float.perplexity - 1.) * 100.;
                let _ = write!(text, ", {:.3} in float ({loss:+.2} %)", float.perplexity);
            }
        }
        if let Some(Steps { prompt, token }) = &self.profile {
            let of_prompt = std::iter::once(("the prompt", prompt));
            for (of, times) in of_prompt.chain(token.iter().map(|token| ("a token", token))) {
                text.push_str(&table(of, times));
            }
        }
        text
    }
}

/// The stages of a step, with their shares of its time.
fn table(what: &str, times: &Times) -> String {
    let Times { ms, recorded_ms, .. } = times;
    let mut out = format!("\n\n{what}: {ms:.3} ms, {recorded_ms:.3} recorded");
    let _ = write!(out, "\n{:<60}{:>10}{:>12}{:>8}", "own time", "calls", "ms", "share");
    for stage in &times.stages {
        let share = format!("{:.1} %", 100. * stage.ms / recorded_ms);
        let (name, calls, ms) = (&stage.stage, stage.calls, stage.ms);
        let _ = write!(out, "\n{name:<60}{calls:>10}{ms:>12.4}{share:>8}");
    }
    out
}
