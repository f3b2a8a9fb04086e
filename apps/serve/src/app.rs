//! The state that requests share, and what each needs of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use candle_dynquant_decoder::Texts;
use candle_dynquant_decoder::sampling::Sampling;
use dynquant_embed::{Config, Encoder, ImageEmbedder, Prompts, Tokenizer};
use tokio::sync::watch;

use crate::error::{Kind, Refusal};
use crate::generate::{GenerationJob, Grammars};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::queue::{Job, Queue, Text};

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
            return Self::Reranker;
        }
        if encoder.model.is_classifier() { Self::Classifier } else { Self::Embedder }
    }
}

impl Embedder {
    pub fn token_size(&self) -> usize {
        let Config { embedding_size, hidden_size, .. } = self.config;
        if self.config.is_multi_vector() { embedding_size } else { hidden_size }
    }

    pub fn prompt(&self, name: Option<&str>) -> Result<Before, Refusal> {
        let Some(name) = name else {
            return Ok(self.default_prompt.clone());
        };
        let prompt = self.prompts.named(name).map(|prompt| Before::new(prompt, Some(name)));
        prompt.map_err(|fault| Refusal::invalid("prompt_name", fault))
    }
}

/// A model from prompts to texts.
pub struct Generator {
    pub texts: Arc<Texts>,
    pub sampling: Sampling,
    /// The most tokens of a prompt and its text together.
    pub context: usize,
    pub vocabulary: usize,
    pub grammars: Arc<Grammars>,
    pub queue: Queue<GenerationJob>,
}

impl App {
    pub fn check_open(&self) -> Result<(), Refusal> {
        if *self.stopping.borrow() { Err(Refusal::shutting_down()) } else { Ok(()) }
    }

    /// The model, if it has embeddings.
    pub fn embedder(&self) -> Result<&Embedder, Refusal> {
        let message = match &self.served {
            Served::Embedder(embedder) => return Ok(embedder),
            Served::Generator(_) => "the model has no embeddings and classes: it generates texts",
            Served::Pictures(_) => "the model takes no texts: it has embeddings of pictures",
        };
        Err(Refusal::new(Kind::OtherModel, message))
    }

    /// The model of pictures, if there is one.
    pub fn pictures(&self) -> Result<&Pictures, Refusal> {
        let pictures = match &self.served {
            Served::Pictures(pictures) => Some(pictures),
            Served::Embedder(embedder) => embedder.pictures.as_ref(),
            Served::Generator(_) => None,
        };
        let message = "the model has no embeddings of pictures: it takes texts";
        pictures.ok_or_else(|| Refusal::new(Kind::OtherModel, message))
    }

    /// The model, if it generates texts.
    pub fn generator(&self) -> Result<&Generator, Refusal> {
        if let Served::Generator(generator) = &self.served {
            return Ok(generator);
        }
        let message = "the model generates no texts: it answers with embeddings";
        Err(Refusal::new(Kind::OtherModel, message))
    }

    pub fn check_model(&self, name: &str) -> Result<(), Refusal> {
        if self.names.iter().any(|known| known == name) {
            return Ok(());
        }
        let fault = format!("expected {}, got {name:?}", self.names.join(" or "));
        Err(Refusal::at(Kind::UnknownModel, "model", "model", fault))
    }
}

pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
