//! `POST /similarity`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use dynquant_embed::{Head, normalized};
use serde::Deserialize;

use super::super::inputs::{Behind, TokenizerRequest, each};
use super::super::rest::Rest;
use super::truncation::Truncation;
use crate::app::App;
use crate::body;
use crate::error::{Refusal, Tei};

#[derive(Deserialize)]
struct SimilarityRequest {
    inputs: Sentences,
    parameters: Option<Parameters>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Deserialize)]
struct Sentences {
    source_sentence: String,
    sentences: Vec<String>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Default, Deserialize)]
struct Parameters {
    prompt_name: Option<String>,
    #[serde(flatten)]
    truncation: Truncation,
}

/// `POST /similarity`: the cosine of the source sentence with each other sentence.
pub async fn similarity(State(app): State<Arc<App>>, request: Request) -> Result<Response, Tei> {
    let (request, admission) = app.receive::<SimilarityRequest>(request).await?;
    request.rest.check()?;
    request.inputs.rest.check_part("inputs.")?;
    let (source, sentences) = (request.inputs.source_sentence, request.inputs.sentences);
    let names = ["inputs.source_sentence", "inputs.sentences"];
    if sentences.is_empty() {
        return Err(Refusal::empty(names[1]).into());
    }
    let parameters = request.parameters.unwrap_or_default();
    let prompt = app.embedder()?.prompt(parameters.prompt_name.as_deref())?;
    let cut = parameters.truncation.cut(&app)?;
    let asked = TokenizerRequest {
        param: "inputs",
        count: 1 + sentences.len(),
        bytes: source.len() + sentences.iter().map(String::len).sum::<usize>(),
        kept: 0,
        work: Box::new(move |tokenizer, client| {
            let behind = Behind::new(tokenizer, &prompt, cut)?;
            let encode = |text: &String| behind.characters(text);
            let mut tokens = each(client, names[0], &[source], encode)?;
            tokens.extend(each(client, names[1], &sentences, encode)?);
            Ok(tokens)
        }),
    };
    let answered = app.ask(admission, Head::Embedding, asked).await?;
    let mut vectors = answered.vectors.into_iter().map(normalized);
    let source = vectors.next().unwrap_or_default();
    let cosines: Vec<f32> = vectors.map(|vector| dot(&source, &vector)).collect();
    Ok(body::answer(answered.admission, &cosines)?)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum::<f64>() as f32
}
