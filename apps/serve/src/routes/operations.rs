//! Routes for operators and load balancers: `/info`, `/health`, `/metrics`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use dynquant_embed::{Config, Mode};
use serde_json::{Value, json};

use crate::app::{App, ModelKind, Served};
use crate::error::Refusal;

/// `GET /info`, in the format of text-embeddings-inference.
pub async fn info(State(app): State<Arc<App>>) -> Json<Value> {
    let max_input_length = match &app.served {
        Served::Embedder(embedder) => embedder.tokenizer.max_tokens(),
        Served::Pictures(pictures) => pictures.model.tokens(),
        Served::Generator(generator) => generator.context - 1,
    };
    Json(json!({
        "model_id": app.names.first(),
        "model_sha": null,
        "model_dtype": app.dtype,
        "served_model_name": app.names.first(),
        "model_type": model_type(&app.served),
        "max_concurrent_requests": app.limits.requests.total,
        "max_input_length": max_input_length,
        "max_batch_tokens": app.max_batch_tokens,
        "max_batch_requests": null,
        "max_client_batch_size": app.limits.texts,
        "auto_truncate": app.auto_truncate,
        "tokenization_workers": app.limits.workers.count(),
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    }))
}

fn model_type(served: &Served) -> Value {
    let embedder = match served {
        Served::Embedder(embedder) => embedder,
        Served::Pictures(_) => return json!({"embedding": {"inputs": ["image"]}}),
        Served::Generator(_) => return json!("generation"),
    };
    let labels = || embedder.config.labels.iter().enumerate();
    let ids: BTreeMap<_, _> = labels().map(|(id, name)| (id.to_string(), name)).collect();
    let names: BTreeMap<_, _> = labels().map(|(id, name)| (name, id)).collect();
    let classes = json!({"id2label": ids, "label2id": names});
    match embedder.kind {
        ModelKind::Embedder => {
            let (pooling, sparse) = (pooling(&embedder.config), embedder.config.is_sparse());
            let inputs = &["text", "image"][..1 + usize::from(embedder.pictures.is_some())];
            json!({"embedding": {"pooling": pooling, "sparse": sparse, "inputs": inputs}})
        }
        ModelKind::Classifier => json!({"classifier": classes}),
        ModelKind::Reranker => json!({"reranker": classes}),
    }
}

/// The name of the pooling in text-embeddings-inference, or in sentence-transformers.
fn pooling(config: &Config) -> String {
    match config.pooling.modes[..] {
        _ if config.is_splade() => "splade".to_owned(),
        _ if config.is_multi_vector() => "colbert".to_owned(),
        [Mode::LastToken] => "last_token".to_owned(),
        _ => config.pooling.to_string(),
    }
}

/// `GET /health`: status 200 while requests are taken.
pub async fn health(State(app): State<Arc<App>>) -> Result<(), Refusal> {
    app.check_open()?;
    let is_open = match &app.served {
        Served::Embedder(embedder) => embedder.queue.is_open(),
        Served::Pictures(pictures) => pictures.queue.is_open(),
        Served::Generator(generator) => generator.queue.is_open(),
    };
    is_open.then_some(()).ok_or_else(Refusal::no_thread)
}

/// `GET /metrics`, for Prometheus.
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let text = app.metrics.text();
    let text = text.map_err(|_| Refusal::failed("the metrics cannot be written"))?;
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, format)], text).into_response())
}
