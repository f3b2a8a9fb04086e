//! The API of text-embeddings-inference.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use dynquant_embed::{Direction, Head, Input, SparseVector, Token, normalized, sigmoid, softmax};
use serde::{Deserialize, Serialize, Serializer};

use super::ask::{Behind, Fault, Finish, Strings, Texts, TokenizerRequest, each};
use super::rest::Rest;
use crate::app::{App, ModelKind};
use crate::body;
use crate::error::{Kind, Refusal};

/// The bytes of a token in an answer, without its text.
const TOKEN: usize = 80;
/// The most bytes in JSON for a byte of text.
const ESCAPED: usize = 6;

/// Whether a text that is too long is cut, and at which end.
#[derive(Default, Deserialize)]
struct Truncation {
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: End,
    /// The fields that the route has not, which must be neutral.
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Clone, Copy, Default, Deserialize)]
enum End {
    #[serde(alias = "left")]
    Left,
    #[default]
    #[serde(alias = "right")]
    Right,
}

impl Truncation {
    /// The end to cut, if any; checks the other fields of the request.
    fn cut(&self, app: &App) -> Result<Option<Direction>, Refusal> {
        self.rest.check()?;
        let direction = match self.truncation_direction {
            End::Left => Direction::Left,
            End::Right => Direction::Right,
        };
        Ok(self.truncate.unwrap_or(app.auto_truncate).then_some(direction))
    }
}

/// `POST /` and `POST /invocations`: answers like the route for the model's purpose.
pub async fn by_model(app: State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    match app.embedder()?.kind {
        ModelKind::Embedder => embed(app, request).await,
        ModelKind::Classifier => predict(app, request).await,
        ModelKind::Reranker => rerank(app, request).await,
    }
}

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
pub async fn embed(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<EmbedRequest>(request).await?;
    let embedder = app.embedder()?;
    let normalize = request.normalize.unwrap_or(true);
    let finish = Finish::new(embedder.config.embedding_size, request.dimensions, normalize)?;
    let prompt = embedder.prompt(request.prompt_name.as_deref())?;
    let cut = request.truncation.cut(&app)?;
    let texts = request.inputs.behind("inputs", prompt, cut);
    let answered = app.ask(admission, Head::Embedding, texts).await?;
    let vectors = answered.vectors.into_iter();
    let vectors: Vec<_> = vectors.map(|vector| finish.apply(vector)).collect();
    body::answer(answered.admission, &vectors)
}

#[derive(Deserialize)]
struct EmbedAllRequest {
    inputs: Texts,
    prompt_name: Option<String>,
    #[serde(flatten)]
    truncation: Truncation,
}

#[derive(Serialize)]
struct Weight {
    index: u32,
    value: f32,
}

/// `POST /embed_sparse`: the tokens with a weight, of SPLADE and bge-m3.
pub async fn embed_sparse(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<EmbedAllRequest>(request).await?;
    let embedder = app.embedder()?;
    if !embedder.config.is_sparse() {
        let message = "the model has no sparse embeddings: it has neither the pooling splade nor the head of bge-m3";
        return Err(Refusal::new(Kind::OtherModel, message));
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
    app.limits.workers.run(answered.bytes, answer).await?
}

struct Rows {
    values: Vec<f32>,
    size: usize,
}

impl Serialize for Rows {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.values.chunks_exact(self.size))
    }
}

/// `POST /embed_all`: the vectors of all tokens, including special tokens and the prompt's,
/// before the pooling; of a model of late interaction, those that similarities are made of.
pub async fn embed_all(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<EmbedAllRequest>(request).await?;
    let embedder = app.embedder()?;
    let prompt = embedder.prompt(request.prompt_name.as_deref())?;
    let cut = request.truncation.cut(&app)?;
    let texts = request.inputs.behind("inputs", prompt, cut);
    let answered = app.ask(admission, Head::TokenEmbeddings, texts).await?;
    let rows = |values| Rows { values, size: embedder.token_size() };
    let texts: Vec<Rows> = answered.vectors.into_iter().map(rows).collect();
    let answer = move |_: &_| body::answer(answered.admission, &texts);
    app.limits.workers.run(answered.bytes, answer).await?
}

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
struct Prediction<'a> {
    score: f32,
    label: &'a str,
}

