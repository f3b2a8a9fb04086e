//! The thread of the model: continuous batching.
//!
//! Each step reads one token of every text that is being written, and a piece of the prompts that
//! wait to be read. Between two steps texts join and leave. A text has the pages of its whole cache
//! before it joins, so none is ever put off, and its bits do not depend on the others.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use candle_core::{Device, Tensor};
use candle_dynquant_support::decoder::Part;
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use tokio::sync::mpsc::UnboundedReceiver;

use super::model::Model;
use super::sequence::{Job, Sequence};
use crate::metrics::Metrics;
use crate::places::Places;

/// Limits that all texts share.
pub struct Room {
    /// Tokens of prompts that are read in a step.
    pub prefill: usize,
    /// Texts that are written at a time.
    pub sequences: usize,
    /// Pages of caches.
    pub pages: Places,
}

/// Starts the thread. It ends when the last sender of jobs is dropped and all jobs are done.
pub fn start(
    model: Model,
    ends: Vec<u32>,
    jobs: UnboundedReceiver<Job>,
    room: Room,
    metrics: Arc<Metrics>,
) -> io::Result<JoinHandle<()>> {
    let mut engine = Engine {
        model,
        ends,
        jobs,
        room,
        waiting: VecDeque::new(),
        running: Vec::new(),
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
    /// Tokens that end a text.
    ends: Vec<u32>,
    jobs: UnboundedReceiver<Job>,
    room: Room,
    /// In the order they came.
    waiting: VecDeque<Job>,
    running: Vec<Sequence>,
    metrics: Arc<Metrics>,
}

impl Engine {
    /// Lets jobs join as far as there is room, and waits for one if there is nothing to do; `false`
    /// when there will be none.
    fn admit(&mut self) -> bool {
        loop {
            self.running.retain(|sequence| !sequence.is_over());
            while let Ok(job) = self.jobs.try_recv() {
                self.waiting.push_back(job);
            }
            self.waiting.retain(|job| !job.is_abandoned());
            while self.running.len() < self.room.sequences
                && let Some(job) = self.waiting.front()
                && let Some(pages) = self.room.pages.take(job.pages())
                && let Some(job) = self.waiting.pop_front()
            {
                self.metrics.generation.waited(job.since);
                let cache = self.model.cache_for(job.positions());
                self.running.push(Sequence::new(job, cache, pages));
            }
            let bytes = self.running.iter().map(|sequence| sequence.cache.bytes());
            let counts = [self.running.len(), self.waiting.len(), bytes.sum()];
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

    fn step(&mut self) {
        let start = Instant::now();
        let mut chosen = chosen(&mut self.running, self.room.prefill);
        let prompts = chosen.iter().filter(|(sequence, _)| sequence.is_reading());
        let prompt_tokens = prompts.map(|(_, tokens)| tokens.len()).sum();
        // A panic concerns the texts of this step; others may well be written.
        let scores = catch_unwind(AssertUnwindSafe(|| read(&self.model, &mut chosen)));
        let scores = match scores {
            Ok(Ok(scores)) => Ok(scores),
            Ok(Err(error)) => Err(format!("the model failed: {error:#}")),
            Err(_) => Err("the model panicked".to_owned()),
        };
        let mut written = 0;
        match scores {
            Ok(mut scores) => {
                let finished = chosen.iter_mut().filter(|(text, _)| !text.is_reading());
                let scores = scores.chunks_exact_mut(self.model.vocabulary());
                let mut finished: Vec<_> = finished.zip(scores).collect();
                written = finished.len();
                // Drawing from a large vocabulary takes about as long as a layer.
                finished.par_iter_mut().for_each(|((sequence, _), scores)| {
                    sequence.write(scores, &self.ends);
                });
            }
            Err(message) => {
                tracing::error!(texts = chosen.len(), message);
                for (sequence, _) in &mut chosen {
                    sequence.fail(&message);
                }
            }
        }
        let generation = &self.metrics.generation;
        generation.step(start, chosen.len(), prompt_tokens, written);
    }
}

/// The sequences of a step, with the tokens that each reads: all that are being written, and pieces
/// of prompts, `prefill` tokens at most.
fn chosen(running: &mut [Sequence], prefill: usize) -> Vec<(&mut Sequence, Vec<u32>)> {
    let mut left = prefill;
    let chosen = running.iter_mut().filter_map(|sequence| {
        let tokens = sequence.unread(prefill).to_vec();
        if sequence.is_reading() {
            left = left.checked_sub(tokens.len())?;
        }
        Some((sequence, tokens))
    });
    chosen.collect()
}

/// Reads the tokens; the scores of those sequences that have no other left, one after the other.
fn read(model: &Model, chosen: &mut [(&mut Sequence, Vec<u32>)]) -> anyhow::Result<Vec<f32>> {
    let tensor = |tokens: &[u32]| Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0);
    let tensors = chosen.iter().map(|(_, tokens)| tensor(tokens));
    let tensors: Vec<Tensor> = tensors.collect::<candle_core::Result<_>>()?;
    let parts = tensors
        .iter()
        .zip(chosen)
        .map(|(tensor, (sequence, tokens))| Part {
            tokens: tensor,
            scores: sequence.scores_after(tokens.len()),
            cache: &mut sequence.cache,
        });
    model.step(&mut parts.collect::<Vec<_>>())
}
