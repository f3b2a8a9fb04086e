//! The bounded queue of texts for the model, in the order of arrival, and the thread of the model,
//! which computes all waiting texts as one batch whenever it is free.
//!
//! No text waits for others to arrive. Under load, the texts that arrive during a batch form the
//! next batch, so batches grow with the load. Within a batch the model groups texts by length
//! without padding, and the bits of an answer do not depend on its batch.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use dynquant_embed::{Head, Model, Task, Tokens};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;

use crate::error::Refusal;
use crate::metrics::Metrics;
use crate::places::{Permit, Places};

/// The answer to a text, or the reason for its failure.
type TextAnswer = Result<Vec<f32>, String>;

/// A text for the model, and the kind of answer.
pub struct Text {
    pub tokens: Tokens,
    pub head: Head,
}

impl Text {
    /// The model as a function of texts.
    pub fn answers_of(model: Model) -> impl Fn(&[&Self]) -> anyhow::Result<Vec<Vec<f32>>> {
        move |texts| {
            let tasks = texts.iter().map(|text| Task { tokens: &text.tokens, head: text.head });
            model.answer(&tasks.collect::<Vec<_>>())
        }
    }
}

/// A text or a picture on its way to the model.
pub struct Job<I> {
    input: I,
    since: Instant,
    reply: oneshot::Sender<TextAnswer>,
    /// The place in the queue, freed when the job is dropped.
    place: Option<Permit>,
}

/// The sending end of the queue.
pub struct Queue<J> {
    jobs: mpsc::UnboundedSender<J>,
    places: Places,
}

impl<J> Queue<J> {
    /// A queue with these places, and its receiving end.
    pub fn new(places: Places) -> (Self, UnboundedReceiver<J>) {
        // The places bound the channel.
        let (jobs, receiver) = mpsc::unbounded_channel();
        (Self { jobs, places }, receiver)
    }

    /// Whether the model takes texts.
    pub fn is_open(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// Takes places for `texts` texts before anything is computed for them.
    pub fn reserve(&self, texts: usize) -> Result<Permit, Refusal> {
        let (total, free) = (self.places.total, self.places.free());
        self.places.take(texts).ok_or_else(|| {
            Refusal::overloaded(format_args!(
                "{free} texts, the room left in the queue of {total}, got {texts}"
            ))
        })
    }

    pub fn send(&self, job: J) -> Result<(), Refusal> {
        self.jobs.send(job).map_err(|_| Refusal::no_thread())
    }
}

impl<I> Queue<Job<I>> {
    /// Queues the inputs and waits for their answers, in the same order.
    pub async fn answer(
        &self,
        mut places: Permit,
        inputs: impl ExactSizeIterator<Item = I>,
    ) -> Result<Vec<Vec<f32>>, Refusal> {
        let since = Instant::now();
        let mut replies = Vec::with_capacity(inputs.len());
        for input in inputs {
            let (reply, receiver) = oneshot::channel();
            self.send(Job { input, since, reply, place: places.split(1) })?;
            replies.push(receiver);
        }
        let mut answers = Vec::with_capacity(replies.len());
        for reply in replies {
            let answer = reply.await.map_err(|_| Refusal::no_thread())?;
            answers.push(answer.map_err(Refusal::failed)?);
        }
        Ok(answers)
    }
}

/// Starts the thread of a model, of whose inputs `tokens` is the number of tokens, and `answer` gives
/// the answers, each with the same bits as if it were alone. The thread ends when the queue is
/// dropped and all jobs are answered.
pub fn start<I: Send + 'static>(
    places: Places,
    max_tokens: usize,
    metrics: Arc<Metrics>,
    tokens: impl Fn(&I) -> usize + Send + 'static,
    answer: impl Fn(&[&I]) -> anyhow::Result<Vec<Vec<f32>>> + Send + 'static,
) -> io::Result<(Queue<Job<I>>, JoinHandle<()>)> {
    let (queue, mut jobs) = Queue::<Job<I>>::new(places);
    let run = move || {
        // The job that did not fit into the last batch.
        let mut held = None;
        while let Some(first) = held.take().or_else(|| jobs.blocking_recv()) {
            let mut sum = tokens(&first.input);
            let mut batch: Vec<Job<I>> = vec![first];
            while let Ok(job) = jobs.try_recv() {
                let more = tokens(&job.input);
                if sum + more > max_tokens {
                    held = Some(job);
                    break;
                }
                sum += more;
                batch.push(job);
            }
            // Nobody waits for the others.
            batch.retain(|job| !job.reply.is_closed());
            if batch.is_empty() {
                continue;
            }
            let start = Instant::now();
            let inputs: Vec<&I> = batch.iter().map(|job| &job.input).collect();
            let answers = answers(&answer, &inputs);
            let sum = inputs.iter().map(|input| tokens(input)).sum();
            let waited = batch.iter().map(|job| start.saturating_duration_since(job.since));
            metrics.batch(start, sum, waited);
            for (job, answer) in batch.into_iter().zip(answers) {
                // The place is free first: the receiver may send another request, or be gone.
                drop(job.place);
                let _ = job.reply.send(answer.and_then(finite));
            }
        }
    };
    Ok((queue, Builder::new().name("model".to_owned()).spawn(run)?))
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
