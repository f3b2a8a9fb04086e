//! The API of text-embeddings-inference: `/embed` and `/predict`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use dynquant_embed::{Direction, Head};
use serde::{Deserialize, Serialize};

use super::App;
use super::inputs::{Text, Texts, normalize};
use crate::body;
use crate::error::{Refusal, Tei};

/// Which end of a text is cut.
#[derive(Clone, Copy, Default, Deserialize)]
enum Truncation {
    #[serde(alias = "left")]
    Left,
    #[default]
    #[serde(alias = "right")]
    Right,
}

impl Truncation {
    fn cut(self, requested: Option<bool>, app: &App) -> Option<Direction> {
        let direction = match self {
            Self::Left => Direction::Left,
            Self::Right => Direction::Right,
        };
        requested.unwrap_or(app.auto_truncate).then_some(direction)
    }
}

#[derive(Deserialize)]
pub struct EmbedRequest {
    inputs: Texts,
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: Truncation,
    normalize: Option<bool>,
    prompt_name: Option<String>,
    dimensions: Option<usize>,
}

/// `POST /embed`: embeddings, at length 1 unless `normalize` is false.
pub async fn embed(State(app): State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    let (request, admission) = app.receive::<EmbedRequest>(request).await?;
    if let Some(got) = request.prompt_name {
        let message = format!("prompt_name: the model has no prompts, got {got:?}");
        return Err(Refusal::invalid("prompt_name", message).into());
    }
    let size = app.embedder()?.config.embedding_size;
    if let Some(got) = request.dimensions.filter(|got| *got != size) {
        let message = format!("dimensions: expected {size}, all that the model has, got {got}");
        return Err(Refusal::invalid("dimensions", message).into());
    }
    let cut = request.truncation_direction.cut(request.truncate, &app);
    let texts = request.inputs.into_list();
    let asked = app.ask(admission, Head::Embedding, "inputs", texts, cut);
    let mut answered = asked.await?;
    if request.normalize.unwrap_or(true) {
        let vectors = answered.vectors.into_iter();
        answered.vectors = vectors.map(normalize).collect();
    }
    Ok(body::answer(answered.admission, &answered.vectors)?)
}

#[derive(Deserialize)]
pub struct PredictRequest {
    inputs: PredictInputs,
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: Truncation,
    #[serde(default)]
    raw_scores: bool,
}

/// A text, a pair of texts, or a batch of lists of one text or two.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a pair of strings, or a list of lists of one string or two"
)]
enum PredictInputs {
    Text(String),
    Pair((String, String)),
    Single((String,)),
    Batch(Vec<Vec<String>>),
}

#[derive(Serialize)]
struct Prediction {
    score: f32,
    label: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Predictions {
    Single(Vec<Prediction>),
    Batch(Vec<Vec<Prediction>>),
}

/// `POST /predict`: every class with its score, the best first.
pub async fn predict(State(app): State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    let (request, admission) = app.receive::<PredictRequest>(request).await?;
    let embedder = app.embedder()?;
    if !embedder.is_classifier {
        return Err(Refusal::no_classifier().into());
    }
    let cut = request.truncation_direction.cut(request.truncate, &app);
    let (texts, is_batch) = match request.inputs {
        PredictInputs::Text(text) | PredictInputs::Single((text,)) => {
            (vec![Text::Characters(text)], false)
        }
        PredictInputs::Pair((first, second)) => (vec![Text::Pair(first, second)], false),
        PredictInputs::Batch(batch) => (each_text(batch)?, true),
    };
    let asked = app.ask(admission, Head::Classes, "inputs", texts, cut);
    let answered = asked.await?;
    let labels = &embedder.config.labels;
    let ranked = |logits| ranked(labels, scores(logits, request.raw_scores));
    let mut predictions = answered.vectors.into_iter().map(ranked);
    let predictions = if is_batch {
        Predictions::Batch(predictions.collect())
    } else {
        Predictions::Single(predictions.next().unwrap_or_default())
    };
    Ok(body::answer(answered.admission, &predictions)?)
}

fn each_text(batch: Vec<Vec<String>>) -> Result<Vec<Text>, Refusal> {
    let text = |(index, strings): (usize, Vec<String>)| {
        let got = strings.len();
        let mut strings = strings.into_iter();
        match (strings.next(), strings.next(), strings.next()) {
            (Some(text), None, None) => Ok(Text::Characters(text)),
            (Some(first), Some(second), None) => Ok(Text::Pair(first, second)),
            _ => Err(Refusal::invalid(
                "inputs",
                format!("inputs[{index}]: expected a text or a pair, got {got} strings"),
            )),
        }
    };
    batch.into_iter().enumerate().map(text).collect()
}

/// Probabilities of the classes, or of the only one; `raw` logits as they are.
fn scores(logits: Vec<f32>, raw: bool) -> Vec<f32> {
    if raw {
        return logits;
    }
    if let [logit] = logits[..] {
        return vec![1. / (1. + (-logit).exp())];
    }
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

fn ranked(labels: &[String], scores: Vec<f32>) -> Vec<Prediction> {
    let pairs = labels.iter().cloned().zip(scores);
    let mut predictions: Vec<_> = pairs
        .map(|(label, score)| Prediction { score, label })
        .collect();
    predictions.sort_by(|a, b| b.score.total_cmp(&a.score));
    predictions
}
