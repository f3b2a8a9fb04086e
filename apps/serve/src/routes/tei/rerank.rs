//! `POST /rerank`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use dynquant_embed::{Head, sigmoid};
use serde::{Deserialize, Serialize};

use super::super::inputs::{Fault, TokenizerRequest, each};
use super::truncation::Truncation;
use crate::app::{App, ModelKind};
use crate::body;
use crate::error::{Refusal, Tei};

#[derive(Deserialize)]
struct RerankRequest {
    query: String,
    texts: Vec<String>,
    #[serde(default)]
    raw_scores: bool,
    #[serde(default)]
    return_text: bool,
    #[serde(flatten)]
    truncation: Truncation,
}

#[derive(Serialize)]
struct Rank {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    score: f32,
}

/// `POST /rerank`: each text with its score for the query, the best first.
pub async fn rerank(State(app): State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    let (request, admission) = app.receive::<RerankRequest>(request).await?;
    let embedder = app.embedder()?;
    if embedder.kind != ModelKind::Reranker {
        let classes = match embedder.kind {
            ModelKind::Classifier => embedder.config.labels.len(),
            _ => 0,
        };
        let message = format!("not a reranker: the head has {classes} classes, expected 1");
        return Err(Refusal::other_model(&message).into());
    }
    let cut = request.truncation.cut(&app)?;
    let RerankRequest { query, texts, .. } = request;
    let bytes = texts.iter().map(String::len).sum::<usize>();
    let texts = Arc::new(texts);
    let returned = request.return_text.then(|| Arc::clone(&texts));
    let kept = returned.as_ref().map_or(0, |_| bytes);
    let asked = TokenizerRequest {
        param: "texts",
        count: texts.len(),
        // Each text is read behind the query.
        bytes: query.len() * texts.len() + bytes,
        kept,
        work: Box::new(move |tokenizer, client| {
            let pair = tokenizer.pairs(&query, cut);
            let pair = pair.map_err(|error| Fault::from(error).at("query", "query"))?;
            each(client, "texts", &texts, |text| match (&*query, &**text) {
                ("", "") => Err(Fault::Empty),
                _ => Ok(pair(text)?),
            })
        }),
    };
    let answered = app.ask(admission, Head::Classes, asked).await?;
    let rank = |(index, logits): (usize, Vec<f32>)| {
        let logit = logits.first().copied();
        let logit =
            logit.ok_or_else(|| Refusal::failed("the model: expected a score, got none"))?;
        Ok(Rank {
            index,
            text: returned.as_ref().and_then(|texts| texts.get(index).cloned()),
            score: if request.raw_scores { logit } else { sigmoid(logit) },
        })
    };
    let ranks = answered.vectors.into_iter().enumerate().map(rank);
    let mut ranks = ranks.collect::<Result<Vec<_>, Refusal>>()?;
    ranks.sort_by(|a, b| b.score.total_cmp(&a.score));
    Ok(body::answer(answered.admission, &ranks)?)
}
