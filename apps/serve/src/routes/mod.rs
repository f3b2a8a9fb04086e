//! The routes, and the common parts of those that ask the model.

mod ask;
mod finish;
mod generate;
mod inputs;
mod openai;
mod operations;
mod tei;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use candle_dynquant_decoder::Texts;
use candle_dynquant_decoder::sampling::Sampling;
use dynquant_embed::{Config, Encoder, Prompts, Tokenizer};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::body;
use crate::error::{OpenAi, Refusal, Tei};
use crate::generate::GenerationJob;
use crate::limits::{Admission, Limits};
use crate::metrics::Metrics;
use crate::queue::{Job, Queue};
use openai::{check_model, stated_name};

/// The state that requests share.
pub struct App {
    /// The names of the model; answers state the first.
    pub names: Vec<String>,
    /// The format of the weights.
    pub dtype: String,
    pub served: Served,
    pub limits: Limits,
    /// The time for a body to arrive.
    pub transfer: Duration,
    pub max_batch_tokens: usize,
    pub auto_truncate: bool,
    pub metrics: Arc<Metrics>,
    /// Whether the server accepts no new requests.
    pub stopping: watch::Receiver<bool>,
    /// The start of the server, in seconds since 1970.
    pub created: u64,
}

/// The task of the model, and the queue of its thread.
pub enum Served {
    Embedder(Box<Embedder>),
    Generator(Generator),
}

/// A model from texts to embeddings and classes.
pub struct Embedder {
    pub config: Config,
    pub kind: ModelKind,
    pub prompts: Prompts,
    /// The prompt for requests that name none.
    pub default_prompt: String,
    pub tokenizer: Arc<Tokenizer>,
    pub queue: Queue<Job>,
}

/// The purpose of a model. Every such model also has embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    Embedder,
    Classifier,
    Reranker,
}

impl ModelKind {
    pub fn new(encoder: &Encoder) -> Self {
        if encoder.is_reranker() {
            Self::Reranker
        } else if encoder.model.is_classifier() {
            Self::Classifier
        } else {
            Self::Embedder
        }
    }
}

impl Embedder {
    /// The prompt of a request, which may name one.
    pub fn prompt(&self, name: Option<&str>) -> Result<String, Refusal> {
        let Some(name) = name else {
            return Ok(self.default_prompt.clone());
        };
        let prompt = self.prompts.named(name).map(str::to_owned);
        prompt.map_err(|e| Refusal::invalid("prompt_name", format!("prompt_name: {e}")))
    }
}

/// A model from prompts to texts.
pub struct Generator {
    pub texts: Arc<Texts>,
    /// The default sampling.
    pub sampling: Sampling,
    /// The most tokens of a prompt and its text together.
    pub context: usize,
    pub vocabulary: usize,
    pub queue: Queue<GenerationJob>,
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/embeddings", post(openai::embeddings))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{model}", get(openai::model))
        .route("/embeddings", post(openai::embeddings))
        .route("/", post(tei::by_model).get(operations::health))
        .route("/invocations", post(tei::by_model))
        .route("/embed", post(tei::embed))
        .route("/embed_all", post(tei::embed_all))
        .route("/predict", post(tei::predict))
        .route("/rerank", post(tei::rerank))
        .route("/similarity", post(tei::similarity))
        .route("/tokenize", post(tei::tokenize))
        .route("/decode", post(tei::decode))
        .route("/info", get(operations::info))
        .route("/health", get(operations::health))
        .route("/ping", get(operations::health))
        .route("/metrics", get(operations::metrics))
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

/// A router that refuses every request of a connection in excess.
pub fn refusal(connections: usize) -> Router {
    Router::new().fallback(move |request: Request| async move {
        in_format_of(
            request.uri().path(),
            Refusal::too_many_connections(connections),
        )
    })
}

async fn no_such_route(request: Request) -> Response {
    let path = request.uri().path();
    in_format_of(path, Refusal::no_such_route(path))
}

async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    in_format_of(path, Refusal::wrong_method(request.method().as_str(), path))
}

/// A refusal in the format of the API that the path belongs to.
fn in_format_of(path: &str, refusal: Refusal) -> Response {
    if path.starts_with("/v1/") || path == "/embeddings" {
        OpenAi(refusal).into_response()
    } else {
        Tei(refusal).into_response()
    }
}

/// Counts and logs each request.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let response = next.run(request).await;

    // The number of paths without a route is unbounded, and each would be a metric.
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    let status = response.status().as_u16();
    app.metrics.request(route, status, start);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    tracing::debug!(%method, route, status, ms, "request");
    response
}

impl App {
    /// Checks that the model accepts requests.
    fn check_open(&self) -> Result<(), Refusal> {
        if *self.stopping.borrow() {
            Err(Refusal::shutting_down())
        } else {
            Ok(())
        }
    }

    /// The model, if it has embeddings.
    fn embedder(&self) -> Result<&Embedder, Refusal> {
        match &self.served {
            Served::Embedder(embedder) => Ok(embedder),
            Served::Generator(_) => Err(Refusal::other_model(
                "the model has no embeddings and classes: it generates texts",
            )),
        }
    }

    /// The model, if it generates texts.
    fn generator(&self) -> Result<&Generator, Refusal> {
        match &self.served {
            Served::Generator(generator) => Ok(generator),
            Served::Embedder(_) => Err(Refusal::other_model(
                "the model generates no texts: it answers with embeddings",
            )),
        }
    }

    /// Admits a request, and parses its JSON body.
    async fn receive<T: DeserializeOwned + Send + 'static>(
        &self,
        request: Request,
    ) -> Result<(T, Admission), Refusal> {
        body::json(request, &self.limits, self.transfer, self.stopping.clone()).await
    }
}

/// The seconds since 1970.
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
