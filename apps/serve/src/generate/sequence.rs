//! A text that is generated: what is asked, and how far it is.

use std::time::Instant;

use candle_dynquant_support::decoder::{Cache, Scores};
use candle_dynquant_support::sampling::{LogProbs, Random, Sampling};
use tokio::sync::mpsc::UnboundedSender;

use super::model::PAGE;
use crate::places::Permit;

/// Why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// At a token that ends texts, or at a stop string.
    Stop,
    /// At the number of tokens that was asked for, or of the context.
    Length,
}

/// A step of a text, as its client is told.
pub enum Event {
    Token(u32, Option<LogProbs>),
    End(Finish),
    Failed(String),
}

/// A text to continue.
pub struct Job {
    /// The prompt, one token or more.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most, one or more.
    pub max_tokens: usize,
    pub sampling: Sampling,
    pub random: Random,
    /// How many log probabilities are asked for beside each token's, if any are.
    pub top: Option<usize>,
    pub since: Instant,
    /// Nobody listens any more when it is closed. It holds at most `max_tokens` events.
    pub events: UnboundedSender<Event>,
    /// Its place in the queue, free when the job is dropped.
    pub _place: Option<Permit>,
}

impl Job {
    /// Whether nobody waits for the text any more.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// The positions that its cache needs: the last token is not read.
    pub fn positions(&self) -> usize {
        self.prompt.len() + self.max_tokens - 1
    }

    /// The pages of its cache.
    pub fn pages(&self) -> usize {
        self.positions().div_ceil(PAGE)
    }
}

/// A job at work.
pub struct Sequence {
    job: Job,
    written: Vec<u32>,
    pub cache: Cache,
    /// The step in which a piece of its prompt was read last, or in which it joined.
    pub turn: u64,
    /// The pages of its cache, free when it is dropped.
    _pages: Permit,
    is_done: bool,
}

impl Sequence {
    pub fn new(job: Job, cache: Cache, turn: u64, pages: Permit) -> Self {
        Self {
            job,
            written: Vec::new(),
            cache,
            turn,
            _pages: pages,
            is_done: false,
        }
    }

    /// Whether its cache can be given back.
    pub fn is_over(&self) -> bool {
        self.is_done || self.job.is_abandoned()
    }

    /// Whether it has failed or ended, so that no more is written.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Tokens of the prompt that are still to be read.
    pub fn left(&self) -> usize {
        self.job.prompt.len().saturating_sub(self.cache.len())
    }

    /// Whether tokens of the prompt are still to be read.
    pub fn is_reading(&self) -> bool {
        self.left() > 0
    }

    /// The next tokens to read, `most` at most.
    ///
    /// Where a prompt is cut depends on nothing but `most`, so that a model whose bits depend on it
    /// has always the same.
    pub fn unread(&self, most: usize) -> &[u32] {
        let read = self.cache.len();
        let rest = match self.job.prompt.get(read..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => &self.written[read - self.job.prompt.len()..],
        };
        &rest[..rest.len().min(most)]
    }

    /// The scores to compute for the next `count` tokens: the last one's, if none is left after it.
    pub fn scores_after(&self, count: usize) -> Scores {
        if self.cache.len() + count < self.job.prompt.len() {
            Scores::None
        } else {
            Scores::Last
        }
    }

    /// Writes a token by the scores after those that were read.
    pub fn write(&mut self, scores: &mut [f32], ends: &[u32]) {
        if scores.iter().any(|score| score.is_nan()) {
            return self.fail("the model: expected numbers as scores, got NaN");
        }
        let job = &mut self.job;
        let raw = job.top.map(|top| (scores.to_vec(), top));
        let token = (job.sampling).draw(scores, &job.prompt, &self.written, &mut job.random);
        if ends.contains(&token) {
            return self.end(Event::End(Finish::Stop));
        }
        let log = raw.map(|(raw, top)| LogProbs::new(&raw, token, top));
        self.written.push(token);
        let sent = self.job.events.send(Event::Token(token, log));
        if sent.is_ok() && self.written.len() == self.job.max_tokens {
            self.end(Event::End(Finish::Length));
        }
    }

    /// Ends the text with a fault.
    pub fn fail(&mut self, message: &str) {
        self.end(Event::Failed(message.to_owned()));
    }

    fn end(&mut self, event: Event) {
        self.is_done = true;
        // The client may have hung up.
        let _ = self.job.events.send(event);
    }
}
