//! `POST /` and `POST /invocations`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::{embed, predict, rerank};
use crate::app::{App, ModelKind};
use crate::error::Tei;

/// Answers like the route for the model's purpose.
pub async fn by_model(app: State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    match app.embedder()?.kind {
        ModelKind::Embedder => embed(app, request).await,
        ModelKind::Classifier => predict(app, request).await,
        ModelKind::Reranker => rerank(app, request).await,
    }
}
