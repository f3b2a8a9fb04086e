//! Text from a model, token by token, the same for the same seed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant_decoder::sampling::{Random, Sampling};
use candle_dynquant_decoder::{Cache, Decoder, Texts};

/// A model that continues a text.
pub struct Writer<'a> {
    model: &'a Decoder,
    texts: &'a Texts,
    sampling: Sampling,
    random: Random,
}

/// A text that is being written.
pub struct Text {
    prompt: usize,
    tokens: Vec<u32>,
    /// Keys and values of the tokens that were read.
    cache: Cache,
}

impl Text {
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }
}

/// The generated text and its times.
pub struct Written {
    pub text: String,
    pub prompt: usize,
    pub tokens: usize,
    /// The number of drawn tokens, including a token that ended the text.
    pub steps: usize,
    /// The time from the prompt to the first token.
    pub first: Duration,
    /// The median time of each later token.
    pub token: Option<Duration>,
    pub cache_bytes: usize,
}

impl<'a> Writer<'a> {
    pub fn new(model: &'a Decoder, texts: &'a Texts, sampling: Sampling, seed: u64) -> Self {
        Self {
            model,
            texts,
            sampling,
            random: Random::new(seed),
        }
    }

    /// Continues `prompt` by up to `length` tokens, or until a token ends the text; `show` gets
    /// each part of the text once it is certain.
    pub fn write(
        &mut self,
        prompt: &[u32],
        length: usize,
        ends: &[u32],
        mut show: impl FnMut(&str) -> Result<()>,
    ) -> Result<Written> {
        let mut parts = self.texts.tokenizer.decode_stream(true);
        let (mut written, mut text) = (self.start(prompt), String::new());
        let mut times = Vec::with_capacity(length);
        while times.len() < length {
            let start = Instant::now();
            let token = self.step(&mut written)?;
            times.push(start.elapsed());
            if ends.contains(&token) {
                break;
            }
            written.push(token);
            let part = parts
                .step(token)
                .map_err(|e| anyhow::anyhow!("tokenizer: {e}"))?;
            if let Some(part) = part {
                show(&part)?;
                text.push_str(&part);
            }
        }
        let mut after = times.split_off(1.min(times.len()));
        after.sort_unstable();
        Ok(Written {
            text,
            prompt: prompt.len(),
            tokens: written.tokens.len() - prompt.len(),
            steps: times.len() + after.len(),
            first: times.first().copied().unwrap_or_default(),
            token: after.get(after.len() / 2).copied(),
            cache_bytes: written.cache.bytes(),
        })
    }

    /// The text before its first step.
    pub fn start(&self, prompt: &[u32]) -> Text {
        Text {
            prompt: prompt.len(),
            tokens: prompt.to_vec(),
            cache: self.model.cache(),
        }
    }

    /// Reads the tokens not read yet, and draws the next token.
    pub fn step(&mut self, text: &mut Text) -> Result<u32> {
        let unread = &text.tokens[text.cache.len()..];
        let unread = Tensor::new(unread, &Device::Cpu)?.unsqueeze(0)?;
        let scores = self.model.next(&unread, &mut text.cache)?.squeeze(0)?;
        let _span = tracing::trace_span!(target: "candle_dynquant::forward", "sampling").entered();
        let (prompt, written) = text.tokens.split_at(text.prompt);
        let mut scores = scores.to_vec1::<f32>()?;
        ensure!(
            !scores.iter().any(|score| score.is_nan()),
            "scores after {} tokens: expected numbers, got NaN: the weights or their sizes are wrong",
            text.tokens.len()
        );
        let random = &mut self.random;
        Ok(self.sampling.draw(&mut scores, prompt, written, random))
    }
}
