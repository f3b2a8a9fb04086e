//! OpenAI's API: `/v1/embeddings`, of texts and pictures, and `/v1/models`.

use std::sync::Arc;

use anyhow::{Context, bail};
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use dynquant_embed::{Direction, Head, ImageEmbedder, Picture, Tokens};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ask::{Answered, Behind, Finish, Texts, TokenizerRequest};
use super::rest::Rest;
use crate::app::{App, Before, Served};
use crate::body;
use crate::error::{Kind, Refusal};
use crate::limits::Admission;
use crate::workers::Client;

#[derive(Deserialize)]
struct EmbeddingsRequest {
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

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, a list of such lists, or a list of \
                 objects with a text or an image"
)]
enum Inputs {
    Texts(Texts),
    Items(Vec<Item>),
}

#[derive(Deserialize)]
struct Item {
    text: Option<String>,
    image: Option<String>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Serialize)]
struct EmbeddingsResponse<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: Option<&'a String>,
    usage: Value,
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

/// `POST /v1/embeddings`: embeddings at length 1.
pub async fn embeddings(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<EmbeddingsRequest>(request).await?;
    if let Some(model) = &request.model {
        app.check_model(model)?;
    }
    request.rest.check()?;
    let format = request.encoding_format.as_deref().unwrap_or("float");
    if !["float", "base64"].contains(&format) {
        let fault = format!("expected \"float\" or \"base64\", got {format:?}");
        return Err(Refusal::invalid("encoding_format", fault));
    }
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
    let encode = |numbers: Vec<f32>| match format {
        "base64" => {
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            Numbers::Base64(BASE64_STANDARD.encode(bytes))
        }
        _ => Numbers::Float(numbers),
    };
    let data = (answered.vectors).into_iter().enumerate().map(|(index, answer)| Embedding {
        object: "embedding",
        index,
        embedding: encode(finish.apply(answer)),
    });
    let response = EmbeddingsResponse {
        object: "list",
        data: data.collect(),
        model: app.names.first(),
        usage: json!({"prompt_tokens": answered.tokens, "total_tokens": answered.tokens}),
    };
    body::answer(answered.admission, &response)
}

impl App {
    /// The embeddings of texts and pictures, in order.
    async fn ask_items(
        &self,
        admission: Admission,
        items: Vec<Item>,
        before: Before,
        cut: Option<Direction>,
    ) -> Result<Answered, Refusal> {
        self.limits.check_texts("input", items.len())?;
        let (mut texts, mut pictures) = (Vec::new(), Vec::new());
        let mut is_text = Vec::with_capacity(items.len());
        for (index, Item { text, image, rest }) in items.into_iter().enumerate() {
            rest.check_part(&format!("input[{index}]."))?;
            is_text.push(text.is_some());
            match (text, image) {
                (Some(text), None) => texts.push((index, text)),
                (None, Some(uri)) => pictures.push((index, uri)),
                _ => return Err(invalid(index, "", "expected either a text or an image")),
            }
        }
        let mut answered = Answered { vectors: Vec::new(), tokens: 0, bytes: 0, admission };
        if !texts.is_empty() {
            let texts = behind(texts, before, cut);
            answered = self.ask(answered.admission, Head::Embedding, texts).await?;
        }
        if pictures.is_empty() {
            return Ok(answered);
        }
        let of_pictures = self.ask_pictures(answered.admission, pictures).await?;
        let [mut texts, mut pictures] = [answered.vectors, of_pictures.vectors].map(Vec::into_iter);
        let next = |is_text| if is_text { texts.next() } else { pictures.next() };
        Ok(Answered {
            vectors: is_text.into_iter().filter_map(next).collect(),
            tokens: answered.tokens + of_pictures.tokens,
            bytes: answered.bytes,
            admission: of_pictures.admission,
        })
    }

    /// The embeddings of pictures, given as data URIs with their places.
    async fn ask_pictures(
        &self,
        admission: Admission,
        uris: Vec<(usize, String)>,
    ) -> Result<Answered, Refusal> {
        self.check_open()?;
        let pictures = self.pictures()?;
        let (count, bytes) = (uris.len(), uris.iter().map(|(_, uri)| uri.len()).sum());
        let places = pictures.queue.reserve(count)?;
        let Admission { request, mut memory } = admission;
        let held = bytes + count * pictures.model.input_size() * size_of::<f32>();
        self.limits.reserve(&mut memory, "input", held)?;
        let model = Arc::clone(&pictures.model);
        let work = move |client: &Client| {
            let inputs = uris.iter().map(|(index, uri)| {
                client.check()?;
                input(&model, uri).map_err(|e| invalid(*index, ".image", &format!("{e:#}")))
            });
            (inputs.collect::<Result<Vec<_>, _>>(), places, memory)
        };
        let (inputs, places, memory) = self.limits.workers.run(bytes, work).await?;
        let vectors = pictures.queue.answer(places, inputs?.into_iter()).await?;
        let tokens = count * pictures.model.tokens();
        Ok(Answered { vectors, tokens, bytes: 0, admission: Admission { request, memory } })
    }
}

/// A fault of an item, or of one of its fields.
fn invalid(index: usize, field: &str, fault: &str) -> Refusal {
    Refusal::at(Kind::Invalid, "input", &format!("input[{index}]{field}"), fault)
}

/// Tokenizes texts, given with their places, after a prompt.
fn behind(
    texts: Vec<(usize, String)>,
    before: Before,
    cut: Option<Direction>,
) -> TokenizerRequest<Vec<Tokens>> {
    let bytes = texts.iter().map(|(_, text)| before.prompt.len() + text.len()).sum();
    TokenizerRequest::new("input", texts.len(), bytes, move |tokenizer, client| {
        let behind = Behind::new(tokenizer, &before, cut)?;
        let tokens = texts.iter().map(|(index, text)| {
            client.check()?;
            let tokens = behind.characters(text);
            tokens.map_err(|fault| fault.at("input", &format!("input[{index}]")))
        });
        tokens.collect()
    })
}

/// The model's input for the picture of a data URI.
fn input(model: &ImageEmbedder, uri: &str) -> anyhow::Result<Vec<f32>> {
    let data = uri.strip_prefix("data:").and_then(|data| data.split_once(','));
    let Some((_, data)) = data.filter(|(kind, _)| kind.ends_with(";base64")) else {
        let is_url = uri.starts_with("http");
        let got = if is_url { "a URL: the server fetches none" } else { "something else" };
        bail!("expected a data URI, data:image/png;base64,.., got {got}");
    };
    let bytes = BASE64_STANDARD.decode(data).context("expected base64 behind the comma")?;
    model.input(&Picture::Bytes(&bytes))
}

/// `GET /v1/models`: the model under each of its names.
pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let data: Vec<Value> = app.names.iter().map(|name| described(&app, name)).collect();
    Json(json!({"object": "list", "data": data}))
}

/// `GET /v1/models/{model}`.
pub async fn model(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refusal> {
    app.check_model(&name)?;
    Ok(Json(described(&app, &name)))
}

fn described(app: &App, name: &str) -> Value {
    let owned_by = "dynquant-serve";
    json!({"id": name, "object": "model", "created": app.created, "owned_by": owned_by})
}
