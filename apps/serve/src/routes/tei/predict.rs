//! `POST /predict`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use dynquant_embed::{Head, Input, sigmoid, softmax};
use serde::{Deserialize, Serialize};

use super::super::inputs::{Fault, TokenizerRequest, each};
use super::truncation::Truncation;
use crate::app::{App, ModelKind};
use crate::body;
use crate::error::{Refusal, Tei};

#[derive(Deserialize)]
struct PredictRequest {
    inputs: PredictInputs,
    #[serde(default)]
    raw_scores: bool,
    #[serde(flatten)]
    truncation: Truncation,
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
    if embedder.kind == ModelKind::Embedder {
        return Err(Refusal::no_classifier().into());
    }
    let cut = request.truncation.cut(&app)?;
    let (texts, is_batch) = match request.inputs {
        PredictInputs::Text(text) | PredictInputs::Single((text,)) => (vec![(text, None)], false),
        PredictInputs::Pair((first, second)) => (vec![(first, Some(second))], false),
        PredictInputs::Batch(batch) => (each_text(batch)?, true),
    };
    let asked = TokenizerRequest {
        param: "inputs",
        count: texts.len(),
        bytes: texts
            .iter()
            .map(|(first, second)| first.len() + second.as_ref().map_or(0, String::len))
            .sum(),
        kept: 0,
        work: Box::new(move |tokenizer, client| {
            each(client, "inputs", &texts, |(first, second)| match (&**first, second.as_deref()) {
                ("", None | Some("")) => Err(Fault::Empty),
                (text, None) => Ok(tokenizer.encode(Input::Text(text), cut)?),
                (first, Some(second)) => Ok(tokenizer.encode(Input::Pair(first, second), cut)?),
            })
        }),
    };
    let answered = app.ask(admission, Head::Classes, asked).await?;
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

/// A text, or a pair with its second text.
type TextOrPair = (String, Option<String>);

fn each_text(batch: Vec<Vec<String>>) -> Result<Vec<TextOrPair>, Refusal> {
    let text = |(index, strings): (usize, Vec<String>)| {
        let got = strings.len();
        let mut strings = strings.into_iter();
        match (strings.next(), strings.next(), strings.next()) {
            (Some(first), second, None) => Ok((first, second)),
            _ => Err(Refusal::invalid(
                "inputs",
                format!("inputs[{index}]: expected a text or a pair, got {got} strings"),
            )),
        }
    };
    batch.into_iter().enumerate().map(text).collect()
}

/// The probabilities of the classes, or of the only class; with `raw` the logits.
fn scores(logits: Vec<f32>, raw: bool) -> Vec<f32> {
    if raw {
        return logits;
    }
    match logits[..] {
        [logit] => vec![sigmoid(logit)],
        _ => softmax(&logits),
    }
}

fn ranked(labels: &[String], scores: Vec<f32>) -> Vec<Prediction> {
    let pairs = labels.iter().cloned().zip(scores);
    let mut predictions: Vec<_> = pairs.map(|(label, score)| Prediction { score, label }).collect();
    predictions.sort_by(|a, b| b.score.total_cmp(&a.score));
    predictions
}
