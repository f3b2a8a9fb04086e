//! The classes of texts.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::batches::{Batches, Options, opened};
use crate::folder::Encoder;
use crate::functions::{sigmoid, softmax};
use crate::model::Head;
use crate::tokenizer::each;
use crate::tokens::{Direction, Input};

/// A model with a classification head.
///
/// ```
/// use dynquant_embed::Classifier;
///
/// let classifier = Classifier::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/bert"))?;
/// let classes = classifier.classify(&["Terminal text editor"])?;
/// assert_eq!(classes[0][0].0, "editors");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Classifier {
    batches: Batches,
    /// Whether a text may have several classes.
    is_multi_label: bool,
}

opened!(Classifier, batches, "");

impl Classifier {
    /// Opens a folder with options.
    ///
    /// # Errors
    /// Also when an option does not fit the model, or the model has no classification head.
    pub fn open_with(dir: impl AsRef<Path>, options: Options) -> Result<Self> {
        let batches = options.open(dir.as_ref())?;
        let Encoder { model, config, .. } = &batches.encoder;
        let got = if model.classifies_tokens() {
            "one of tokens: see TokenClassifier"
        } else {
            "a model without a head"
        };
        ensure!(
            model.is_classifier(),
            "{}: expected a classifier, got {got}",
            dir.as_ref().display(),
        );
        let problem = config.keys.word("problem_type")?;
        if problem.as_deref() == Some("regression") {
            let expected = "classes with probabilities: see Model::answer for other numbers";
            return Err(config.keys.fault("problem_type", expected));
        }
        let several = problem.as_deref() == Some("multi_label_classification");
        Ok(Self { is_multi_label: several || config.labels.len() == 1, batches })
    }

    /// All classes of each text with their probabilities, the most likely first. The probabilities
    /// sum to 1, unless a text may have several classes.
    ///
    /// # Errors
    /// When a text has no tokens, or the model fails.
    pub fn classify(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<(String, f32)>>> {
        let cut = Some(Direction::Right);
        let tokenizer = &self.encoder().tokenizer;
        let encode = |text: &_| tokenizer.encode(Input::Text(AsRef::as_ref(text)), cut);
        let tokens = each(texts, encode)?;
        let answers = self.batches.answer(&tokens, Head::Classes)?;
        Ok(answers.into_iter().map(|logits| self.classes(logits)).collect())
    }

    fn classes(&self, logits: Vec<f32>) -> Vec<(String, f32)> {
        let scores = if self.is_multi_label {
            logits.into_iter().map(sigmoid).collect()
        } else {
            softmax(&logits)
        };
        let labels = self.encoder().config.labels.iter().cloned();
        let mut classes: Vec<(String, f32)> = labels.zip(scores).collect();
        classes.sort_by(|a, b| b.1.total_cmp(&a.1));
        classes
    }
}
