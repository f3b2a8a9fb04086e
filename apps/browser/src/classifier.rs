//! The classifier, with answers in the form that a page shows.

use anyhow::{Result, ensure};
use candle_dynquant::{Isa, Layer, Visitor};
use dynquant_embed::{Direction, Encoder, Head, Input, Task, Tokens, TokensError, softmax};
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
    /// The number of tokens that the model was given.
    pub tokens: usize,
    /// Whether the end of the text was left out, because the model takes fewer tokens.
    pub cut: bool,
}

/// A class and its probability.
#[derive(Debug, Serialize)]
pub struct Class {
    /// The name of the class.
    pub label: String,
    /// The class's logit.
    pub logit: f32,
    /// The probability, from the softmax of the logits.
    pub probability: f32,
}

/// The model in memory.
#[derive(Debug, Serialize)]
pub struct ModelState {
    /// The instruction set that products run on.
    pub isa: String,
    /// The layers of the model.
    pub layers: Vec<LayerState>,
    /// The bytes of all weights as f32.
    pub float_bytes: usize,
    /// The bytes of all weights as stored, including scales and padding.
    pub bytes: usize,
}

/// A layer's weight in memory.
#[derive(Debug, Serialize)]
pub struct LayerState {
    /// The layer's path in the model.
    pub path: String,
    /// The kind of layer.
    pub kind: String,
    /// The shape, outputs first.
    pub shape: Vec<usize>,
    /// The format of the weight, `qint8` for example.
    pub dtype: String,
    /// The bytes as f32.
    pub float_bytes: usize,
    /// The bytes as stored.
    pub bytes: usize,
}

impl Classifier {
    /// Opens the classifier in the contents of a Hugging Face folder's files.
    ///
    /// # Errors
    /// When a file is malformed, does not fit the others, or the model has no classification head.
    pub fn open(config: &str, tokenizer: &[u8], weights: Vec<u8>) -> Result<Self> {
        let encoder = Encoder::from_bytes("model", config, tokenizer, weights)?;
        ensure!(encoder.model.is_classifier(), "model: expected a classification head, got none");
        Ok(Self { encoder })
    }

    /// The classes of a text, which is cut if it is too long.
    ///
    /// # Errors
    /// When the text has no tokens, or the model fails.
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
        let class = |((label, logit), probability)| Class { label, logit, probability };
        let mut classes: Vec<Class> = classes.map(class).collect();
        classes.sort_by(|a, b| b.logit.total_cmp(&a.logit));
        Ok(Classified { classes, tokens: tokens.len(), cut })
    }

    /// The logits of token ids, including special tokens, in the order of the labels.
    ///
    /// # Errors
    /// When there are too many ids or none, an id is not in the vocabulary, or the model fails.
    pub fn logits(&self, ids: &[u32]) -> Result<Vec<f32>> {
        self.answer(&self.encoder.tokenizer.encode(Input::Ids(ids), None)?)
    }

    fn answer(&self, tokens: &Tokens) -> Result<Vec<f32>> {
        let task = Task { tokens, head: Head::Classes };
        Ok(self.encoder.model.answer(&[task])?.concat())
    }

    /// The state of the model in memory.
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
            // Serde writes the enum as a word.
            let dtype = serde_json::to_value(weight.dtype).unwrap_or_default();
            self.0.push(LayerState {
                path: path.to_owned(),
                kind: layer.kind().to_string(),
                float_bytes: 4 * weight.shape.iter().product::<usize>(),
                dtype: dtype.as_str().unwrap_or_default().to_owned(),
                shape: weight.shape,
                bytes: weight.bytes,
            });
        }
        Ok(())
    }
}
