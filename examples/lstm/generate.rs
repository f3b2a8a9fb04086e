//! Text from a model, character by character, the same for the same seed.

use candle_core::Result;
use candle_dynquant_decoder::sampling::{Random, highest};
use candle_dynquant_support::lstm::{CharModel, State};

/// How characters are drawn.
#[derive(Clone, Copy)]
pub struct Sampling {
    pub seed: u64,
    /// The divisor of the scores; 0 takes the highest score.
    pub temperature: f64,
}

/// A text on its way.
pub struct Generator<'a> {
    model: &'a CharModel,
    /// Scores of the character to come.
    scores: Vec<f32>,
    state: State,
    temperature: f64,
    random: Random,
}

impl<'a> Generator<'a> {
    /// A text that begins with `prompt`, which has at least one character.
    pub fn new(model: &'a CharModel, prompt: &[u32], sampling: Sampling) -> Result<Self> {
        let (scores, state) = model.read(prompt)?;
        Ok(Self {
            model,
            scores,
            state,
            temperature: sampling.temperature,
            random: Random::new(sampling.seed),
        })
    }

    /// Draws the next character, which the model then reads.
    pub fn step(&mut self) -> Result<u32> {
        let id = sample(&self.scores, self.temperature, self.random.uniform());
        (self.scores, self.state) = self.model.step(id, &self.state)?;
        Ok(id)
    }
}

/// The number that `uniform`, from 0 to 1, falls on when each has its probability's share.
fn sample(scores: &[f32], temperature: f64, uniform: f64) -> u32 {
    let best = highest(scores);
    if temperature == 0. {
        return best as u32;
    }
    let top = scores[best];
    let share = |score: &f32| (f64::from(score - top) / temperature).exp();
    let mut left = uniform * scores.iter().map(share).sum::<f64>();
    for (id, score) in scores.iter().enumerate() {
        left -= share(score);
        if left < 0. {
            return id as u32;
        }
    }
    // Only the rest that rounding loses comes here.
    best as u32
}
