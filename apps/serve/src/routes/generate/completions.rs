//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use candle_dynquant_decoder::Texts;
use serde::Deserialize;

use super::format::{Endpoint, Format};
use super::request::{Common, STRUCTURED, ask, at_most};
use super::stream::respond;
use crate::app::App;
use crate::error::Refusal;
use crate::workers::Client;

/// The most log probabilities of a token.
const MOST_TOP: usize = 5;

/// The default number of tokens to generate.
const MAX_TOKENS: usize = 16;

#[derive(Deserialize)]
struct CompletionRequest {
    prompt: Prompts,
    logprobs: Option<usize>,
    #[serde(flatten)]
    common: Common,
}

/// A text or several texts, as characters or as tokens.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
enum Prompts {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

impl Prompts {
    /// The number of prompts, and their approximate length.
    fn size(&self) -> (usize, usize) {
        match self {
            Self::Text(text) => (1, text.len()),
            Self::Ids(ids) => (1, ids.len()),
            Self::Texts(texts) => (texts.len(), texts.iter().map(String::len).sum()),
            Self::Lists(lists) => (lists.len(), lists.iter().map(Vec::len).sum()),
        }
    }

    /// The tokens of each prompt, with the special tokens that the tokenizer adds to a text.
    fn encode(self, texts: &Texts, client: &Client) -> Result<Vec<Vec<u32>>, Refusal> {
        let encode = |text: String| {
            client.check()?;
            let tokens = texts.prompt(&text);
            tokens.map_err(|error| Refusal::invalid("prompt", format_args!("{error:#}")))
        };
        match self {
            Self::Text(text) => Ok(vec![encode(text)?]),
            Self::Ids(ids) => Ok(vec![ids]),
            Self::Texts(texts) => texts.into_iter().map(encode).collect(),
            Self::Lists(lists) => Ok(lists),
        }
    }
}

/// `POST /v1/completions`: the continuations of prompts.
pub async fn completions(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<CompletionRequest>(request).await?;
    app.generator()?;
    at_most(MOST_TOP, "logprobs", request.logprobs)?;
    let mut common = request.common;
    let form = common.structured_outputs.take();
    let mut asked = common.check(&app, request.logprobs)?;
    if let Some(form) = form {
        asked.keep_to(&app, STRUCTURED, form).await?;
    }
    asked.max_tokens.get_or_insert(MAX_TOKENS);
    let prompts = request.prompt;
    let size = prompts.size();
    app.limits.check_texts("prompt", size.0)?;
    let encode = move |texts: &Texts, client: &Client| prompts.encode(texts, client);
    let (answer, admission) = ask(&app, admission, &asked, size, encode).await?;
    let format = Format::new(Endpoint::Completions, &app, &asked);
    respond(answer, admission, format, asked.stream).await
}
