//! `POST /` and `POST /invocations`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::super::{App, Kind};
use super::{embed, predict, rerank};
use crate::error::Tei;

/// Answers as the route of what the model is made for.
pub async fn by_model(app: State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    match app.embedder()?.kind {
        Kind::Embedder => embed(app, request).await,
        Kind::Classifier => predict(app, request).await,
        Kind::Reranker => rerank(app, request).await,
    }
}
