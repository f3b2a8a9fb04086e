//! The fields that requests for chats and for completions share.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Instant;

use candle_dynquant_decoder::Texts;
use candle_dynquant_decoder::sampling::{Random, Sampling};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::super::inputs::Strings;
use super::super::rest::Rest;
use crate::app::{App, Generator};
use crate::error::Refusal;
use crate::generate::{Answer, Form, GenerationJob, Grammar, Prompted, StopStrings};
use crate::limits::Admission;
use crate::workers::Client;

/// The most stop strings, and the longest in bytes.
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 1024;

/// The fields of both routes.
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
    structured_outputs: Option<Form>,
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

/// The field with the form of an answer.
pub const STRUCTURED: &str = "structured_outputs";

/// The checked parameters of the texts of a request.
pub struct Parameters {
    pub sampling: Sampling,
    pub seed: u64,
    pub stops: Arc<StopStrings>,
    /// The most tokens of each text.
    pub max_tokens: Option<usize>,
    /// The number of most likely tokens whose log probabilities are requested, if any are.
    pub top: Option<usize>,
    /// The grammar that the texts keep to, if there is one.
    pub grammar: Option<Grammar>,
    /// Whether the answer is a stream, and whether the stream states the usage.
    pub stream: Option<StreamUsage>,
}

/// Whether a stream ends with the number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUsage {
    Stated,
    Left,
}

impl Common {
    /// Takes the form of the answer, if it is given here.
    pub fn form(&mut self) -> Option<Form> {
        self.structured_outputs.take()
    }

    /// Checks all fields but the form.
    pub fn check(self, app: &App, top: Option<usize>) -> Result<Parameters, Refusal> {
        if let Some(model) = &self.model {
            app.check_model(model)?;
        }
        self.rest.check()?;
        if let Some(n) = self.n.filter(|n| *n != 1) {
            return Err(Refusal::invalid("n", format!("n: expected 1, got {n}")));
        }
        Ok(Parameters {
            sampling: self.sampling(&app.generator()?.sampling)?,
            // A client without a seed accepts any.
            seed: match self.seed {
                Some(seed) => seed as u64,
                None => RandomState::new().build_hasher().finish(),
            },
            max_tokens: self.max_tokens()?,
            top,
            grammar: None,
            stream: self.stream()?,
            stops: stops(self.stop)?,
        })
    }

    fn sampling(&self, base: &Sampling) -> Result<Sampling, Refusal> {
        let top_k = self.top_k.unwrap_or(base.top_k as i64);
        Ok(Sampling {
            temperature: number("temperature", self.temperature, base.temperature, [0., 2.])?,
            top_p: number("top_p", self.top_p, base.top_p, [0., 1.])?,
            min_p: number("min_p", self.min_p, base.min_p, [0., 1.])?,
            top_k: match top_k {
                // Other servers accept -1 for all.
                -1 => 0,
                _ => usize::try_from(top_k).map_err(|_| {
                    let message = format!("top_k: expected -1, 0 or more, got {top_k}");
                    Refusal::invalid("top_k", message)
                })?,
            },
            repetition_penalty: number(
                "repetition_penalty",
                self.repetition_penalty,
                base.repetition_penalty,
                [0.01, 100.],
            )?,
            presence_penalty: number("presence_penalty", self.presence_penalty, 0., [-2., 2.])?,
            frequency_penalty: number("frequency_penalty", self.frequency_penalty, 0., [-2., 2.])?,
        })
    }

    fn max_tokens(&self) -> Result<Option<usize>, Refusal> {
        let (old, new) = (self.max_tokens, self.max_completion_tokens);
        let (name, limit) = match (old, new) {
            (Some(old), Some(new)) if old != new => {
                let message = format!(
                    "max_completion_tokens: expected the same as max_tokens, {old}, got {new}"
                );
                return Err(Refusal::invalid("max_completion_tokens", message));
            }
            (None, _) => ("max_completion_tokens", new),
            _ => ("max_tokens", old),
        };
        match limit {
            Some(0) => Err(Refusal::invalid(name, format!("{name}: expected 1 or more, got 0"))),
            limit => Ok(limit),
        }
    }

