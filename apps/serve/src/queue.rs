//! The bounded queue of texts for the model, in the order of arrival.

use std::time::Instant;

use dynquant_embed::{Head, Model, Task, Tokens};
use tokio::sync::{mpsc, oneshot};

use crate::error::Refusal;
use crate::places::{Permit, Places};

/// The answer to a text, or the reason for its failure.
pub type TextAnswer = Result<Vec<f32>, String>;

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
    pub input: I,
    pub since: Instant,
    reply: oneshot::Sender<TextAnswer>,
    /// The place in the queue, freed when the job is dropped.
    place: Option<Permit>,
}

impl<I> Job<I> {
    /// Whether nobody waits for the answer.
    pub fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Sends the answer after freeing the place: its receiver may send another request.
    pub fn answer(self, answer: TextAnswer) {
        drop(self.place);
        let _ = self.reply.send(answer);
    }
}

/// The sending end of the queue.
pub struct Queue<J> {
    jobs: mpsc::UnboundedSender<J>,
    places: Places,
}

impl<J> Queue<J> {
    /// A queue with these places, and its receiving end.
    pub fn new(places: Places) -> (Self, mpsc::UnboundedReceiver<J>) {
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
