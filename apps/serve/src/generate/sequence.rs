//! A text that is generated: its request and its progress.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use candle_dynquant_decoder::sampling::{LogProbs, Random, Sampling};
use candle_dynquant_decoder::{
    Cache, DraftModel, Drafts, Draws, FinishReason, Scores, are_numbers,
};
use tokio::sync::mpsc::UnboundedSender;

use super::grammar::Grammar;
use super::model::PAGE;
use super::prefixes::{Donor, Entry, Page, whole_pages};
use crate::error::{Kind, Refusal};
use crate::places::Permit;

/// The most tokens that a text is guessed to continue with.
const MOST_DRAFTS: usize = 16;

/// A step of a text, for its client.
pub enum Event {
    /// The number of tokens of the prompt that were read before.
    Begun(usize),
    Token(u32, Option<LogProbs>),
    End(FinishReason),
    Failed(Refusal),
}

pub struct GenerationJob {
    /// The prompt, one token or more.
    pub prompt: Vec<u32>,
    /// The most tokens to generate, one or more.
    pub max_tokens: usize,
    pub sampling: Sampling,
    pub random: Random,
    /// The number of log probabilities requested beside each token's, if any are.
    pub top: Option<usize>,
    pub grammar: Option<Grammar>,
    pub since: Instant,
    /// Closed when nobody listens. The channel holds an event for each token, and two more.
    pub events: UnboundedSender<Event>,
    /// The place in the queue, freed when the job is dropped.
    pub _place: Option<Permit>,
}

impl GenerationJob {
    /// Whether nobody waits for the text.
    pub fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// The number of positions in the cache: the last token is not read.
    pub fn positions(&self) -> usize {
        self.prompt.len() + self.max_tokens - 1
    }

    pub fn pages(&self) -> usize {
        self.positions().div_ceil(PAGE)
    }
}

/// A model that guesses tokens, and the tokens that end a text.
pub type Drafter<'a> = (&'a DraftModel, &'a [u32]);

pub struct Sequence {
    job: GenerationJob,
    /// The prompt, and what was written after it.
    tokens: Vec<u32>,
    prompt: usize,
    pub cache: Cache,
    /// The cache of the model that guesses.
    draft: Option<Cache>,
    /// The step in which the last piece of its prompt was read, or in which it joined.
    pub turn: u64,
    /// The pages of the cache, in order.
    pages: Vec<Page>,
    drafts: Drafts,
    /// The tokens that the step reads behind the text, to check them.
    guess: Vec<u32>,
    /// Whether the text has failed or ended.
    pub is_done: bool,
    is_failed: bool,
}

impl Sequence {
    /// A text whose first tokens may be in the cache.
    pub fn new(
        mut job: GenerationJob,
        cache: Cache,
        draft: Option<Cache>,
        turn: u64,
        pages: Vec<Page>,
    ) -> Self {
        // The client may have hung up.
        let _ = job.events.send(Event::Begun(cache.len()));
        let tokens = std::mem::take(&mut job.prompt);
        Self {
            job,
            prompt: tokens.len(),
            tokens,
            cache,
            draft,
            turn,
            pages,
            drafts: Drafts::new(MOST_DRAFTS),
            guess: Vec::new(),
            is_done: false,
            is_failed: false,
        }
    }

