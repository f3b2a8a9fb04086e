//! The state that requests share, and what each needs of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::Request;
use candle_dynquant_decoder::Texts;
use candle_dynquant_decoder::sampling::Sampling;
use dynquant_embed::{Config, Encoder, ImageEmbedder, Prompts, Tokenizer};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::body;
use crate::error::Refusal;
use crate::generate::{GenerationJob, Grammars};
use crate::limits::{Admission, Limits};
use crate::metrics::Metrics;
use crate::queue::{Job, Queue, Text};

/// The state that requests share.
pub struct App {
    /// The names of the model; answers state the first.
    pub names: Vec<String>,
    /// The format of the weights.
    pub dtype: String,
    pub served: Served,
    pub limits: Limits,
    /// The time for a body to arrive.
    pub transfer: Duration,
    pub max_batch_tokens: usize,
    pub auto_truncate: bool,
    pub metrics: Arc<Metrics>,
    /// Whether the server accepts no new requests.
    pub stopping: watch::Receiver<bool>,
    /// The start of the server, in seconds since 1970.
    pub created: u64,
}

/// The task of the model, and the queue of its thread.
pub enum Served {
    Embedder(Box<Embedder>),
    /// A model that takes no texts.
    Pictures(Pictures),
    Generator(Generator),
}

/// A model from texts to embeddings and classes.
pub struct Embedder {
    pub config: Config,
    pub kind: ModelKind,
    pub prompts: Prompts,
    /// The prompt for requests that name none.
    pub default_prompt: Before,
    pub tokenizer: Arc<Tokenizer>,
    pub queue: Queue<Job<Text>>,
    /// The model of pictures in the same space.
    pub pictures: Option<Pictures>,
}

/// A model from pictures to embeddings.
pub struct Pictures {
    pub model: Arc<ImageEmbedder>,
    pub queue: Queue<Job<Vec<f32>>>,
}

/// The prompt before a text.
#[derive(Clone)]
pub struct Before {
    pub prompt: String,
    /// Whether the text is a query, which a model of late interaction encodes otherwise.
    pub is_query: bool,
}

impl Before {
    /// A prompt with its name, if it has one.
    pub fn new(prompt: &str, name: Option<&str>) -> Self {
        Self { prompt: prompt.to_owned(), is_query: name == Some("query") }
    }
}

/// The purpose of a model. Every such model also has embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    Embedder,
    Classifier,
    Reranker,
}

impl ModelKind {
    pub fn new(encoder: &Encoder) -> Self {
        if encoder.is_reranker() {
            Self::Reranker
        } else if encoder.model.is_classifier() {
            Self::Classifier
        } else {
            Self::Embedder
        }
    }
}

impl Embedder {
    /// The length of a token's vector.
    pub fn token_size(&self) -> usize {
        if self.config.is_multi_vector() {
            self.config.embedding_size
        } else {
            self.config.hidden_size
        }
    }

    /// The prompt of a request, which may name one.
    pub fn prompt(&self, name: Option<&str>) -> Result<Before, Refusal> {
        let Some(name) = name else {
            return Ok(self.default_prompt.clone());
        };
        let prompt = self.prompts.named(name);
        let prompt = prompt.map(|prompt| Before::new(prompt, Some(name)));
        prompt.map_err(|e| Refusal::invalid("prompt_name", format!("prompt_name: {e}")))
    }
}

/// A model from prompts to texts.
pub struct Generator {
    pub texts: Arc<Texts>,
    /// The default sampling.
    pub sampling: Sampling,
    /// The most tokens of a prompt and its text together.
    pub context: usize,
    pub vocabulary: usize,
    pub grammars: Arc<Grammars>,
    pub queue: Queue<GenerationJob>,
}

impl App {
    /// Checks that the model accepts requests.
    pub fn check_open(&self) -> Result<(), Refusal> {
        if *self.stopping.borrow() { Err(Refusal::shutting_down()) } else { Ok(()) }
    }

    /// The model, if it has embeddings.
    pub fn embedder(&self) -> Result<&Embedder, Refusal> {
        match &self.served {
            Served::Embedder(embedder) => Ok(embedder),
            Served::Generator(_) => Err(Refusal::other_model(
                "the model has no embeddings and classes: it generates texts",
            )),
            Served::Pictures(_) => {
                Err(Refusal::other_model("the model takes no texts: it has embeddings of pictures"))
            }
        }
    }

    /// The model of pictures, if there is one.
    pub fn pictures(&self) -> Result<&Pictures, Refusal> {
        let pictures = match &self.served {
            Served::Pictures(pictures) => Some(pictures),
            Served::Embedder(embedder) => embedder.pictures.as_ref(),
            Served::Generator(_) => None,
        };
        pictures.ok_or_else(|| {
            Refusal::other_model("the model has no embeddings of pictures: it takes texts")
        })
    }

    /// The model, if it generates texts.
    pub fn generator(&self) -> Result<&Generator, Refusal> {
        match &self.served {
            Served::Generator(generator) => Ok(generator),
            Served::Embedder(_) | Served::Pictures(_) => Err(Refusal::other_model(
                "the model generates no texts: it answers with embeddings",
            )),
        }
    }

    /// Checks the model's name in a request.
    pub fn check_model(&self, name: &str) -> Result<(), Refusal> {
        if self.names.iter().any(|known| known == name) {
            Ok(())
        } else {
            Err(Refusal::unknown_model(&self.names, name))
        }
    }

    /// The model's name in answers.
    pub fn stated_name(&self) -> String {
        self.names.first().cloned().unwrap_or_default()
    }

    /// Admits a request, and parses its JSON body.
    pub async fn receive<T: DeserializeOwned + Send + 'static>(
        &self,
        request: Request,
    ) -> Result<(T, Admission), Refusal> {
        body::json(request, &self.limits, self.transfer, self.stopping.clone()).await
    }
}

/// The seconds since 1970.
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
