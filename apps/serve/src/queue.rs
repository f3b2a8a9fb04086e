//! The texts that wait for the model: bounded, in the order they came.

use std::sync::Arc;
use std::time::Instant;

use dynquant_encoder::{Head, Tokens};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::error::Refusal;
use crate::metrics::Metrics;

/// The answer to a text, or why there is none.
pub type Answer = Result<Vec<f32>, String>;

/// A text on its way to the model.
pub struct Job {
    pub tokens: Tokens,
    pub head: Head,
    pub since: Instant,
    reply: oneshot::Sender<Answer>,
    /// Its place in the queue, free when the job is dropped.
    _slot: Option<OwnedSemaphorePermit>,
}

impl Job {
    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Sends the answer. Nobody may be there to receive it: a client that hung up.
    pub fn answer(self, answer: Answer) {
        let _ = self.reply.send(answer);
    }
}

/// Places for the texts of a request.
pub struct Slots(OwnedSemaphorePermit);

/// The entry of the queue.
pub struct Queue {
    jobs: mpsc::UnboundedSender<Job>,
    slots: Arc<Semaphore>,
    capacity: usize,
    metrics: Arc<Metrics>,
}

impl Queue {
    /// A queue with places for `capacity` texts, and its other end.
    pub fn new(capacity: usize, metrics: Arc<Metrics>) -> (Self, mpsc::UnboundedReceiver<Job>) {
        // The semaphore is the bound.
        let (jobs, receiver) = mpsc::unbounded_channel();
        let queue = Self {
            jobs,
            slots: Arc::new(Semaphore::new(capacity)),
            capacity,
            metrics,
        };
        (queue, receiver)
    }

    /// Whether the model takes texts.
    pub fn is_open(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// Takes places for that many texts before anything is computed for them.
    pub fn reserve(&self, texts: usize) -> Result<Slots, Refusal> {
        let full = || Refusal::queue_full(self.capacity, self.slots.available_permits(), texts);
        let count = u32::try_from(texts).map_err(|_| full())?;
        let slots = Arc::clone(&self.slots).try_acquire_many_owned(count);
        slots.map(Slots).map_err(|_| full())
    }

    /// Queues the texts and waits for their answers, which come in the same order.
    pub async fn answer(
        &self,
        Slots(mut slots): Slots,
        head: Head,
        texts: Vec<Tokens>,
    ) -> Result<Vec<Vec<f32>>, Refusal> {
        let since = Instant::now();
        let mut replies = Vec::with_capacity(texts.len());
        for tokens in texts {
            let (reply, receiver) = oneshot::channel();
            let job = Job {
                tokens,
                head,
                since,
                reply,
                _slot: slots.split(1),
            };
            self.metrics.waiting.inc();
            if self.jobs.send(job).is_err() {
                self.metrics.waiting.dec();
                return Err(Refusal::failed("the model's thread has ended"));
            }
            replies.push(receiver);
        }
        let mut answers = Vec::with_capacity(replies.len());
        for reply in replies {
            let answer = reply.await;
            let answer = answer.map_err(|_| Refusal::failed("the model's thread has ended"))?;
            answers.push(answer.map_err(Refusal::failed)?);
        }
        Ok(answers)
    }
}
