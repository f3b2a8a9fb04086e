//! OpenAI's API: `/v1/embeddings` and `/v1/models`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use dynquant_embed::{Direction, Head};
use serde::{Deserialize, Serialize};

use super::finish::Finish;
use super::pictures::Inputs;
use super::rest::Rest;
use crate::app::{App, Before, Served};
use crate::body;
use crate::error::{OpenAi, Refusal};

#[derive(Deserialize)]
pub struct EmbeddingsRequest {
    input: Inputs,
    model: Option<String>,
    encoding_format: Option<String>,
    dimensions: Option<usize>,
    /// A field of text-embeddings-inference's other routes.
    prompt_name: Option<String>,
    /// Other fields, which must be neutral.
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Serialize)]
struct EmbeddingsResponse {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: TokenUsage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct TokenUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// `POST /v1/embeddings`: embeddings at length 1.
pub async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Result<Response, OpenAi> {
    let (request, admission) = app.receive::<EmbeddingsRequest>(request).await?;
    if let Some(model) = &request.model {
        app.check_model(model)?;
    }
    request.rest.check()?;
    let encode = encoding(request.encoding_format.as_deref())?;
    let (size, prompt) = match (&app.served, request.prompt_name.as_deref()) {
        (Served::Pictures(pictures), None) => (pictures.model.dimensions(), Before::new("", None)),
        (_, name) => {
            let embedder = app.embedder()?;
            (embedder.config.embedding_size, embedder.prompt(name)?)
        }
    };
    let finish = Finish::new(size, request.dimensions, true)?;
    let cut = app.auto_truncate.then_some(Direction::Right);
    let answered = match request.input {
        Inputs::Texts(texts) => {
            let texts = texts.behind("input", prompt, cut);
            app.ask(admission, Head::Embedding, texts).await?
        }
        Inputs::Items(items) => app.ask_items(admission, items, prompt, cut).await?,
    };
    let data = (answered.vectors).into_iter().enumerate().map(|(index, answer)| Embedding {
        object: "embedding",
        index,
        embedding: encode(finish.apply(answer)),
    });
    let response = EmbeddingsResponse {
        object: "list",
        data: data.collect(),
        model: app.stated_name(),
        usage: TokenUsage { prompt_tokens: answered.tokens, total_tokens: answered.tokens },
    };
    Ok(body::answer(answered.admission, &response)?)
}

fn encoding(format: Option<&str>) -> Result<fn(Vec<f32>) -> Numbers, Refusal> {
    match format {
        None | Some("float") => Ok(Numbers::Float),
        Some("base64") => Ok(|numbers| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            Numbers::Base64(BASE64_STANDARD.encode(bytes))
        }),
        Some(got) => Err(Refusal::invalid(
            "encoding_format",
            format!("encoding_format: expected \"float\" or \"base64\", got {got:?}"),
        )),
    }
}

#[derive(Serialize)]
pub struct Models {
    object: &'static str,
    data: Vec<ModelEntry>,
}

#[derive(Serialize)]
pub struct ModelEntry {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

/// `GET /v1/models`: the model under each of its names.
pub async fn models(State(app): State<Arc<App>>) -> Json<Models> {
    Json(Models {
        object: "list",
        data: app.names.iter().map(|name| described(&app, name)).collect(),
    })
}

/// `GET /v1/models/{model}`.
pub async fn model(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<ModelEntry>, OpenAi> {
    app.check_model(&name)?;
    Ok(Json(described(&app, &name)))
}

fn described(app: &App, name: &str) -> ModelEntry {
    ModelEntry {
        id: name.to_owned(),
        object: "model",
        created: app.created,
        owned_by: "dynquant-serve",
    }
}
