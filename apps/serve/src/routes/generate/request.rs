//! The fields that requests for chats and for completions share.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use candle_dynquant_decoder::Texts;
use candle_dynquant_decoder::sampling::{Random, Sampling};
use serde::Deserialize;

use super::super::ask::Strings;
use super::super::rest::Rest;
use crate::app::{App, Generator};
use crate::error::{Kind, Refusal};
use crate::generate::{Answer, Form, GenerationJob, Grammar, StopStrings};
use crate::limits::Admission;
use crate::workers::Client;

/// The most stop strings, and the longest in bytes.
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 1024;

#[derive(Deserialize)]
pub struct Common {
    model: Option<String>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    seed: Option<i64>,
    stop: Option<Strings>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<i64>,
    /// The form of the answer, which `check` leaves to others.
    pub structured_outputs: Option<Form>,
    /// The other fields, which must have a neutral value.
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    #[serde(flatten)]
    rest: Rest,
}

pub const STRUCTURED: &str = "structured_outputs";

/// The checked parameters of the texts of a request.
pub struct Parameters {
    pub sampling: Sampling,
    pub seed: u64,
    pub stops: Arc<StopStrings>,
    pub max_tokens: Option<usize>,
    /// The number of most likely tokens whose log probabilities are requested, if any are.
    pub top: Option<usize>,
    pub grammar: Option<Grammar>,
    /// Whether the answer is a stream, and whether the stream ends with the number of tokens.
    pub stream: Option<bool>,
}

impl Common {
    /// Checks all fields but the form.
    pub fn check(self, app: &App, top: Option<usize>) -> Result<Parameters, Refusal> {
        if let Some(model) = &self.model {
            app.check_model(model)?;
        }
        self.rest.check()?;
        let n = self.n.unwrap_or(1);
        Refusal::unless(n == 1, "n", format_args!("expected 1, got {n}"))?;
        Ok(Parameters {
            sampling: self.sampling(&app.generator()?.sampling)?,
            // A client without a seed accepts any.
            seed: match self.seed {
                Some(seed) => seed as u64,
                None => RandomState::new().hash_one(()),
            },
            max_tokens: self.max_tokens()?,
            top,
            grammar: None,
            stream: self.stream()?,
            stops: stops(self.stop)?,
        })
    }

    fn sampling(&self, base: &Sampling) -> Result<Sampling, Refusal> {
        let number = |param, got: Option<f64>, default: f64, [least, most]: [f64; 2]| {
            let got = got.unwrap_or(default);
            let fault = format_args!("expected a number from {least} to {most}, got {got}");
            Refusal::unless((least..=most).contains(&got), param, fault).map(|()| got)
        };
        let (repetition, of_base) = (self.repetition_penalty, base.repetition_penalty);
        let top_k = self.top_k.unwrap_or(base.top_k as i64);
        Ok(Sampling {
            temperature: number("temperature", self.temperature, base.temperature, [0., 2.])?,
            top_p: number("top_p", self.top_p, base.top_p, [0., 1.])?,
            min_p: number("min_p", self.min_p, base.min_p, [0., 1.])?,
            // Other servers accept -1 for all.
            top_k: usize::try_from(if top_k == -1 { 0 } else { top_k }).map_err(|_| {
                Refusal::invalid("top_k", format_args!("expected -1, 0 or more, got {top_k}"))
            })?,
            repetition_penalty: number("repetition_penalty", repetition, of_base, [0.01, 100.])?,
            presence_penalty: number("presence_penalty", self.presence_penalty, 0., [-2., 2.])?,
            frequency_penalty: number("frequency_penalty", self.frequency_penalty, 0., [-2., 2.])?,
        })
    }

    fn max_tokens(&self) -> Result<Option<usize>, Refusal> {
        let (old, new) = (self.max_tokens, self.max_completion_tokens);
        if let (Some(old), Some(new)) = (old, new) {
            let fault = format_args!("expected the same as max_tokens, {old}, got {new}");
            Refusal::unless(old == new, "max_completion_tokens", fault)?;
        }
        let param = if old.is_some() { "max_tokens" } else { "max_completion_tokens" };
        let limit = old.or(new);
        Refusal::unless(limit != Some(0), param, format_args!("expected 1 or more, got 0"))?;
        Ok(limit)
    }