    /// The part of the text that others may begin with.
    pub fn donor(&self) -> Donor<'_, Cache> {
        Donor {
            tokens: &self.tokens[..whole_pages(self.cache.len())],
            cache: &self.cache,
            pages: &self.pages,
        }
    }

    /// The entry that others may begin with; `None` after an error, because the cache may be wrong.
    pub fn into_entry(mut self, used: u64) -> Option<Entry<Cache>> {
        let length = whole_pages(self.cache.len());
        self.tokens.truncate(length);
        self.cache.truncate(length);
        self.pages.truncate(length / PAGE);
        let entry = Entry { tokens: self.tokens, cache: self.cache, pages: self.pages, used };
        (!self.is_failed).then_some(entry)
    }

    /// Whether nothing more is read.
    pub fn is_over(&self) -> bool {
        self.is_done || self.job.is_abandoned()
    }

    /// The number of tokens of the prompt left to read.
    pub fn left(&self) -> usize {
        self.prompt.saturating_sub(self.cache.len())
    }

    pub fn is_reading(&self) -> bool {
        self.left() > 0
    }

    /// The next tokens to read: at most `most` of a prompt, or the last written one and at most
    /// `guesses` of those that may follow.
    ///
    /// The cuts of a prompt depend only on `most`, so a model whose bits depend on the cuts always
    /// gives the same bits.
    pub fn unread(
        &mut self,
        most: usize,
        guesses: usize,
        drafter: Option<Drafter<'_>>,
    ) -> Vec<u32> {
        self.guess.clear();
        if !self.is_reading() {
            let written = self.tokens.len() - self.prompt;
            let room = guesses.min(self.job.max_tokens - written - 1);
            self.guess = match drafter {
                Some(drafter) if self.draft.is_some() => self.drafted(most, room, drafter),
                _ => self.drafts.guess(&self.tokens, room),
            };
        }
        // Nothing is written before the prompt is read.
        let rest = &self.tokens[self.cache.len()..];
        [&rest[..rest.len().min(most)], &self.guess].concat()
    }

    /// Guesses of the draft model, at most `room`; none while it has over `most` tokens to read.
    fn drafted(&mut self, most: usize, room: usize, (model, ends): Drafter<'_>) -> Vec<u32> {
        let (Some(cache), true) = (&mut self.draft, room > 0) else {
            return Vec::new();
        };
        let read = self.tokens.len().min(cache.len() + most);
        let (count, written) = match self.tokens.len() - read {
            0 => (self.drafts.length(room), &self.tokens[self.prompt..]),
            // The token behind a piece is known.
            _ => (1, &self.tokens[self.prompt.min(read)..read]),
        };
        let draws = Draws { sampling: &self.job.sampling, random: self.job.random.clone(), ends };
        let text = [&self.tokens[..self.prompt.min(read)], written];
        let guess = || model.guess(cache, text, count, draws);
        let error = match catch_unwind(AssertUnwindSafe(guess)) {
            Ok(Ok(guess)) if read == self.tokens.len() => return guess,
            Ok(Ok(_)) => return Vec::new(),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "it panicked".to_owned(),
        };
        tracing::error!(error, "the draft model failed");
        self.draft = None;
        Vec::new()
    }

    /// The scores to compute for the next `count` tokens: those after the last token and after each
    /// guess, if none is left.
    pub fn scores_after(&self, count: usize) -> Scores {
        if count < self.left() {
            Scores::None
        } else if self.guess.is_empty() {
            Scores::Last
        } else {
            Scores::All
        }
    }

    /// The number of scores that a step computes for the text.
    pub fn rows(&self) -> usize {
        1 + self.guess.len()
    }

    /// Draws tokens by the scores of each row, and writes them, until one differs from its guess;
    /// returns the numbers of written tokens, and of guessed and right ones.
    pub fn write(&mut self, scores: &mut [f32], ends: &[u32]) -> [usize; 3] {
        let (certain, mut right) = (self.tokens.len(), 0);
        let vocabulary = scores.len() / self.rows();
        for (row, scores) in scores.chunks_exact_mut(vocabulary).enumerate() {
            self.draw(scores, ends);
            let drawn = self.tokens.get(certain + row);
            if drawn.is_none() || drawn != self.guess.get(row) {
                break;
            }
            right += 1;
            if self.is_done {
                break;
            }
        }
        for cache in std::iter::once(&mut self.cache).chain(&mut self.draft) {
            cache.truncate(certain + right);
        }
        self.drafts.checked(self.guess.len(), right);
        [self.tokens.len() - certain, self.guess.len(), right]
    }

    /// Draws a token by the scores, and writes it.
    fn draw(&mut self, scores: &mut [f32], ends: &[u32]) {
        if !are_numbers(scores) {
            let message = "the model: expected numbers as scores, got NaN or infinite ones";
            return self.fail(Refusal::failed(message));
        }
        let job = &mut self.job;
        let raw = job.top.map(|top| (scores.to_vec(), top));
        let fault = |error| Refusal::new(Kind::Invalid, format!("the grammar: {error:#}"));
        if let Some(Err(error)) = job.grammar.as_mut().map(|grammar| grammar.mask(scores)) {
            return self.fail(fault(error));
        }
        let (prompt, written) = self.tokens.split_at(self.prompt);
        let token = (job.sampling).draw(scores, prompt, written, &mut job.random);
        if ends.contains(&token) {
            return self.end(Event::End(FinishReason::Stop));
        }
        if let Some(Err(error)) = job.grammar.as_mut().map(|grammar| grammar.push(token)) {
            return self.fail(fault(error));
        }
        let log = raw.map(|(raw, top)| LogProbs::new(&raw, token, top));
        self.tokens.push(token);
        let sent = self.job.events.send(Event::Token(token, log));
        if sent.is_ok() && self.tokens.len() - self.prompt == self.job.max_tokens {
            self.end(Event::End(FinishReason::Length));
        }
    }

    pub fn fail(&mut self, error: Refusal) {
        self.is_failed = true;
        self.end(Event::Failed(error));
    }

    fn end(&mut self, event: Event) {
        self.is_done = true;
        // The client may have hung up.
        let _ = self.job.events.send(event);
    }
}
