//! Routes for operators and load balancers: `/info`, `/health`, `/metrics`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use dynquant_encoder::Pooling;
use serde_json::{Value, json};

use super::App;
use crate::error::{Refusal, Tei};

/// `GET /info`, as text-embeddings-inference has it.
pub async fn info(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({
        "model_id": app.names.first(),
        "model_sha": null,
        "model_dtype": app.dtype,
        "served_model_name": app.names.first(),
        "model_type": model_type(&app),
        "max_concurrent_requests": app.limits.requests.total,
        "max_input_length": app.tokenizer.max_tokens(),
        "max_batch_tokens": app.max_batch_tokens,
        "max_batch_requests": null,
        "max_client_batch_size": app.limits.texts,
        "auto_truncate": app.auto_truncate,
        "tokenization_workers": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    }))
}

fn model_type(app: &App) -> Value {
    let labels = || app.config.bert.labels.iter().enumerate();
    if app.is_classifier {
        let ids: BTreeMap<_, _> = labels().map(|(id, name)| (id.to_string(), name)).collect();
        let names: BTreeMap<_, _> = labels().map(|(id, name)| (name, id)).collect();
        return json!({"classifier": {"id2label": ids, "label2id": names}});
    }
    let pooling = match app.config.pooling {
        Pooling::Mean => "mean",
        Pooling::Cls => "cls",
    };
    json!({"embedding": {"pooling": pooling}})
}

/// `GET /health`: status 200 while requests are taken.
pub async fn health(State(app): State<Arc<App>>) -> Result<(), Tei> {
    app.check_open()?;
    if app.queue.is_open() {
        Ok(())
    } else {
        Err(Refusal::failed("the model's thread has ended").into())
    }
}

/// `GET /metrics`, for Prometheus.
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Tei> {
    let text = app.metrics.text();
    let text = text.map_err(|_| Refusal::failed("the metrics cannot be written"))?;
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, format)], text).into_response())
}
