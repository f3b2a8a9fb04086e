//! The thread of the model: continuous batching.
//!
//! Each step reads one token of every text that is being written, and pieces of the waiting
//! prompts, the shortest first. Texts join and leave between two steps. A text holds the pages of
//! its whole cache before it joins, so none is ever suspended, and its bits do not depend on other
//! texts: it begins with pages of others only where their tokens are the same.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use candle_core::{Device, Tensor};
use candle_dynquant_decoder::{Cache, Part};
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use tokio::sync::mpsc::UnboundedReceiver;

use super::model::Model;
use super::prefixes::{Prefixes, Start};
use super::sequence::{Drafter, GenerationJob, Sequence};
use crate::error::Refusal;
use crate::metrics::Metrics;
use crate::places::Places;

/// The limits that all texts share.
pub struct SharedLimits {
    /// The most tokens of prompts that are read in a step.
    pub prefill: usize,
    /// The most texts that are written at a time.
    pub sequences: usize,
    pub pages: Places,
    /// Whether texts share the pages of common prefixes.
    pub shares: bool,
    /// The most tokens that a step guesses, of all texts, and checks.
    pub drafts: usize,
}

/// Starts the thread. It ends when the last sender of jobs is dropped and all jobs are done.
pub fn start(
    model: Model,
    ends: Vec<u32>,
    jobs: UnboundedReceiver<GenerationJob>,
    limits: SharedLimits,
    metrics: Arc<Metrics>,
) -> io::Result<JoinHandle<()>> {
    // With one scale for a call, keys and values depend on the pieces in which they were read.
    let shares = limits.shares && !model.one_by_one;
    let mut engine = Engine {
        prefixes: Prefixes::new(shares, limits.pages.clone()),
        model,
        ends,
        jobs,
        limits,
        waiting: VecDeque::new(),
        running: Vec::new(),
        steps: 0,
        metrics,
    };
    let run = move || {
        while engine.admit() {
            engine.step();
        }
    };
    Builder::new().name("model".to_owned()).spawn(run)
}

struct Engine {
    model: Model,
    ends: Vec<u32>,
    jobs: UnboundedReceiver<GenerationJob>,
    limits: SharedLimits,
    waiting: VecDeque<GenerationJob>,
    running: Vec<Sequence>,
    prefixes: Prefixes<Cache>,
    steps: u64,
    metrics: Arc<Metrics>,
}

impl Engine {
    /// Lets jobs join while they fit, and waits for a job if there is nothing to do; returns
    /// `false` when no more can come.
    fn admit(&mut self) -> bool {
        loop {
            // Others may begin with the texts that are over.
            for text in self.running.extract_if(.., |text| text.is_over()) {
                if let Some(entry) = text.into_entry(self.steps) {
                    self.prefixes.add(entry);
                }
            }
            while let Ok(job) = self.jobs.try_recv() {
                self.waiting.push_back(job);
            }
            self.waiting.retain(|job| !job.is_abandoned());
            while self.running.len() < self.limits.sequences
                && let Some(job) = self.waiting.front()
                && let donors = self.running.iter().map(|text| text.donor())
                && let Some(start) =
                    (self.prefixes).start(&job.prompt, job.pages(), donors, self.steps)
                && let Some(job) = self.waiting.pop_front()
            {
                self.join(job, start);
            }
            let pages = self.prefixes.counts();
            let [all, of_ended] = pages.map(|count| count * self.model.page_bytes);
            let counts = [self.running.len(), self.waiting.len(), all, of_ended];
            self.metrics.generation.now(counts);
            if !self.running.is_empty() {
                return true;
            }
            match self.jobs.blocking_recv() {
                Some(job) => self.waiting.push_back(job),
                None => return false,
            }
        }
    }

    fn join(&mut self, job: GenerationJob, start: Start<Cache>) {
        self.metrics.generation.joined(job.since, start.length);
        let mut cache = start.cache.unwrap_or_else(|| self.model.cache_for(job.positions()));
        cache.truncate(start.length);
        let draft = self.model.draft.as_ref().map(|draft| draft.decoder().cache());
        self.running.push(Sequence::new(job, cache, draft, self.steps, start.pages));
    }

