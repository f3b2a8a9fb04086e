//! `POST /embed`, `POST /embed_sparse` and `POST /embed_all`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use dynquant_embed::{Head, SparseVector};
use serde::{Deserialize, Serialize, Serializer};

use super::super::finish::Finish;
use super::super::inputs::Texts;
use super::truncation::Truncation;
use crate::app::App;
use crate::body;
use crate::error::{Refusal, Tei};

#[derive(Deserialize)]
struct EmbedRequest {
    inputs: Texts,
    prompt_name: Option<String>,
    normalize: Option<bool>,
    dimensions: Option<usize>,
    #[serde(flatten)]
    truncation: Truncation,
}

/// `POST /embed`: embeddings, at length 1 unless `normalize` is false.
pub async fn embed(State(app): State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    let (request, admission) = app.receive::<EmbedRequest>(request).await?;
    let embedder = app.embedder()?;
    let normalize = request.normalize.unwrap_or(true);
    let size = embedder.config.embedding_size;
    let finish = Finish::new(size, request.dimensions, normalize)?;
    let prompt = embedder.prompt(request.prompt_name.as_deref())?;
    let cut = request.truncation.cut(&app)?;
    let texts = request.inputs.behind("inputs", prompt, cut);
    let answered = app.ask(admission, Head::Embedding, texts).await?;
    let vectors = answered.vectors.into_iter();
    let vectors: Vec<_> = vectors.map(|vector| finish.apply(vector)).collect();
    Ok(body::answer(answered.admission, &vectors)?)
}

/// `POST /embed_sparse`: the tokens with a weight, of SPLADE and bge-m3.
pub async fn embed_sparse(State(app): State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    let (request, admission) = app.receive::<EmbedAllRequest>(request).await?;
    let embedder = app.embedder()?;
    if !embedder.config.is_sparse() {
        let message = "the model has no sparse embeddings: it has neither the pooling splade nor the head of bge-m3";
        return Err(Refusal::other_model(message).into());
    }
    let prompt = embedder.prompt(request.prompt_name.as_deref())?;
    let cut = request.truncation.cut(&app)?;
    let texts = request.inputs.behind("inputs", prompt, cut);
    let answered = app.ask(admission, Head::Sparse, texts).await?;
    let answer = move |_: &_| {
        let texts = answered.vectors.iter().map(|weights| {
            let SparseVector { ids, weights } = SparseVector::from_dense(weights);
            let pairs = ids.into_iter().zip(weights);
            pairs.map(|(index, value)| Weight { index, value }).collect()
        });
        let texts: Vec<Vec<Weight>> = texts.collect();
        body::answer(answered.admission, &texts)
    };
    Ok(app.limits.workers.run(answered.bytes, answer).await??)
}

/// A token with its weight.
#[derive(Serialize)]
struct Weight {
    index: u32,
    value: f32,
}

#[derive(Deserialize)]
struct EmbedAllRequest {
    inputs: Texts,
    prompt_name: Option<String>,
    #[serde(flatten)]
    truncation: Truncation,
}

/// `POST /embed_all`: the vectors of all tokens, including special tokens and the prompt's,
/// before the pooling; of a model of late interaction, those that similarities are made of.
pub async fn embed_all(State(app): State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    let (request, admission) = app.receive::<EmbedAllRequest>(request).await?;
    let embedder = app.embedder()?;
    let prompt = embedder.prompt(request.prompt_name.as_deref())?;
    let cut = request.truncation.cut(&app)?;
    let texts = request.inputs.behind("inputs", prompt, cut);
    let answered = app.ask(admission, Head::TokenEmbeddings, texts).await?;
    let size = embedder.token_size();
    let rows = |values| Rows { values, size };
    let texts: Vec<Rows> = answered.vectors.into_iter().map(rows).collect();
    let answer = move |_: &_| body::answer(answered.admission, &texts);
    Ok(app.limits.workers.run(answered.bytes, answer).await??)
}

/// Numbers in rows of `size`.
struct Rows {
    values: Vec<f32>,
    size: usize,
}

impl Serialize for Rows {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.values.chunks_exact(self.size))
    }
}
