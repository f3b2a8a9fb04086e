//! The texts of a request, assembled from the tokens of the model's thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use candle_dynquant_decoder::sampling::LogProbs;
use candle_dynquant_decoder::{Decoding, FinishReason, Texts};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::calls::{ARGUMENTS, Call, Calls, Functions};
use super::marks::special_token;
use super::reasoning::{self, Reasoning};
use super::sequence::Event;
use super::stops::{StopStrings, Stops};
use crate::error::Refusal;

#[derive(Default)]
pub struct Piece {
    pub index: usize,
    pub text: String,
    /// The reasoning before the text, where it is separate.
    pub reasoning: String,
    /// The calls of tools, where they are separate.
    pub calls: Vec<Call>,
    pub logged: Vec<Logged>,
    /// The reason why the text ended, by its name in OpenAI's API.
    pub finish: Option<&'static str>,
}

/// A token with its log probability, and the most likely tokens.
pub struct Logged {
    pub token: String,
    pub log: f64,
    pub top: Vec<(String, f64)>,
    /// The number of characters of the text before it.
    pub offset: usize,
}

pub struct Answer {
    texts: Arc<Texts>,
    choices: Vec<Choice>,
    /// The special tokens whose text is written.
    marks: Vec<(u32, &'static str)>,
    pub counts: Counts,
}

/// The numbers of tokens of a request.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub prompt: usize,
    /// The tokens of the prompts that were found in the cache.
    pub cached: usize,
    /// The generated tokens, without those that end a text.
    pub written: usize,
}

impl Answer {
    /// No texts yet.
    pub fn new(texts: Arc<Texts>) -> Self {
        Self { texts, choices: Vec::new(), marks: Vec::new(), counts: Counts::default() }
    }

    /// Adds the text after a prompt, which ends at any of the stop strings; returns the end of the
    /// channel for the model's thread.
    pub fn add(&mut self, prompt: &[u32], stops: &Arc<StopStrings>) -> UnboundedSender<Event> {
        let (sender, events) = unbounded_channel();
        self.counts.prompt += prompt.len();
        self.choices.push(Choice {
            events: Some(events),
            prompt_end: prompt[prompt.len().saturating_sub(8)..].to_vec(),
            decoding: Decoding::default(),
            stops: Stops::new(Arc::clone(stops)),
            reasoning: None,
            calls: None,
            held: VecDeque::new(),
            certain: 0,
            bytes: 0,
            characters: 0,
        });
        sender
    }

    /// Separates reasoning from the answers, if the chat template marks it.
    pub fn separate_reasoning(&mut self) {
        if !self.texts.template.as_ref().is_some_and(|template| template.has_reasoning) {
            return;
        }
        self.show(reasoning::MARKS);
        for choice in &mut self.choices {
            let end = self.texts.tokenizer.decode(&choice.prompt_end, false);
            choice.reasoning = Some(Reasoning::after(&end.unwrap_or_default()));
        }
    }

    /// Separates calls of functions from the answers.
    pub fn separate_calls(&mut self, functions: &Arc<Functions>) {
        let [begin, end] = functions.marks();
        self.show([begin, end, ARGUMENTS]);
        for choice in &mut self.choices {
            choice.calls = Some(Calls::new(Arc::clone(functions)));
        }
    }

    /// Makes those of the marks part of the text that are special tokens.
    fn show(&mut self, marks: impl IntoIterator<Item = &'static str>) {
        for mark in marks {
            let id = special_token(&self.texts, mark);
            self.marks.extend(id.map(|id| (id, mark)));
        }
    }

    pub fn count(&self) -> usize {
        self.choices.len()
    }

    /// The next piece of any text; `None` when all have ended.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, Refusal>>> {
        let mut is_open = false;
        for (index, choice) in self.choices.iter_mut().enumerate() {
            while let Some(events) = &mut choice.events {
                let Poll::Ready(event) = events.poll_recv(context) else {
                    is_open = true;
                    break;
                };
                let event = event.unwrap_or_else(|| Event::Failed(Refusal::no_thread()));
                match event {
                    Event::Begun(cached) => self.counts.cached += cached,
                    Event::Token(..) => self.counts.written += 1,
                    _ => (),
                }
                let piece = choice.take(&self.texts, &self.marks, event);
                let piece = piece.map(|piece| Piece { index, ..piece });
                if !piece.as_ref().is_ok_and(Piece::is_empty) {
                    return Poll::Ready(Some(piece));
                }
            }
        }
        if is_open { Poll::Pending } else { Poll::Ready(None) }
    }

    /// The next piece of any text; `None` when all have ended.
    pub async fn next(&mut self) -> Option<Result<Piece, Refusal>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Piece {
    pub fn bytes(&self) -> usize {
        let texts = |logged: &Logged| {
            let top = logged.top.iter().map(|(token, _)| token.len());
            logged.token.len() + top.sum::<usize>() + size_of_val(&*logged.top)
        };
        let logged: usize = self.logged.iter().map(texts).sum();
        let calls: usize = self.calls.iter().map(Call::bytes).sum();
        self.text.len() + self.reasoning.len() + calls + logged + size_of_val(&*self.logged)
    }

    fn is_empty(&self) -> bool {
        let is_empty = self.text.is_empty() && self.reasoning.is_empty();
        is_empty && self.calls.is_empty() && self.logged.is_empty() && self.finish.is_none()
    }
}

