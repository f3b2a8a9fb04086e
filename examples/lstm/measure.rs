//! Reads the same text with both models, and writes a text with each.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::{Device, Tensor};
use candle_dynquant_support::lstm::{CharModel, State};

use candle_dynquant_decoder::sampling::highest;

use crate::generate::{Generator, Sampling};

/// Characters of each stream that one call scores.
const STEPS: usize = 128;
/// Characters that one model writes before the models alternate.
const BLOCK: usize = 100;
/// Minimum number of blocks for a speed.
const BLOCKS: usize = 40;

/// The results of one model reading the text.
#[derive(Default)]
pub struct Reading {
    /// Sum of the negative logarithms of the predicted probabilities.
    pub nats: f64,
    /// Characters that were predicted.
    pub count: usize,
    /// The most likely character of each prediction.
    pub guesses: Vec<usize>,
    /// Characters per second, by the median call.
    pub per_s: f64,
}

impl Reading {
    /// `e` to the mean negative logarithm of the predicted probabilities.
    pub fn perplexity(&self) -> f64 {
        (self.nats / self.count as f64).exp()
    }

    pub fn bits(&self) -> f64 {
        self.nats / self.count as f64 / std::f64::consts::LN_2
    }
}

/// The text that one model wrote.
pub struct Writing {
    pub text: Vec<u32>,
    /// Characters per second, by the median block.
    pub per_s: f64,
}

/// A text split into streams of equal length, read as a batch in calls of up to [`STEPS`].
pub struct Streams {
    /// Characters read and characters to predict, `[steps, batch]` each.
    calls: Vec<(Tensor, Vec<u32>)>,
}

impl Streams {
    /// Splits a text of at least two characters. The remainder at its end, fewer characters than
    /// there are streams, is dropped.
    pub fn new(ids: &[u32], batch: usize) -> Result<Self> {
        let batch = batch.min(ids.len() - 1);
        let length = (ids.len() - 1) / batch;
        let mut calls = Vec::new();
        for start in (0..length).step_by(STEPS) {
            let steps = STEPS.min(length - start);
            let at = |offset: usize| -> Vec<u32> {
                let steps = start + offset..start + offset + steps;
                let row = |step| (0..batch).map(move |stream| ids[stream * length + step]);
                steps.flat_map(row).collect()
            };
            let read = Tensor::from_vec(at(0), (steps, batch), &Device::Cpu)?;
            calls.push((read, at(1)));
        }
        Ok(Self { calls })
    }

    /// The number of calls.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }
}

/// Reads with `float` and `quantized` alternately, call by call, so that other load on the machine
/// affects both. Calls `tick` after every call.
pub fn read(
    float: &CharModel,
    quantized: &CharModel,
    streams: &Streams,
    mut tick: impl FnMut(),
) -> Result<[Reading; 2]> {
    let models = [float, quantized];
    let mut readings = [Reading::default(), Reading::default()];
    let mut states: [Option<State>; 2] = [None, None];
    let mut times = [Vec::new(), Vec::new()];
    for (number, (ids, expected)) in streams.calls.iter().enumerate() {
        for side in order(number) {
            let start = Instant::now();
            let (scores, state) = models[side].forward(ids, states[side].as_ref())?;
            times[side].push((expected.len(), start.elapsed()));
            states[side] = Some(state);
            let vocab = scores.dim(2)?;
            let scores: Vec<f32> = scores.flatten_all()?.to_vec1()?;
            for (scores, expected) in scores.chunks_exact(vocab).zip(expected) {
                let (nats, guess) = surprise(scores, *expected as usize);
                readings[side].nats += nats;
                readings[side].count += 1;
                readings[side].guesses.push(guess);
            }
        }
        tick();
    }
    for (reading, times) in readings.iter_mut().zip(&times) {
        reading.per_s = median_per_s(times);
    }
    Ok(readings)
}

/// The negative logarithm of the probability of `expected`, and the most likely character.
fn surprise(scores: &[f32], expected: usize) -> (f64, usize) {
    let guess = highest(scores);
    let above = |score: f32| f64::from(score) - f64::from(scores[guess]);
    let sum: f64 = scores.iter().map(|score| above(*score).exp()).sum();
    (sum.ln() - above(scores[expected]), guess)
}

/// Writes `length` characters after `prompt` with both models, or more if the timing needs more.
/// The models alternate in blocks: within a block a model's weights stay in the cache, as they
/// would if it ran alone.
pub fn write(
    float: &CharModel,
    quantized: &CharModel,
    prompt: &[u32],
    length: usize,
    sampling: Sampling,
) -> Result<[Writing; 2]> {
    let mut generators =
        [Generator::new(float, prompt, sampling)?, Generator::new(quantized, prompt, sampling)?];
    let mut texts = [Vec::new(), Vec::new()];
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..BLOCKS.max(length.div_ceil(BLOCK)) {
        for side in order(number) {
            let start = Instant::now();
            for _ in 0..BLOCK {
                texts[side].push(generators[side].step()?);
            }
            times[side].push((BLOCK, start.elapsed()));
        }
    }
    Ok([0, 1].map(|side| {
        let text = texts[side][..length].to_vec();
        Writing { text, per_s: median_per_s(&times[side]) }
    }))
}

/// The second model finds its input in the cache, so they alternate in going first.
fn order(number: usize) -> [usize; 2] {
    if number.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

/// Characters per second: the median over pairs of count and time.
fn median_per_s(times: &[(usize, Duration)]) -> f64 {
    let rate = |(count, time): &(usize, Duration)| *count as f64 / time.as_secs_f64();
    let mut rates: Vec<f64> = times.iter().map(rate).collect();
    rates.sort_unstable_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}
