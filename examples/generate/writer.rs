//! A text, written while it is shown, and its times.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_dynquant_decoder::{Generation, Piece};

/// The generated text and its times.
pub struct Written {
    pub text: String,
    pub prompt: usize,
    pub tokens: u32,
    /// The time from the prompt to the first token.
    pub first: Duration,
    /// The mean time of each later token.
    pub token: Option<Duration>,
    pub cache_bytes: usize,
    /// The number of guessed tokens, and of those that were right.
    pub guessed: [usize; 2],
}

impl Written {
    /// Generates the text; `show` gets each part once it is certain.
    pub fn write(
        mut generation: Generation<'_>,
        mut show: impl FnMut(&str) -> Result<()>,
    ) -> Result<Self> {
        let start = Instant::now();
        let (mut text, mut tokens, mut times) = (String::new(), 0, None);
        for piece in &mut generation {
            let Piece { text: part, .. } = piece?;
            let now = start.elapsed();
            let (first, _) = times.unwrap_or((now, now));
            times = Some((first, now));
            tokens += 1;
            text.push_str(&part);
            show(&part)?;
        }
        let (first, last) = times.unwrap_or_default();
        Ok(Self {
            text,
            prompt: generation.prompt_tokens(),
            tokens,
            first,
            token: (tokens > 1).then(|| (last - first) / (tokens - 1)),
            cache_bytes: generation.cache_bytes(),
            guessed: generation.guessed(),
        })
    }
}
