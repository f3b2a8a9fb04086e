//! Answers in the formats of the two routes.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::request::Parameters;
use crate::app::{App, now};
use crate::generate::{Call, Counts, Logged, Piece};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Chat,
    Completions,
}

pub struct Format {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: Option<String>,
    is_logged: bool,
}

impl Format {
    pub fn new(endpoint: Endpoint, app: &App, asked: &Parameters) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let prefix = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            endpoint,
            // The id is unique on a server, also after a restart.
            id: format!("{prefix}-{:x}-{count:x}", app.created),
            created: now(),
            model: app.names.first().cloned(),
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
        let choice = match self.endpoint {
            Endpoint::Completions => self.choice(piece),
            Endpoint::Chat => {
                let mut delta = Map::new();
                let mut insert = |key: &str, value| delta.insert(key.to_owned(), value);
                if is_first {
                    insert("role", json!("assistant"));
                }
                if !piece.reasoning.is_empty() {
                    insert("reasoning_content", json!(piece.reasoning));
                }
                if !piece.text.is_empty() || is_first && piece.reasoning.is_empty() {
                    insert("content", content(piece));
                }
                if !piece.calls.is_empty() {
                    let calls = piece.calls.iter().map(|call| {
                        let mut part = tool_call(call);
                        part["index"] = json!(call.index);
                        part
                    });
                    insert("tool_calls", calls.collect());
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
        let is_chat = self.endpoint == Endpoint::Chat;
        json!({
            "id": self.id,
            "object": if is_chat { of_chats } else { "text_completion" },
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
        if self.endpoint == Endpoint::Completions {
            choice["text"] = json!(text.text);
            return choice;
        }
        choice["message"] = json!({"role": "assistant", "content": content(text), "refusal": null});
        if !text.calls.is_empty() {
            choice["message"]["tool_calls"] = text.calls.iter().map(tool_call).collect();
        }
        if !text.reasoning.is_empty() {
            choice["message"]["reasoning_content"] = json!(text.reasoning);
        }
        choice
    }

    fn logprobs(&self, piece: &Piece) -> Value {
        if !self.is_logged {
            return Value::Null;
        }
        let logged = &piece.logged;
        match self.endpoint {
            Endpoint::Chat => {
                let content = logged.iter().map(|logged| {
                    let mut entry = entry(&logged.token, logged.log);
                    let top = logged.top.iter().map(|(token, log)| self::entry(token, *log));
                    entry["top_logprobs"] = top.collect();
                    entry
                });
                json!({"content": content.collect::<Value>(), "refusal": null})
            }
            Endpoint::Completions => {
                let each = |of: fn(&Logged) -> Value| logged.iter().map(of).collect::<Value>();
                json!({
                    "tokens": each(|logged| json!(logged.token)),
                    "token_logprobs": each(|logged| json!(finite(logged.log))),
                    "top_logprobs": each(of_completions),
                    "text_offset": each(|logged| json!(logged.offset)),
                })
            }
        }
    }
}

/// The most likely tokens and the drawn token.
fn of_completions(logged: &Logged) -> Value {
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
