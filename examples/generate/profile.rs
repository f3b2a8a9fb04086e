//! The time of each stage of a step: of reading the prompt, and of a later token.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_dynquant_decoder::{GenerationConfig, Generator};
use candle_dynquant_support::profile::{Profile, Recorder};
use serde::Serialize;

/// The number of times that a text is written; every other step is recorded, alternating between
/// texts.
const TEXTS: usize = 6;

/// The two kinds of steps.
#[derive(Serialize)]
pub struct Steps {
    pub prompt: Times,
    /// The times of later tokens, if there are any.
    pub token: Option<Times>,
}

/// Means of a step.
#[derive(Serialize)]
pub struct Times {
    /// The milliseconds of a step that is not recorded.
    pub ms: f64,
    pub recorded_ms: f64,
    /// The stages, the slowest first; the last is candle's time between the layers.
    pub stages: Vec<Stage>,
}

/// A kind of layer at a place of the model, `*` for its numbers, or an operation.
#[derive(Serialize)]
pub struct Stage {
    pub stage: String,
    pub calls: usize,
    /// The milliseconds of the stage without nested stages.
    pub ms: f64,
}

/// The steps of a kind that were recorded, and the others.
#[derive(Default)]
struct Sums {
    recorded: (usize, Profile),
    others: (usize, Duration),
}

/// Writes the first `length` tokens of a text several times, a token a step.
pub fn steps(
    generator: &Generator<'_>,
    prompt: &[u32],
    config: GenerationConfig,
    length: usize,
) -> Result<Steps> {
    let recorder = Recorder::install()?;
    let (mut of_prompt, mut of_token) = (Sums::default(), Sums::default());
    let config = GenerationConfig { drafts: 0, ..config };
    for text in 0..TEXTS {
        let mut generation = generator.generate(prompt, &config)?;
        for index in 0..length {
            let sums = if index == 0 { &mut of_prompt } else { &mut of_token };
            let mut step = || generation.next().transpose();
            if (text + index) % 2 == 0 {
                let (piece, profile) = recorder.record(step);
                piece?;
                sums.recorded.0 += 1;
                sums.recorded.1.add(profile);
            } else {
                let start = Instant::now();
                step()?;
                sums.others.0 += 1;
                sums.others.1 += start.elapsed();
            }
        }
    }
    Ok(Steps { prompt: of_prompt.means(), token: (length > 1).then(|| of_token.means()) })
}

impl Sums {
    fn means(&self) -> Times {
        let mean = |time: Duration, count: usize| time.as_secs_f64() * 1e3 / count.max(1) as f64;
        let (count, profile) = &self.recorded;
        let stage = |stage: &str, calls, ms| Stage { stage: stage.to_owned(), calls, ms };
        let (stages, between) = profile.means(*count);
        let stages = stages.into_iter();
        let mut stages: Vec<_> = stages.map(|(name, (calls, ms))| stage(name, calls, ms)).collect();
        stages.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        stages.push(stage("between the layers", (*count).min(1), between));
        Times {
            ms: mean(self.others.1, self.others.0),
            recorded_ms: mean(profile.whole, *count),
            stages,
        }
    }
}