    fn stream(&self) -> Result<Option<bool>, Refusal> {
        let is_stream = self.stream.unwrap_or(false);
        let Some(options) = &self.stream_options else {
            return Ok(is_stream.then_some(false));
        };
        let fault = format_args!("expected \"stream\": true beside it");
        Refusal::unless(is_stream, "stream_options", fault)?;
        options.rest.check_part("stream_options.")?;
        Ok(Some(options.include_usage.unwrap_or(false)))
    }
}

fn stops(stop: Option<Strings>) -> Result<Arc<StopStrings>, Refusal> {
    let stops = stop.map(Strings::into_list).unwrap_or_default();
    let wrong = |stop: &&String| !(1..=LONGEST_STOP).contains(&stop.len());
    let got = match stops.iter().find(wrong) {
        _ if stops.len() > MOST_STOPS => format!("{} strings", stops.len()),
        Some(stop) => format!("one of {} bytes", stop.len()),
        None => return Ok(Arc::new(StopStrings::new(stops))),
    };
    let expected = format_args!("at most {MOST_STOPS} strings of 1 to {LONGEST_STOP} bytes");
    Err(Refusal::invalid("stop", format_args!("expected {expected}, got {got}")))
}

impl Parameters {
    /// Sets the grammar of a form, which `field` gives.
    pub async fn keep_to(
        &mut self,
        app: &App,
        field: &'static str,
        form: Form,
    ) -> Result<(), Refusal> {
        let (grammars, bytes) = (Arc::clone(&app.generator()?.grammars), form.bytes());
        let grammar = app.limits.workers.run(bytes, move |_| grammars.by_form(form)).await?;
        self.grammar = Some(grammar.map_err(|fault| Refusal::invalid(field, fault))?);
        Ok(())
    }
}

/// Checks that a number is at most `most`.
pub fn at_most(most: usize, param: &'static str, got: Option<usize>) -> Result<(), Refusal> {
    let got = got.unwrap_or(0);
    Refusal::unless(got <= most, param, format_args!("expected at most {most}, got {got}"))
}

/// Tokenizes the request's prompts, `bytes` long, and queues them; returns the answer in progress.
pub async fn ask(
    app: &App,
    admission: Admission,
    asked: &Parameters,
    (count, bytes): (usize, usize),
    encode: impl FnOnce(&Texts, &Client) -> Result<Vec<Vec<u32>>, Refusal> + Send + 'static,
) -> Result<(Answer, Admission), Refusal> {
    app.check_open()?;
    let generator = app.generator()?;
    let mut places = generator.queue.reserve(count)?;
    let Admission { request, mut memory } = admission;
    memory.at_least(bytes)?;
    let texts = Arc::clone(&generator.texts);
    let work = move |client: &Client| (encode(&texts, client), memory);
    let (prompts, mut memory) = app.limits.workers.run(bytes, work).await?;
    let prompts = prompts?;
    memory.becomes(asked.stops.bytes())?;
    let since = Instant::now();
    let mut answer = Answer::new(Arc::clone(&generator.texts));
    let jobs = prompts.into_iter().map(|prompt| {
        Ok(GenerationJob {
            max_tokens: generator.check_prompt(&prompt, asked.max_tokens)?,
            events: answer.add(&prompt, &asked.stops),
            prompt,
            sampling: asked.sampling,
            random: Random::new(asked.seed),
            top: asked.top,
            grammar: asked.grammar.clone(),
            since,
            _place: places.split(1),
        })
    });
    for job in jobs.collect::<Result<Vec<_>, Refusal>>()? {
        generator.queue.send(job)?;
    }
    Ok((answer, Admission { request, memory }))
}

impl Generator {
    /// Checks the tokens of a prompt; returns how many may be generated after them.
    fn check_prompt(&self, prompt: &[u32], asked: Option<usize>) -> Result<usize, Refusal> {
        let (got, most, known) = (prompt.len(), self.context - 1, self.vocabulary);
        if got == 0 {
            return Err(Refusal::empty("prompt"));
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= known) {
            let fault = format_args!("expected token ids below {known}, got {token}");
            return Err(Refusal::invalid("prompt", fault));
        }
        if got > most {
            let message = format!("the prompt: expected at most {most} tokens, got {got}");
            return Err(Refusal::new(Kind::TooLong, message));
        }
        let room = self.context - got;
        Ok(asked.unwrap_or(room).min(room))
    }
}
