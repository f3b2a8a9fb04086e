//! The thread of the model, which computes all waiting texts as one batch whenever it is free.
//!
//! No text waits for others to arrive. Under load, the texts that arrive during a batch form the
//! next batch, so batches grow with the load. Within a batch the model groups texts by length
//! without padding, and the bits of an answer do not depend on its batch.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use dynquant_embed::{Model, Task};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::metrics::Metrics;
use crate::queue::{Job, TextAnswer};

/// Starts the thread. It ends when the last sender of jobs is dropped and all jobs are answered.
pub fn start(
    model: Model,
    jobs: UnboundedReceiver<Job>,
    max_tokens: usize,
    metrics: Arc<Metrics>,
) -> io::Result<JoinHandle<()>> {
    let mut batcher = Batcher {
        model,
        jobs,
        held: None,
        max_tokens,
        metrics,
    };
    let run = move || {
        while let Some(batch) = batcher.next_batch() {
            batcher.answer(batch);
        }
    };
    Builder::new().name("model".to_owned()).spawn(run)
}

struct Batcher {
    model: Model,
    jobs: UnboundedReceiver<Job>,
    /// The job that did not fit into the last batch.
    held: Option<Job>,
    max_tokens: usize,
    metrics: Arc<Metrics>,
}

impl Batcher {
    /// Waits for a job, and takes all others that fit beside it; `None` when no more can come.
    fn next_batch(&mut self) -> Option<Vec<Job>> {
        let first = match self.held.take() {
            Some(job) => job,
            None => self.jobs.blocking_recv()?,
        };
        let mut tokens = first.tokens.len();
        let mut batch = vec![first];
        while let Ok(job) = self.jobs.try_recv() {
            if tokens + job.tokens.len() > self.max_tokens {
                self.held = Some(job);
                break;
            }
            tokens += job.tokens.len();
            batch.push(job);
        }
        batch.retain(|job| !job.is_abandoned());
        Some(batch)
    }

    fn answer(&self, batch: Vec<Job>) {
        if batch.is_empty() {
            return;
        }
        let start = Instant::now();
        let tasks: Vec<Task<'_>> = (batch.iter())
            .map(|job| Task {
                tokens: &job.tokens,
                head: job.head,
            })
            .collect();
        let answers = answers(&self.model, &tasks);
        let tokens = batch.iter().map(|job| job.tokens.len()).sum();
        let waited = batch
            .iter()
            .map(|job| start.saturating_duration_since(job.since));
        self.metrics.batch(start, tokens, waited);
        for (job, answer) in batch.into_iter().zip(answers) {
            job.answer(answer.and_then(finite));
        }
    }
}

/// The answers to all tasks. If they fail together, each is computed alone, so that an error
/// concerns only the texts that cause it.
fn answers(model: &Model, tasks: &[Task<'_>]) -> Vec<TextAnswer> {
    // A panic concerns the texts of this batch; the next batch may succeed.
    let message = match catch_unwind(AssertUnwindSafe(|| model.answer(tasks))) {
        Ok(Ok(answers)) => return answers.into_iter().map(Ok).collect(),
        Ok(Err(error)) => format!("the model failed: {error:#}"),
        Err(_) => "the model panicked".to_owned(),
    };
    tracing::error!(texts = tasks.len(), message);
    if tasks.len() == 1 {
        return vec![Err(message)];
    }
    let alone = tasks.chunks(1).flat_map(|task| answers(model, task));
    alone.collect()
}

/// Checks that the numbers are finite, since JSON has no others.
fn finite(answer: Vec<f32>) -> Result<Vec<f32>, String> {
    match answer.iter().find(|x| !x.is_finite()) {
        None => Ok(answer),
        Some(x) => Err(format!("the model: expected finite numbers, got {x}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use dynquant_embed::{Encoder, Head, Input};

    use super::*;

    /// Requesting classes from a model without them is such an error.
    #[test]
    fn a_text_that_fails_ends_no_other() {
        const FOLDER: &str = "../../assets/reference/encoders/bert";
        let encoder = Encoder::open(FOLDER.as_ref(), None).unwrap();
        let tokens = &encoder
            .tokenizer
            .encode(Input::Text("river"), None)
            .unwrap();
        let tasks = [Head::Embedding, Head::Classes].map(|head| Task { tokens, head });
        let alone = encoder.model.answer(&tasks[..1]).unwrap().remove(0);
        let found = answers(&encoder.model, &tasks);
        assert_eq!((&found[0], found[1].is_err()), (&Ok(alone), true));
    }
}
