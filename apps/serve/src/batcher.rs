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

use tokio::sync::mpsc::UnboundedReceiver;

use crate::metrics::Metrics;
use crate::queue::{Job, TextAnswer};

/// Starts the thread of a model, of whose inputs `tokens` is the number of tokens, and `answer` gives
/// the answers, each with the same bits as if it were alone. The thread ends when the last sender of
/// jobs is dropped and all jobs are answered.
pub fn start<I: Send + 'static>(
    jobs: UnboundedReceiver<Job<I>>,
    max_tokens: usize,
    metrics: Arc<Metrics>,
    tokens: impl Fn(&I) -> usize + Send + 'static,
    answer: impl Fn(&[&I]) -> anyhow::Result<Vec<Vec<f32>>> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let mut batcher = Batcher { tokens, answer, jobs, held: None, max_tokens, metrics };
    let run = move || {
        while let Some(batch) = batcher.next_batch() {
            batcher.answer(batch);
        }
    };
    Builder::new().name("model".to_owned()).spawn(run)
}

struct Batcher<I, T, A> {
    tokens: T,
    answer: A,
    jobs: UnboundedReceiver<Job<I>>,
    /// The job that did not fit into the last batch.
    held: Option<Job<I>>,
    max_tokens: usize,
    metrics: Arc<Metrics>,
}

impl<I, T, A> Batcher<I, T, A>
where
    T: Fn(&I) -> usize,
    A: Fn(&[&I]) -> anyhow::Result<Vec<Vec<f32>>>,
{
    /// Waits for a job, and takes all others that fit beside it; `None` when no more can come.
    fn next_batch(&mut self) -> Option<Vec<Job<I>>> {
        let first = match self.held.take() {
            Some(job) => job,
            None => self.jobs.blocking_recv()?,
        };
        let mut tokens = (self.tokens)(&first.input);
        let mut batch = vec![first];
        while let Ok(job) = self.jobs.try_recv() {
            let more = (self.tokens)(&job.input);
            if tokens + more > self.max_tokens {
                self.held = Some(job);
                break;
            }
            tokens += more;
            batch.push(job);
        }
        batch.retain(|job| !job.is_abandoned());
        Some(batch)
    }

    fn answer(&self, batch: Vec<Job<I>>) {
        if batch.is_empty() {
            return;
        }
        let start = Instant::now();
        let inputs: Vec<&I> = batch.iter().map(|job| &job.input).collect();
        let answers = answers(&self.answer, &inputs);
        let tokens = inputs.iter().map(|input| (self.tokens)(input)).sum();
        let waited = batch.iter().map(|job| start.saturating_duration_since(job.since));
        self.metrics.batch(start, tokens, waited);
        for (job, answer) in batch.into_iter().zip(answers) {
            job.answer(answer.and_then(finite));
        }
    }
}

/// The answers to all inputs. If they fail together, each is computed alone, so that an error
/// concerns only the texts that cause it.
fn answers<I>(
    answer: &impl Fn(&[&I]) -> anyhow::Result<Vec<Vec<f32>>>,
    inputs: &[&I],
) -> Vec<TextAnswer> {
    // A panic concerns the texts of this batch; the next batch may succeed.
    let message = match catch_unwind(AssertUnwindSafe(|| answer(inputs))) {
        Ok(Ok(answers)) => return answers.into_iter().map(Ok).collect(),
        Ok(Err(error)) => format!("the model failed: {error:#}"),
        Err(_) => "the model panicked".to_owned(),
    };
    tracing::error!(texts = inputs.len(), message);
    if inputs.len() == 1 {
        return vec![Err(message)];
    }
    inputs.chunks(1).flat_map(|input| answers(answer, input)).collect()
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
    use crate::queue::Text;

    /// Requesting classes from a model without them is such an error.
    #[test]
    fn a_text_that_fails_ends_no_other() {
        const FOLDER: &str = "../../assets/reference/encoders/bert";
        let encoder = Encoder::open(FOLDER.as_ref(), None).unwrap();
        let tokens = encoder.tokenizer.encode(Input::Text("river"), None).unwrap();
        let inputs =
            [Head::Embedding, Head::Classes].map(|head| Text { tokens: tokens.clone(), head });
        let inputs = inputs.each_ref();
        let model = Text::answers_of(encoder.model);
        let alone = answers(&model, &inputs[..1]).remove(0).unwrap();
        let found = answers(&model, &inputs);
        assert_eq!((&found[0], found[1].is_err()), (&Ok(alone), true));
    }
}
