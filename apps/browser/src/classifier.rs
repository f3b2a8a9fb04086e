//! The classifier, with answers as a page shows them.

use anyhow::{Result, ensure};
use candle_dynquant::Isa;
use candle_dynquant::{Layer, Visitor};
use dynquant_embed::{Direction, Encoder, Head, Input, Task, Tokens, TokensError};
use serde::Serialize;

/// A BERT with a classification head, and its tokenizer.
pub struct Classifier {
    encoder: Encoder,
}

/// The answer to a text.
#[derive(Debug, Serialize)]
pub struct Classified {
    /// All classes, the most probable first.
    pub classes: Vec<Class>,
    /// Tokens of the text that the model was given.
    pub tokens: usize,
    /// Whether the end of the text was left out, because there are more tokens than it takes.
    pub cut: bool,
}

/// A class and how likely it is.
#[derive(Debug, Serialize)]
pub struct Class {
    /// Its name.
    pub label: String,
    /// The model's number for it.
    pub logit: f32,
    /// The softmax of the logits.
    pub probability: f32,
}

/// The model as it is in memory.
#[derive(Debug, Serialize)]
pub struct ModelState {
    /// The instruction set that products run on.
    pub isa: String,
    /// Its layers.
    pub layers: Vec<LayerState>,
    /// Bytes of all weights as f32.
    pub float_bytes: usize,
    /// Bytes of all weights as they are, scales and padding included.
    pub bytes: usize,
}

/// A weight of a layer as it is in memory.
#[derive(Debug, Serialize)]
pub struct LayerState {
    /// The layer's path in the model.
    pub path: String,
    /// The kind of layer.
    pub kind: String,
    /// Its shape, outputs first.
    pub shape: Vec<usize>,
    /// How it is stored, `qint8` for example.
    pub dtype: String,
    /// Bytes as f32.
    pub float_bytes: usize,
    /// Bytes as it is.
    pub bytes: usize,
}

impl Classifier {
    /// The classifier that the files of a Hugging Face folder are, by their contents.
    ///
    /// # Errors
    /// When a file is malformed, does not fit the others, or the model has no classification head.
    pub fn open(config: &str, tokenizer: &[u8], weights: Vec<u8>) -> Result<Self> {
        let encoder = Encoder::from_bytes("model", config, tokenizer, weights)?;
        ensure!(
            encoder.model.is_classifier(),
            "model: expected a classification head, got none"
        );
        Ok(Self { encoder })
    }

    /// The classes of a text, which is cut if it is too long.
    ///
    /// # Errors
    /// When it has no tokens, or the model fails.
    pub fn classify(&self, text: &str) -> Result<Classified> {
        let tokenizer = &self.encoder.tokenizer;
        let (tokens, cut) = match tokenizer.encode(Input::Text(text), None) {
            Err(TokensError::TooLong { .. }) => {
                let cut = Some(Direction::Right);
                (tokenizer.encode(Input::Text(text), cut)?, true)
            }
            tokens => (tokens?, false),
        };
        let logits = self.answer(&tokens)?;
        let probabilities = softmax(&logits);
        let labels = self.encoder.config.labels.iter().cloned();
        let classes = labels.zip(logits).zip(probabilities);
        let mut classes: Vec<Class> = classes
            .map(|((label, logit), probability)| Class {
                label,
                logit,
                probability,
            })
            .collect();
        classes.sort_by(|a, b| b.logit.total_cmp(&a.logit));
        Ok(Classified {
            classes,
            tokens: tokens.len(),
            cut,
        })
    }

    /// The logits of token ids of this model, special ones included, in the order of its labels.
    ///
    /// # Errors
    /// When there are too many or none, one is not in the vocabulary, or the model fails.
    pub fn logits(&self, ids: &[u32]) -> Result<Vec<f32>> {
        self.answer(&self.encoder.tokenizer.encode(Input::Ids(ids), None)?)
    }

    fn answer(&self, tokens: &Tokens) -> Result<Vec<f32>> {
        let head = Head::Classes;
        let answers = self.encoder.model.answer(&[Task { tokens, head }])?;
        Ok(answers.concat())
    }

    /// The model as it is in memory.
    ///
    /// # Errors
    /// When `DYNQUANT_ISA` names no instruction set of this machine.
    pub fn state(&self) -> Result<ModelState> {
        let mut layers = Layers(Vec::new());
        self.encoder.model.walk(&mut layers)?;
        let layers = layers.0;
        let sum = |of: fn(&LayerState) -> usize| layers.iter().map(of).sum();
        Ok(ModelState {
            isa: Isa::active()?.to_string(),
            float_bytes: sum(|layer| layer.float_bytes),
            bytes: sum(|layer| layer.bytes),
            layers,
        })
    }
}

/// Describes each weight of each layer.
struct Layers(Vec<LayerState>);

impl Visitor for Layers {
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> candle_dynquant::Result<()> {
        for weight in layer.weight_infos() {
            let dtype = serde_json::to_value(weight.dtype);
            self.0.push(LayerState {
                path: path.to_owned(),
                kind: layer.kind().to_string(),
                float_bytes: 4 * weight.shape.iter().product::<usize>(),
                // The enum is a word.
                dtype: dtype.map_or_else(
                    |_| String::new(),
                    |word| word.as_str().unwrap_or_default().to_owned(),
                ),
                shape: weight.shape,
                bytes: weight.bytes,
            });
        }
        Ok(())
    }
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = exps.iter().sum();
    exps.iter().map(|exp| exp / sum).collect()
}
