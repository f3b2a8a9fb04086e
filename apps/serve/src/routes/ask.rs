//! From the texts of a request to their tokens, and from these to the answers of the model.

use std::sync::Arc;

use axum::response::Response;
use dynquant_embed::{Head, Tokens};
use serde::Serialize;

use super::App;
use super::inputs::Asked;
use crate::body;
use crate::error::Refusal;
use crate::limits::Admission;
use crate::places::Permit;

/// Bytes of a number in an answer: its four, and its characters in JSON, at most.
const NUMBER: usize = 4 + 16;

/// The model's answer to a request.
pub struct Answered {
    /// One for each text.
    pub vectors: Vec<Vec<f32>>,
    /// Number of tokens of all texts.
    pub tokens: usize,
    /// Bytes that were reserved for the answer, where it grows with the tokens.
    pub bytes: usize,
    pub admission: Admission,
}

impl App {
    /// Tokenizes texts and asks the model.
    pub async fn ask(
        &self,
        admission: Admission,
        head: Head,
        asked: Asked<Vec<Tokens>>,
    ) -> Result<Answered, Refusal> {
        let (param, kept) = (asked.param, asked.kept);
        let (texts, places, mut admission) = self.tokenized(admission, asked).await?;
        let embedder = self.embedder()?;
        let tokens = texts.iter().map(Tokens::len).sum();
        let bytes = match head {
            Head::TokenEmbeddings => tokens * embedder.config.hidden_size * NUMBER,
            Head::Embedding | Head::Classes => 0,
        };
        self.limits
            .reserve(&mut admission.memory, param, kept + bytes)?;
        let vectors = embedder.queue.answer(places, head, texts).await?;
        Ok(Answered {
            vectors,
            tokens,
            bytes,
            admission,
        })
    }

    /// Answers with what the tokenizer makes of each text, which takes about `size` bytes.
    pub async fn convert<T: Serialize + Send + 'static>(
        &self,
        admission: Admission,
        asked: Asked<Vec<T>>,
        size: impl Fn(&T) -> usize,
    ) -> Result<Response, Refusal> {
        let param = asked.param;
        let (made, _places, mut admission) = self.tokenized(admission, asked).await?;
        let bytes = made.iter().map(size).sum();
        self.limits.reserve(&mut admission.memory, param, bytes)?;
        let answer = move |_: &_| body::answer(admission, &made);
        self.limits.workers.run(bytes, answer).await?
    }

    /// Does the work of the tokenizer, with places in the queue.
    async fn tokenized<T: Send + 'static>(
        &self,
        admission: Admission,
        asked: Asked<T>,
    ) -> Result<(T, Permit, Admission), Refusal> {
        self.check_open()?;
        self.limits.check_texts(asked.param, asked.count)?;
        let embedder = self.embedder()?;
        let places = embedder.queue.reserve(asked.count)?;
        let tokenizer = Arc::clone(&embedder.tokenizer);
        let Admission {
            request,
            mut memory,
        } = admission;
        memory.at_least(asked.bytes)?;
        let work = move |client: &_| ((asked.work)(&tokenizer, client), places, memory);
        let (done, places, memory) = self.limits.workers.run(asked.bytes, work).await?;
        Ok((done?, places, Admission { request, memory }))
    }
}