    fn step(&mut self) {
        let start = Instant::now();
        self.steps += 1;
        let drafter = self.model.draft.as_ref().map(|draft| (draft, &*self.ends));
        let mut chosen = chosen(&mut self.running, &self.limits, self.steps, drafter);
        let prompts = chosen.iter().filter(|(sequence, _)| sequence.is_reading());
        let prompt_tokens = prompts.map(|(_, tokens)| tokens.len()).sum();
        let mut scores = read(&self.model, &mut chosen);
        let finished = chosen.iter_mut().filter(|(text, _)| !text.is_reading() && !text.is_done);
        let (mut scores, vocabulary) = (&mut scores[..], self.model.vocabulary);
        let finished = finished.filter_map(|(text, _)| {
            let rows = scores.split_off_mut(..text.rows() * vocabulary)?;
            Some((text, rows))
        });
        let mut finished: Vec<_> = finished.collect();
        // Sampling from a large vocabulary takes about as long as a layer.
        let counts = finished.par_iter_mut().map(|(text, scores)| text.write(scores, &self.ends));
        let add = |a: [usize; 3], b: [usize; 3]| [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
        let counts = counts.reduce(|| [0; 3], add);
        self.metrics.generation.step(start, chosen.len(), prompt_tokens, counts);
    }
}

/// A sequence, and its tokens that a step reads.
type Chosen<'a> = (&'a mut Sequence, Vec<u32>);

/// The sequences of a step, with the tokens that each reads: a token of every text that is being
/// written, with guesses of the next ones, and pieces of prompts.
fn chosen<'a>(
    running: &'a mut [Sequence],
    limits: &SharedLimits,
    step: u64,
    drafter: Option<Drafter<'_>>,
) -> Vec<Chosen<'a>> {
    let prompts = running.iter().enumerate();
    let prompts = prompts.map(|(index, it)| Prompt { index, left: it.left(), turn: it.turn });
    let prompts = prompts.filter(|prompt| prompt.left > 0).collect();
    for prompt in turns(prompts, limits.prefill, step) {
        running[prompt.index].turn = step;
    }
    // With many texts a step has rows enough.
    let guesses = limits.drafts / running.len().max(1);
    let chosen = running.iter_mut().filter(|it| !it.is_reading() || it.turn == step);
    let chosen = chosen.map(|sequence| {
        let tokens = sequence.unread(limits.prefill, guesses, drafter);
        (sequence, tokens)
    });
    chosen.collect()
}

#[derive(Clone, Copy)]
struct Prompt {
    index: usize,
    /// The tokens left to read.
    left: usize,
    /// The step in which its last piece was read.
    turn: u64,
}

/// The number of steps between two whose first piece is from the prompt that has waited longest.
const FAIR: u64 = 4;

/// The prompts from which a step reads a piece, at most `prefill` tokens together.
///
/// The prompt with the fewest tokens left comes first, so that a long prompt does not hold up a
/// short one; but every [`FAIR`] steps the prompt that has waited longest comes first, so that none
/// waits forever.
fn turns(mut prompts: Vec<Prompt>, prefill: usize, step: u64) -> Vec<Prompt> {
    prompts.sort_by_key(|prompt| (prompt.left, prompt.turn));
    let longest = (0..prompts.len()).min_by_key(|&index| prompts[index].turn);
    if let Some(longest) = longest.filter(|_| step.is_multiple_of(FAIR)) {
        prompts[..=longest].rotate_right(1);
    }
    let mut room = prefill;
    prompts.retain(|prompt| {
        let rest = room.checked_sub(prompt.left.min(prefill));
        room = rest.unwrap_or(room);
        rest.is_some()
    });
    prompts
}