struct Choice {
    /// The events of the text; `None` after its end.
    events: Option<UnboundedReceiver<Event>>,
    prompt_end: Vec<u32>,
    decoding: Decoding,
    stops: Stops,
    reasoning: Option<Reasoning>,
    calls: Option<Calls>,
    /// The tokens whose text is not certain, each with the number of bytes before it.
    held: VecDeque<(usize, Logged)>,
    certain: usize,
    bytes: usize,
    characters: usize,
}

impl Choice {
    fn take(
        &mut self,
        texts: &Texts,
        marks: &[(u32, &'static str)],
        event: Event,
    ) -> Result<Piece, Refusal> {
        let (text, mut finish) = match event {
            Event::Begun(_) => (String::new(), None),
            Event::Token(token, log) => {
                let mark = marks.iter().find(|(id, _)| *id == token);
                let written = self.write(texts, token, mark.map_or("", |(_, mark)| mark), log);
                written.map_err(Refusal::failed)?
            }
            Event::End(finish) => (self.stops.rest(), Some(finish)),
            Event::Failed(error) => {
                self.events = None;
                return Err(error);
            }
        };
        self.certain += text.len();
        let is_stopped = finish == Some(FinishReason::Stop) && self.certain < self.bytes;
        let is_all = !self.stops.holds() && !is_stopped;
        let mut logged = Vec::new();
        while let Some((start, _)) = self.held.front()
            && (is_all || *start < self.certain)
            && let Some((_, log)) = self.held.pop_front()
        {
            logged.push(log);
        }
        let separate = self.reasoning.as_mut();
        let separate = separate.map(|reasoning| reasoning.push(&text, finish.is_some()));
        let [reasoning, mut text] = separate.unwrap_or([String::new(), text]);
        let (mut calls, mut has_called) = (Vec::new(), false);
        if let Some(separate) = &mut self.calls {
            (text, calls) = separate.push(&text, finish.is_some());
            has_called = separate.count > 0;
            if separate.is_done() {
                finish = Some(FinishReason::Stop);
            }
        }
        if finish.is_some() {
            // The model's thread sees the closed channel, and frees the cache.
            self.events = None;
        }
        Ok(Piece {
            index: 0,
            text,
            reasoning,
            calls,
            logged,
            finish: finish.map(|finish| match finish {
                FinishReason::Length => "length",
                FinishReason::Stop if has_called => "tool_calls",
                FinishReason::Stop => "stop",
            }),
        })
    }

    /// Adds a token, which may be a mark: returns the text that is now certain, and whether it ends.
    fn write(
        &mut self,
        texts: &Texts,
        token: u32,
        mark: &str,
        log: Option<LogProbs>,
    ) -> Result<(String, Option<FinishReason>), String> {
        if let Some(log) = log {
            let logged = logged(texts, token, log, self.characters)?;
            self.held.push_back((self.bytes, logged));
        }
        let text = self.decoding.step(texts, token);
        let text = text.map_err(|error| format!("the {error:#}"))? + mark;
        self.bytes += text.len();
        self.characters += text.chars().count();
        let (text, is_end) = self.stops.push(&text);
        Ok((text, is_end.then_some(FinishReason::Stop)))
    }
}

fn logged(texts: &Texts, token: u32, log: LogProbs, offset: usize) -> Result<Logged, String> {
    let top = (log.top.into_iter()).map(|(token, log)| Ok((text_of(texts, token)?, log)));
    Ok(Logged {
        token: text_of(texts, token)?,
        log: log.of_token,
        top: top.collect::<Result<_, String>>()?,
        offset,
    })
}

/// The text of a token inside a text: the difference between two tokens and one. At the beginning
/// of a text some tokenizers leave out a space.
fn text_of(texts: &Texts, token: u32) -> Result<String, String> {
    let decode = |ids: &[u32]| {
        let text = texts.tokenizer.decode(ids, false);
        text.map_err(|error| format!("the tokenizer: {error}"))
    };
    let (one, two) = (decode(&[token])?, decode(&[token, token])?);
    Ok(two.get(one.len()..).unwrap_or(&one).to_owned())
}
