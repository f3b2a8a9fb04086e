//! The part of `run.sh` for text-embeddings-inference, matching `texts.rs`: its candle backend on
//! the CPU, called as by its router, without the router.

use std::io::stdin;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use text_embeddings_backend_candle::CandleBackend;
use text_embeddings_backend_core::{Backend, Batch, Embedding, ModelType, Pool};
use tokenizers::{EncodeInput, Encoding, Tokenizer};

#[derive(Deserialize)]
struct Request {
    query: Option<String>,
    texts: Vec<String>,
    calls: usize,
}

struct Model {
    tokenizer: Tokenizer,
    backend: CandleBackend,
}

impl Model {
    fn open(folder: &str, kind: ModelType) -> Result<Self> {
        let path = Path::new(folder).join("tokenizer.json");
        let mut tokenizer = Tokenizer::from_file(path).map_err(|e| anyhow!("{folder}: {e}"))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| anyhow!("{folder}: {e}"))?;
        let backend = CandleBackend::new(Path::new(folder), "float32".into(), kind, None)?;
        Ok(Self { tokenizer, backend })
    }

    /// The batches of its queue: on a CPU, the backend limits the number of texts.
    fn batches(&self, inputs: Vec<EncodeInput<'_>>) -> Result<Vec<Batch>> {
        let encodings = self.tokenizer.encode_batch(inputs, true).map_err(|e| anyhow!("{e}"))?;
        let most = self.backend.max_batch_size().unwrap_or(encodings.len()).max(1);
        Ok(encodings.chunks(most).map(batch).collect())
    }

    fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in self.batches(texts.iter().map(|text| text.as_str().into()).collect())? {
            let count = batch.len();
            let mut answers = self.backend.embed(batch)?;
            for index in 0..count {
                match answers.remove(&index) {
                    Some(Embedding::Pooled(vector)) => vectors.push(normalized(vector)),
                    _ => bail!("expected a pooled vector"),
                }
            }
        }
        Ok(vectors)
    }

    fn scores(&self, query: &str, texts: &[String]) -> Result<Vec<f32>> {
        let pairs = texts.iter().map(|text| (query, text.as_str()).into());
        let mut scores = Vec::with_capacity(texts.len());
        for batch in self.batches(pairs.collect())? {
            let count = batch.len();
            let mut answers = self.backend.predict(batch)?;
            for index in 0..count {
                let logits = answers.remove(&index).context("expected logits")?;
                scores.push(*logits.first().context("expected a logit")?);
            }
        }
        Ok(scores)
    }
}

fn batch(encodings: &[Encoding]) -> Batch {
    let mut batch = Batch {
        input_ids: Vec::new(),
        token_type_ids: Vec::new(),
        position_ids: Vec::new(),
        cumulative_seq_lengths: vec![0],
        max_length: 0,
        pooled_indices: (0..encodings.len() as u32).collect(),
        raw_indices: Vec::new(),
    };
    for encoding in encodings {
        let length = encoding.len() as u32;
        batch.input_ids.extend(encoding.get_ids());
        batch.token_type_ids.extend(encoding.get_type_ids());
        batch.position_ids.extend(0..length);
        batch.cumulative_seq_lengths.push(batch.input_ids.len() as u32);
        batch.max_length = batch.max_length.max(length);
    }
    batch
}

fn normalized(vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.into_iter().map(|x| x / length).collect()
}

fn main() -> Result<()> {
    let mut folders = std::env::args().skip(1);
    let mut folder = || folders.next().context("expected the folders of two models");
    let embedder = Model::open(&folder()?, ModelType::Embedding(Pool::Mean))?;
    let reranker = Model::open(&folder()?, ModelType::Classifier)?;
    for line in stdin().lines() {
        let request: Request = serde_json::from_str(&line?).context("a request")?;
        let mut fastest = f64::INFINITY;
        let mut answer = serde_json::Value::Null;
        for _ in 0..request.calls {
            let start = Instant::now();
            let (vectors, scores) = match &request.query {
                None => (embedder.embed(&request.texts)?, Vec::new()),
                Some(query) => (Vec::new(), reranker.scores(query, &request.texts)?),
            };
            fastest = fastest.min(start.elapsed().as_secs_f64());
            answer = serde_json::json!({"vectors": vectors, "scores": scores});
        }
        answer["seconds"] = fastest.into();
        println!("{answer}");
    }
    Ok(())
}
