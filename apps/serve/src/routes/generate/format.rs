//! Answers in the formats of the two routes.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::request::Parameters;
use crate::app::{App, now};
use crate::generate::{Call, Counts, Logged, Piece};

/// The route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
}

/// The fields of every part of an answer.
pub struct Format {
    api: Api,
    id: String,
    created: u64,
    model: String,
    is_logged: bool,
}

impl Format {
    pub fn new(api: Api, app: &App, asked: &Parameters) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let prefix = match api {
            Api::Chat => "chatcmpl",
            Api::Completions => "cmpl",
        };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            api,
            // The id is unique on a server, also after a restart.
            id: format!("{prefix}-{:x}-{count:x}", app.created),
            created: now(),
            model: app.stated_name(),
            is_logged: asked.top.is_some(),
        }
    }

    /// The whole answer, with the texts in order.
    pub fn whole(&self, texts: &[Piece], counts: Counts) -> Value {
        let choices: Vec<Value> = texts.iter().map(|text| self.choice(text)).collect();
        let mut answer = self.frame("chat.completion", choices.into());
        answer["usage"] = usage(counts);
        answer
    }

    /// A part of a stream: a piece of a text, perhaps its first.
    pub fn part(&self, piece: &Piece, is_first: bool) -> Value {
        let choice = match self.api {
            Api::Completions => self.choice(piece),
            Api::Chat => {
                let mut delta = Map::new();
                if is_first {
                    delta.insert("role".to_owned(), json!("assistant"));
                }
                if !piece.reasoning.is_empty() {
                    delta.insert("reasoning_content".to_owned(), json!(piece.reasoning));
                }
                if !piece.text.is_empty() {
                    delta.insert("content".to_owned(), json!(piece.text));
                } else if is_first && piece.reasoning.is_empty() {
                    delta.insert("content".to_owned(), content(piece));
                }
                if !piece.calls.is_empty() {
                    let calls = piece.calls.iter().map(|call| {
                        let mut part = tool_call(call);
                        part["index"] = json!(call.index);
                        part
                    });
                    delta.insert("tool_calls".to_owned(), calls.collect());
                }
                json!({
                    "index": piece.index,
                    "delta": delta,
                    "logprobs": self.logprobs(piece),
                    "finish_reason": piece.finish,
                })
            }
        };
        self.frame("chat.completion.chunk", json!([choice]))
    }

    /// The part of a stream that states the numbers of tokens.
    pub fn usage(&self, counts: Counts) -> Value {
        let mut part = self.frame("chat.completion.chunk", json!([]));
        part["usage"] = usage(counts);
        part
    }

    fn frame(&self, of_chats: &str, choices: Value) -> Value {
        let object = match self.api {
            Api::Chat => of_chats,
            Api::Completions => "text_completion",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn choice(&self, text: &Piece) -> Value {
        let mut choice = json!({
            "index": text.index,
            "logprobs": self.logprobs(text),
            "finish_reason": text.finish,
        });
        match self.api {
            Api::Chat => {
                choice["message"] =
                    json!({"role": "assistant", "content": content(text), "refusal": null});
                if !text.calls.is_empty() {
                    choice["message"]["tool_calls"] = text.calls.iter().map(tool_call).collect();
                }
                if !text.reasoning.is_empty() {
                    choice["message"]["reasoning_content"] = json!(text.reasoning);
                }
            }
            Api::Completions => choice["text"] = json!(text.text),
        }
        choice
    }

    fn logprobs(&self, piece: &Piece) -> Value {
        if !self.is_logged {
            return Value::Null;
        }
        let logged = piece.logged.iter();
        match self.api {
            Api::Chat => {
                let content = logged.map(|logged| {
                    let mut entry = entry(&logged.token, logged.log);
                    let top = logged.top.iter().map(|(token, log)| self::entry(token, *log));
                    entry["top_logprobs"] = top.collect();
                    entry
                });
                json!({"content": content.collect::<Value>(), "refusal": null})
            }
            Api::Completions => {
                let top = logged.clone().map(of_completions);
                json!({
                    "tokens": logged.clone().map(|logged| &logged.token).collect::<Vec<_>>(),
                    "token_logprobs": logged.clone().map(|l| finite(l.log)).collect::<Vec<_>>(),
                    "top_logprobs": top.collect::<Vec<_>>(),
                    "text_offset": logged.map(|logged| logged.offset).collect::<Vec<_>>(),
                })
            }
        }
    }
}

/// The most likely tokens and the drawn token.
fn of_completions(logged: &Logged) -> Map<String, Value> {
    let drawn = (&logged.token, logged.log);
    let top = logged.top.iter().map(|(token, log)| (token, *log));
    // The most likely of several tokens with the same text is inserted last and stays.
    let all = std::iter::once(drawn).chain(top.rev());
    all.map(|(token, log)| (token.clone(), json!(finite(log)))).collect()
}

fn entry(token: &str, log: f64) -> Value {
    // A part of a character has no text, and this server does not know its bytes.
    let bytes = (!token.contains('\u{fffd}')).then_some(token.as_bytes());
    json!({"token": token, "logprob": finite(log), "bytes": bytes})
}

/// The number, or OpenAI's number for the least likely tokens: JSON has no infinity.
fn finite(log: f64) -> f64 {
    log.max(-9999.)
}

/// The text, or nothing beside calls.
fn content(piece: &Piece) -> Value {
    let is_absent = piece.text.is_empty() && !piece.calls.is_empty();
    json!((!is_absent).then_some(&piece.text))
}

fn tool_call(call: &Call) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

fn usage(counts: Counts) -> Value {
    json!({
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.written,
        "total_tokens": counts.prompt + counts.written,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
    })
}
