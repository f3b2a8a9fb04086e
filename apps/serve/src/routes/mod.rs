//! The routes, and the common parts of those that ask the model.

mod ask;
mod generate;
mod openai;
mod operations;
mod rest;
mod tei;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};

use crate::app::App;
use crate::error::{Api, Kind, Refusal};

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
        .route("/embed_sparse", post(tei::embed_sparse))
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
        let most = format_args!("{connections} connections at a time, got one more");
        Refusal::overloaded(most).respond(Api::of(request.uri().path()))
    })
}

async fn no_such_route(request: Request) -> Refusal {
    let path = request.uri().path();
    Refusal::new(Kind::NoSuchRoute, format!("there is no route {path:?}"))
}

/// The refusal in its format: the router adds a header to it.
async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("{path:?} does not take the method {method}");
    Refusal::new(Kind::WrongMethod, message).respond(Api::of(path))
}

/// Counts and logs each request, and gives refusals the format of their route.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let (method, api) = (request.method().clone(), Api::of(request.uri().path()));
    let mut response = next.run(request).await;
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        response = refusal.respond(api);
    }

    // The number of paths without a route is unbounded, and each would be a metric.
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    let status = response.status().as_u16();
    app.metrics.request(route, status, start);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    tracing::debug!(%method, route, status, ms, "request");
    response
}