/// `POST /predict`: every class with its score, the best first.
pub async fn predict(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<PredictRequest>(request).await?;
    let embedder = app.embedder()?;
    if embedder.kind == ModelKind::Embedder {
        let message = "the model has no classification head: it answers with embeddings only";
        return Err(Refusal::new(Kind::OtherModel, message));
    }
    let cut = request.truncation.cut(&app)?;
    let (texts, is_batch) = match request.inputs {
        PredictInputs::Text(text) | PredictInputs::Single((text,)) => (vec![(text, None)], false),
        PredictInputs::Pair((first, second)) => (vec![(first, Some(second))], false),
        PredictInputs::Batch(batch) => (each_text(batch)?, true),
    };
    let size = |(first, second): &TextOrPair| first.len() + second.as_ref().map_or(0, String::len);
    let bytes = texts.iter().map(size).sum();
    let asked = TokenizerRequest::new("inputs", texts.len(), bytes, move |tokenizer, client| {
        each(client, "inputs", &texts, |(first, second)| match (&**first, second.as_deref()) {
            ("", None | Some("")) => Err(Fault::Empty),
            (text, None) => Ok(tokenizer.encode(Input::Text(text), cut)?),
            (first, Some(second)) => Ok(tokenizer.encode(Input::Pair(first, second), cut)?),
        })
    });
    let answered = app.ask(admission, Head::Classes, asked).await?;
    let ranked = |logits: Vec<f32>| {
        let scores = match logits[..] {
            _ if request.raw_scores => logits,
            [logit] => vec![sigmoid(logit)],
            _ => softmax(&logits),
        };
        let pairs = embedder.config.labels.iter().zip(scores);
        let mut ranked: Vec<_> = pairs.map(|(label, score)| Prediction { score, label }).collect();
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
        ranked
    };
    let predictions: Vec<_> = answered.vectors.into_iter().map(ranked).collect();
    match predictions.first() {
        Some(only) if !is_batch => body::answer(answered.admission, only),
        _ => body::answer(answered.admission, &predictions),
    }
}

/// A text, or a pair with its second text.
type TextOrPair = (String, Option<String>);

fn each_text(batch: Vec<Vec<String>>) -> Result<Vec<TextOrPair>, Refusal> {
    let text = |(index, strings): (usize, Vec<String>)| {
        let (place, got) = (format!("inputs[{index}]"), strings.len());
        let mut strings = strings.into_iter();
        match (strings.next(), strings.next(), strings.next()) {
            (Some(first), second, None) => Ok((first, second)),
            _ => {
                let fault = format_args!("expected a text or a pair, got {got} strings");
                Err(Refusal::at(Kind::Invalid, "inputs", &place, fault))
            }
        }
    };
    batch.into_iter().enumerate().map(text).collect()
}

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
pub async fn rerank(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<RerankRequest>(request).await?;
    let embedder = app.embedder()?;
    if embedder.kind != ModelKind::Reranker {
        let is_classifier = embedder.kind == ModelKind::Classifier;
        let classes = if is_classifier { embedder.config.labels.len() } else { 0 };
        let message = format!("not a reranker: the head has {classes} classes, expected 1");
        return Err(Refusal::new(Kind::OtherModel, message));
    }
    let cut = request.truncation.cut(&app)?;
    let RerankRequest { query, texts, .. } = request;
    let bytes = texts.iter().map(String::len).sum::<usize>();
    let texts = Arc::new(texts);
    let returned = request.return_text.then(|| Arc::clone(&texts));
    // Each text is read behind the query.
    let read = query.len() * texts.len() + bytes;
    let mut asked = TokenizerRequest::new("texts", texts.len(), read, move |tokenizer, client| {
        let pair = tokenizer.pairs(&query, cut);
        let pair = pair.map_err(|error| Fault::from(error).at("query", "query"))?;
        each(client, "texts", &texts, |text| match (&*query, &**text) {
            ("", "") => Err(Fault::Empty),
            _ => Ok(pair(text)?),
        })
    });
    asked.kept = if returned.is_some() { bytes } else { 0 };
    let answered = app.ask(admission, Head::Classes, asked).await?;
    let rank = |(index, logits): (usize, Vec<f32>)| {
        let none = || Refusal::failed("the model: expected a score, got none");
        let logit = logits.first().copied().ok_or_else(none)?;
        Ok(Rank {
            index,
            text: returned.as_ref().and_then(|texts| texts.get(index).cloned()),
            score: if request.raw_scores { logit } else { sigmoid(logit) },
        })
    };
    let ranks = answered.vectors.into_iter().enumerate().map(rank);
    let mut ranks = ranks.collect::<Result<Vec<_>, Refusal>>()?;
    ranks.sort_by(|a, b| b.score.total_cmp(&a.score));
    body::answer(answered.admission, &ranks)
}

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
pub async fn similarity(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<SimilarityRequest>(request).await?;
    request.rest.check()?;
    request.inputs.rest.check_part("inputs.")?;
    let (source, sentences) = (request.inputs.source_sentence, request.inputs.sentences);
    let names = ["inputs.source_sentence", "inputs.sentences"];
    if sentences.is_empty() {
        return Err(Refusal::empty(names[1]));
    }
    let parameters = request.parameters.unwrap_or_default();
    let prompt = app.embedder()?.prompt(parameters.prompt_name.as_deref())?;
    let cut = parameters.truncation.cut(&app)?;
    let bytes = source.len() + sentences.iter().map(String::len).sum::<usize>();
    let count = 1 + sentences.len();
    let asked = TokenizerRequest::new("inputs", count, bytes, move |tokenizer, client| {
        let behind = Behind::new(tokenizer, &prompt, cut)?;
        let encode = |text: &String| behind.characters(text);
        let mut tokens = each(client, names[0], &[source], encode)?;
        tokens.extend(each(client, names[1], &sentences, encode)?);
        Ok(tokens)
    });
    let answered = app.ask(admission, Head::Embedding, asked).await?;
    let mut vectors = answered.vectors.into_iter().map(normalized);
    let source = vectors.next().unwrap_or_default();
    let cosine = |vector: Vec<f32>| {
        let products = source.iter().zip(&vector).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum::<f64>() as f32
    };
    body::answer(answered.admission, &vectors.map(cosine).collect::<Vec<f32>>())
}