    fn stream(&self) -> Result<Option<StreamUsage>, Refusal> {
        let is_stream = self.stream.unwrap_or(false);
        let Some(options) = &self.stream_options else {
            return Ok(is_stream.then_some(StreamUsage::Left));
        };
        if !is_stream {
            let message = "stream_options: expected \"stream\": true beside it";
            return Err(Refusal::invalid("stream_options", message));
        }
        options.rest.check_part("stream_options.")?;
        let usage = options.include_usage.filter(|include| *include);
        Ok(Some(usage.map_or(StreamUsage::Left, |_| StreamUsage::Stated)))
    }
}

/// A field that is a number from `least` to `most`.
fn number(
    name: &'static str,
    got: Option<f64>,
    default: f64,
    [least, most]: [f64; 2],
) -> Result<f64, Refusal> {
    let got = got.unwrap_or(default);
    if (least..=most).contains(&got) {
        return Ok(got);
    }
    let message = format!("{name}: expected a number from {least} to {most}, got {got}");
    Err(Refusal::invalid(name, message))
}

fn stops(stop: Option<Strings>) -> Result<Arc<StopStrings>, Refusal> {
    let stops = stop.map(Strings::into_list).unwrap_or_default();
    let wrong = |stop: &&String| !(1..=LONGEST_STOP).contains(&stop.len());
    let got = match stops.iter().find(wrong) {
        _ if stops.len() > MOST_STOPS => format!("{} strings", stops.len()),
        Some(stop) => format!("one of {} bytes", stop.len()),
        None => return Ok(Arc::new(StopStrings::new(stops))),
    };
    let message = format!(
        "stop: expected at most {MOST_STOPS} strings of 1 to {LONGEST_STOP} bytes, got {got}"
    );
    Err(Refusal::invalid("stop", message))
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
        let fault = |error| Refusal::invalid(field, format!("{field}: {error}"));
        self.grammar = Some(grammar.map_err(fault)?);
        Ok(())
    }
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
    let jobs = prompts.into_iter().map(|prompt| {
        let max_tokens = generator.check_prompt(&prompt, asked.max_tokens)?;
        let (events, receiver) = mpsc::unbounded_channel();
        let prompted = Prompted {
            tokens: prompt.len(),
            end: prompt[prompt.len().saturating_sub(8)..].to_vec(),
            events: receiver,
        };
        let job = GenerationJob {
            prompt,
            max_tokens,
            sampling: asked.sampling,
            random: Random::new(asked.seed),
            top: asked.top,
            grammar: asked.grammar.clone(),
            since,
            events,
            _place: places.split(1),
        };
        Ok((job, prompted))
    });
    let mut prompts = Vec::with_capacity(count);
    for (job, prompted) in jobs.collect::<Result<Vec<_>, Refusal>>()? {
        generator.queue.send(job)?;
        prompts.push(prompted);
    }
    let answer = Answer::new(Arc::clone(&generator.texts), prompts, &asked.stops);
    Ok((answer, Admission { request, memory }))
}

impl Generator {
    /// Checks the tokens of a prompt; returns how many may be generated after them.
    fn check_prompt(&self, prompt: &[u32], asked: Option<usize>) -> Result<usize, Refusal> {
        let (got, most) = (prompt.len(), self.context - 1);
        if got == 0 {
            return Err(Refusal::empty("prompt"));
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= self.vocabulary) {
            let expected = self.vocabulary;
            let message = format!("prompt: expected token ids below {expected}, got {token}");
            return Err(Refusal::invalid("prompt", message));
        }
        if got > most {
            return Err(Refusal::too_long(most, got));
        }
        let room = self.context - got;
        Ok(asked.unwrap_or(room).min(room))
    }
}