/// Reads the tokens of all sequences; returns the scores of the sequences with no tokens left,
/// concatenated. If that fails, each is read alone, so that an error ends only the texts that cause
/// it.
fn read(model: &Model, chosen: &mut [Chosen<'_>]) -> Vec<f32> {
    // A panic is treated as an error.
    let caught = |chosen: &mut [Chosen<'_>]| {
        let read = catch_unwind(AssertUnwindSafe(|| try_read(model, chosen)));
        let read = read.map_err(|_| "the model panicked".to_owned())?;
        read.map_err(|error| format!("the model failed: {error:#}"))
    };
    let lengths: Vec<usize> = chosen.iter().map(|(text, _)| text.cache.len()).collect();
    let message = match caught(chosen) {
        Ok(scores) => return scores,
        Err(message) => message,
    };
    tracing::error!(texts = chosen.len(), message);
    let mut scores = Vec::new();
    for (one, length) in chosen.iter_mut().zip(lengths) {
        one.0.cache.truncate(length);
        match caught(std::slice::from_mut(one)) {
            Ok(found) => scores.extend(found),
            Err(message) => one.0.fail(Refusal::failed(message)),
        }
    }
    scores
}

fn try_read(model: &Model, chosen: &mut [Chosen<'_>]) -> anyhow::Result<Vec<f32>> {
    let tensor = |tokens: &[u32]| Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0);
    let tensors = chosen.iter().map(|(_, tokens)| tensor(tokens));
    let tensors: Vec<Tensor> = tensors.collect::<candle_core::Result<_>>()?;
    let parts = tensors.iter().zip(chosen).map(|(tensor, (sequence, tokens))| Part {
        tokens: tensor,
        scores: sequence.scores_after(tokens.len()),
        cache: &mut sequence.cache,
    });
    model.step(&mut parts.collect::<Vec<_>>())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use candle_core::DType;
    use candle_dynquant::ops::Precision;
    use candle_dynquant_decoder::Scores;
    use candle_dynquant_decoder::sampling::{Random, Sampling};
    use tokio::sync::mpsc;

    use super::super::model::{Opened, PAGE};
    use super::*;

    #[test]
    fn a_long_prompt_holds_up_no_short_one_and_none_waits_for_ever() {
        let prompt = |index, left, turn| Prompt { index, left, turn };
        let mut waiting: Vec<Prompt> = (0..6).map(|index| prompt(index, 2048, 0)).collect();
        for step in 1..=400 {
            for Prompt { index, .. } in turns(waiting.clone(), 128, step) {
                let read = waiting.iter_mut().find(|prompt| prompt.index == index);
                let read = read.unwrap();
                (read.left, read.turn) = (read.left - read.left.min(128), step);
            }
            waiting.retain(|prompt| prompt.left > 0);
            // Short prompts take the capacity of every step, and none waits.
            assert!(waiting.iter().all(|prompt| prompt.left > 100), "{step}");
            if step < 390 && step % FAIR != FAIR - 1 {
                waiting.push(prompt(6, 100, step));
            }
        }
        assert!(waiting.is_empty(), "a long one is not read");
    }

    /// The pages that a text takes hold its keys and values, whatever their precision.
    #[test]
    fn a_cache_takes_no_more_memory_than_its_pages() {
        const ASSETS: &str = "../../assets/decoder";
        for attention in [Precision::Float32, Precision::BFloat16, Precision::Int8] {
            let model = Opened::open(ASSETS.as_ref(), None, None, Some(attention)).unwrap().model;
            for positions in [1_usize, 63, 64, 65, 127, 128, 129, 192, 256, 257, 640, 1000] {
                let most = positions.div_ceil(PAGE) * model.page_bytes;
                let mut cache = model.cache_for(positions);
                for count in [positions - positions / 2, positions / 2] {
                    let tokens = Tensor::zeros((1, count), DType::U32, &Device::Cpu).unwrap();
                    let part = Part { tokens: &tokens, scores: Scores::None, cache: &mut cache };
                    if count > 0 {
                        model.step(&mut [part]).unwrap();
                    }
                    let bytes = cache.bytes();
                    assert!(bytes <= most, "{attention} {positions}: {bytes} of {most}");
                }
                assert_eq!(cache.len(), positions);
            }
        }
    }

    #[test]
    fn a_text_that_fails_ends_no_other() {
        const ASSETS: &str = "../../assets/decoder";
        let model = Opened::open(ASSETS.as_ref(), None, None, None).unwrap().model;
        let sequence = |prompt: [u32; 3]| {
            let job = GenerationJob {
                prompt: prompt.to_vec(),
                max_tokens: 1,
                sampling: Sampling::default(),
                random: Random::new(0),
                top: None,
                grammar: None,
                since: Instant::now(),
                events: mpsc::unbounded_channel().0,
                _place: None,
            };
            Sequence::new(job, model.cache_for(8), None, 0, Vec::new())
        };
        let read_all = |sequences: &mut [Sequence]| {
            let all = sequences.iter_mut().map(|text| (text.unread(8, 0, None), text));
            let mut all: Vec<Chosen<'_>> = all.map(|(tokens, text)| (text, tokens)).collect();
            read(&model, &mut all)
        };
        let mut sequences = [[8, 9, 10], [5, 6, 7]].map(sequence);
        // A cache of two sequences fits no text.
        let part = Part {
            tokens: &Tensor::new(&[[1u32], [2]], &Device::Cpu).unwrap(),
            scores: Scores::Last,
            cache: &mut sequences[0].cache,
        };
        model.step(&mut [part]).unwrap();
        let scores = read_all(&mut sequences);
        assert_eq!(sequences.each_ref().map(|text| text.is_done), [true, false]);
        assert_eq!(scores, read_all(&mut [sequence([5, 6, 7])]));
        // Nobody begins with the wrong cache.
        let kept = sequences.map(|text| text.into_entry(0).is_some());
        assert_eq!(kept, [false, true]);
    }
}