#[derive(Deserialize)]
struct TokenizeRequest {
    inputs: Strings,
    #[serde(default = "yes")]
    add_special_tokens: bool,
    prompt_name: Option<String>,
    #[serde(flatten)]
    rest: Rest,
}

fn yes() -> bool {
    true
}

/// A token in the API's format.
#[derive(Serialize)]
struct Entry {
    id: u32,
    text: String,
    special: bool,
    start: Option<usize>,
    stop: Option<usize>,
}

impl From<Token> for Entry {
    fn from(Token { id, text, span }: Token) -> Self {
        let (start, stop) = span.map(|span| (span.start, span.end)).unzip();
        Self { id, text, special: start.is_none(), start, stop }
    }
}

/// `POST /tokenize`: all tokens of texts, with their bytes in the text with its prompt.
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<TokenizeRequest>(request).await?;
    request.rest.check()?;
    let prompt = app.embedder()?.prompt(request.prompt_name.as_deref())?.prompt;
    let special = request.add_special_tokens;
    let texts = request.inputs.into_list();
    let bytes = texts.iter().map(|text| prompt.len() + text.len()).sum();
    let asked = TokenizerRequest::new("inputs", texts.len(), bytes, move |tokenizer, client| {
        each(client, "inputs", &texts, |text| match &**text {
            "" => Err(Fault::Empty),
            text => {
                let tokens = tokenizer.tokens(&format!("{prompt}{text}"), special)?;
                Ok(tokens.into_iter().map(Entry::from).collect())
            }
        })
    });
    let size = |tokens: &Vec<Entry>| -> usize {
        tokens.iter().map(|token| TOKEN + ESCAPED * token.text.len()).sum()
    };
    app.convert(admission, asked, size).await
}

/// The ids of one or several texts.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of token ids, or a list of such lists")]
enum Ids {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

#[derive(Deserialize)]
struct DecodeRequest {
    ids: Ids,
    #[serde(default = "yes")]
    skip_special_tokens: bool,
    #[serde(flatten)]
    rest: Rest,
}

/// `POST /decode`: the texts of token ids.
pub async fn decode(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let (request, admission) = app.receive::<DecodeRequest>(request).await?;
    request.rest.check()?;
    let special = !request.skip_special_tokens;
    let lists = match request.ids {
        Ids::One(ids) => vec![ids],
        Ids::Many(lists) => lists,
    };
    let bytes = lists.iter().map(Vec::len).sum();
    let asked = TokenizerRequest::new("ids", lists.len(), bytes, move |tokenizer, client| {
        each(client, "ids", &lists, |ids| match &**ids {
            [] => Err(Fault::Empty),
            ids => Ok(tokenizer.decode(ids, special)?),
        })
    });
    app.convert(admission, asked, |text: &String| ESCAPED * text.len()).await
}
