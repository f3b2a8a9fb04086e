//! Tokenizes the texts of a request, and gets the model's answers.

use std::sync::Arc;

use axum::response::Response;
use dynquant_embed::{Head, Tokens};
use serde::Serialize;

use super::inputs::TokenizerRequest;
use crate::app::App;
use crate::body;
use crate::error::Refusal;
use crate::limits::Admission;
use crate::places::Permit;
use crate::queue::Text;

/// The most bytes of a number in an answer: four in memory, and its characters in JSON.
const NUMBER: usize = 4 + 16;

/// The model's answer to a request.
pub struct Answered {
    /// A vector for each text.
    pub vectors: Vec<Vec<f32>>,
    /// The number of tokens of all texts.
    pub tokens: usize,
    /// The bytes reserved for the answer, if it grows with the tokens.
    pub bytes: usize,
    pub admission: Admission,
}

impl App {
    /// Tokenizes texts and asks the model.
    pub async fn ask(
        &self,
        admission: Admission,
        head: Head,
        asked: TokenizerRequest<Vec<Tokens>>,
    ) -> Result<Answered, Refusal> {
        let (param, kept) = (asked.param, asked.kept);
        let (texts, places, mut admission) = self.tokenized(admission, asked).await?;
        let embedder = self.embedder()?;
        let tokens = texts.iter().map(Tokens::len).sum();
        let bytes = match head {
            Head::TokenEmbeddings => tokens * embedder.token_size() * NUMBER,
            Head::Embedding if embedder.config.is_multi_vector() => {
                let message = "the model has a vector of each token only: see /embed_all";
                return Err(Refusal::other_model(message));
            }
            Head::Sparse => texts.len() * embedder.config.vocab_size * NUMBER,
            Head::Embedding if embedder.config.is_splade() => {
                texts.len() * embedder.config.embedding_size * NUMBER
            }
            Head::Embedding | Head::Classes | Head::TokenClasses => 0,
        };
        self.limits.reserve(&mut admission.memory, param, kept + bytes)?;
        let texts = texts.into_iter().map(|tokens| Text { tokens, head });
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
