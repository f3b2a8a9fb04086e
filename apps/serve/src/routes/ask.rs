//! Tokenizes the texts of a request, and gets the model's answers.

use std::sync::Arc;

use axum::response::Response;
use dynquant_embed::{Direction, Head, Input, Prompt, Tokenizer, Tokens, TokensError, normalized};
use serde::{Deserialize, Serialize};

use crate::app::{App, Before};
use crate::body;
use crate::error::{Kind, Refusal};
use crate::limits::Admission;
use crate::places::Permit;
use crate::queue::Text as Job;
use crate::workers::Client;

/// The most bytes of a number in an answer: four in memory, and its characters in JSON.
const NUMBER: usize = 4 + 16;

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of token ids")]
pub enum Text {
    Characters(String),
    Ids(Vec<u32>),
}

impl Text {
    fn bytes(&self) -> usize {
        match self {
            Self::Characters(text) => text.len(),
            Self::Ids(ids) => ids.len(),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Strings {
    One(String),
    Many(Vec<String>),
}

impl Strings {
    pub fn into_list(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
pub enum Texts {
    One(Text),
    Many(Vec<Text>),
}

impl Texts {
    /// The tokens of each text after a prompt, cut if there are too many. The texts are in the
    /// field `param`.
    pub fn behind(
        self,
        param: &'static str,
        before: Before,
        cut: Option<Direction>,
    ) -> TokenizerRequest<Vec<Tokens>> {
        let texts = match self {
            // An empty list may be of anything.
            Self::One(Text::Ids(ids)) if ids.is_empty() => Vec::new(),
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        };
        let bytes = texts.iter().map(|text| before.prompt.len() + text.bytes()).sum();
        TokenizerRequest::new(param, texts.len(), bytes, move |tokenizer, client| {
            let behind = Behind::new(tokenizer, &before, cut)?;
            each(client, param, &texts, |text| match text {
                Text::Characters(text) => behind.characters(text),
                Text::Ids(ids) => behind.ids(ids),
            })
        })
    }
}

/// A request to the tokenizer.
pub struct TokenizerRequest<T> {
    param: &'static str,
    count: usize,
    /// The approximate number of bytes that the tokenizer reads.
    bytes: usize,
    /// The number of these bytes that are kept for the answer.
    pub kept: usize,
    work: Work<T>,
}

type Work<T> = Box<dyn FnOnce(&Tokenizer, &Client) -> Result<T, Refusal> + Send>;

impl<T> TokenizerRequest<T> {
    pub fn new(
        param: &'static str,
        count: usize,
        bytes: usize,
        work: impl FnOnce(&Tokenizer, &Client) -> Result<T, Refusal> + Send + 'static,
    ) -> Self {
        Self { param, count, bytes, kept: 0, work: Box::new(work) }
    }
}

/// The reason why a text cannot be tokenized.
pub enum Fault {
    Empty,
    Tokens(TokensError),
}

impl From<TokensError> for Fault {
    fn from(error: TokensError) -> Self {
        Self::Tokens(error)
    }
}

impl Fault {
    pub fn at(self, param: &'static str, place: &str) -> Refusal {
        match self {
            Self::Empty => {
                Refusal::at(Kind::Empty, param, place, "expected a text, got an empty one")
            }
            Self::Tokens(error @ TokensError::Failed(_)) => {
                Refusal::failed(format!("{place}: {error}"))
            }
            Self::Tokens(error) => Refusal::at(Kind::Invalid, param, place, error),
        }
    }
}

/// Applies `work` to each text, until the client hangs up; a refusal names the text at fault.
pub fn each<T, U>(
    client: &Client,
    param: &'static str,
    texts: &[T],
    work: impl Fn(&T) -> Result<U, Fault>,
) -> Result<Vec<U>, Refusal> {
    let done = texts.iter().enumerate().map(|(index, text)| {
        client.check()?;
        work(text).map_err(|fault| match texts.len() {
            1 => fault.at(param, param),
            _ => fault.at(param, &format!("{param}[{index}]")),
        })
    });
    done.collect()
}

/// Tokenizes texts after a prompt.
pub struct Behind<'a> {
    tokenizer: &'a Tokenizer,
    prompt: Prompt,
    cut: Option<Direction>,
}

impl<'a> Behind<'a> {
    pub fn new(
        tokenizer: &'a Tokenizer,
        before: &Before,
        cut: Option<Direction>,
    ) -> Result<Self, Refusal> {
        let prompt = tokenizer.prompt(&before.prompt);
        let prompt = prompt.map_err(|e| Fault::from(e).at("prompt_name", "the prompt"))?;
        Ok(Self { tokenizer, prompt: prompt.of_queries(before.is_query), cut })
    }

    pub fn characters(&self, text: &str) -> Result<Tokens, Fault> {
        match text {
            "" => Err(Fault::Empty),
            text => Ok(self.tokenizer.encode_behind(&self.prompt, text, self.cut)?),
        }
    }

    /// The tokens of ids: unchanged, or decoded to characters to follow the prompt.
    fn ids(&self, ids: &[u32]) -> Result<Tokens, Fault> {
        match (ids, self.prompt.text()) {
            ([], _) => Err(Fault::Empty),
            (ids, "") => Ok(self.tokenizer.encode(Input::Ids(ids), self.cut)?),
            (ids, _) => self.characters(&self.tokenizer.decode(ids, false)?),
        }
    }
}

/// The model's answer to a request.
pub struct Answered {
    pub vectors: Vec<Vec<f32>>,
    /// The number of tokens of all texts.
    pub tokens: usize,
    /// The bytes reserved for the answer, if it grows with the tokens.
    pub bytes: usize,
    pub admission: Admission,
}

impl App {
    pub async fn ask(
        &self,
        admission: Admission,
        head: Head,
        asked: TokenizerRequest<Vec<Tokens>>,
    ) -> Result<Answered, Refusal> {
        let (param, kept) = (asked.param, asked.kept);
        let (texts, places, mut admission) = self.tokenized(admission, asked).await?;
        let embedder = self.embedder()?;
        let (tokens, config) = (texts.iter().map(Tokens::len).sum(), &embedder.config);
        let bytes = match head {
            Head::TokenEmbeddings => tokens * embedder.token_size() * NUMBER,
            Head::Embedding if config.is_multi_vector() => {
                let message = "the model has a vector of each token only: see /embed_all";
                return Err(Refusal::new(Kind::OtherModel, message));
            }
            Head::Sparse => texts.len() * config.vocab_size * NUMBER,
            Head::Embedding if config.is_splade() => texts.len() * config.embedding_size * NUMBER,
            Head::Embedding | Head::Classes | Head::TokenClasses => 0,
        };
        self.limits.reserve(&mut admission.memory, param, kept + bytes)?;
        let texts = texts.into_iter().map(|tokens| Job { tokens, head });
        let vectors = embedder.queue.answer(places, texts).await?;
        Ok(Answered { vectors, tokens, bytes, admission })
    }

    /// Answers with the tokenizer's result for each text, of about `size` bytes.
    pub async fn convert<T: Serialize + Send + 'static>(
        &self,
        admission: Admission,
        asked: TokenizerRequest<Vec<T>>,
        size: impl Fn(&T) -> usize,
    ) -> Result<Response, Refusal> {
        let param = asked.param;
        let (results, _places, mut admission) = self.tokenized(admission, asked).await?;
        let bytes = results.iter().map(size).sum();
        self.limits.reserve(&mut admission.memory, param, bytes)?;
        let answer = move |_: &_| body::answer(admission, &results);
        self.limits.workers.run(bytes, answer).await?
    }

    /// Runs the work of the tokenizer, with places in the queue.
    async fn tokenized<T: Send + 'static>(
        &self,
        admission: Admission,
        asked: TokenizerRequest<T>,
    ) -> Result<(T, Permit, Admission), Refusal> {
        self.check_open()?;
        self.limits.check_texts(asked.param, asked.count)?;
        let embedder = self.embedder()?;
        let places = embedder.queue.reserve(asked.count)?;
        let tokenizer = Arc::clone(&embedder.tokenizer);
        let Admission { request, mut memory } = admission;
        memory.at_least(asked.bytes)?;
        let work = move |client: &_| ((asked.work)(&tokenizer, client), places, memory);
        let (done, places, memory) = self.limits.workers.run(asked.bytes, work).await?;
        Ok((done?, places, Admission { request, memory }))
    }
}

/// The last steps of an embedding: a cut to the leading numbers, and a normalization to length 1.
pub struct Finish {
    dimensions: usize,
    normalize: bool,
}

impl Finish {
    /// The steps that a request asks for, of embeddings with `all` numbers.
    pub fn new(all: usize, dimensions: Option<usize>, normalize: bool) -> Result<Self, Refusal> {
        let dimensions = dimensions.unwrap_or(all);
        let fault = format_args!("expected 1 to {all}, which the model has, got {dimensions}");
        Refusal::unless((1..=all).contains(&dimensions), "dimensions", fault)?;
        Ok(Self { dimensions, normalize })
    }

    pub fn apply(&self, mut embedding: Vec<f32>) -> Vec<f32> {
        embedding.truncate(self.dimensions);
        if self.normalize { normalized(embedding) } else { embedding }
    }
}
