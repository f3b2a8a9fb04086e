//! The evaluation of a model: one number, the larger the better.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use candle_dynquant_support::bert::measure::{class, sqnr_db};
use candle_dynquant_support::bert::texts::{self, Text};
use candle_dynquant_support::bert::{Batch, Bert, Folder};
use candle_dynquant_support::repository;

/// The unit of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// Share of right classes.
    Accuracy,
    /// Share of texts that get the class that the float model gives them.
    Agreement,
    /// The signal-to-noise ratio of all answers, in dB; the float model counts as [`FLOAT_DB`].
    Sqnr,
}

/// More than float16 has.
const FLOAT_DB: f64 = 100.;

impl Metric {
    /// The value of the float model, if it is the same for every model.
    pub fn of_float(self) -> Option<f64> {
        match self {
            Self::Accuracy => None,
            Self::Agreement => Some(1.),
            Self::Sqnr => Some(FLOAT_DB),
        }
    }

    /// The value that a tuned model must have, unless the command line says another.
    pub fn default_goal(self) -> f64 {
        match self {
            Self::Accuracy => 0.,
            Self::Agreement => 0.9995,
            Self::Sqnr => 46.,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accuracy => "accuracy",
            Self::Agreement => "agreement",
            Self::Sqnr => "sqnr",
        })
    }
}

impl FromStr for Metric {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        match word {
            "accuracy" => Ok(Self::Accuracy),
            "agreement" => Ok(Self::Agreement),
            "sqnr" => Ok(Self::Sqnr),
            _ => bail!("expected accuracy, agreement or sqnr"),
        }
    }
}

/// Texts in batches, and the float model's answers to them.
pub struct Evaluation {
    metric: Metric,
    texts: Vec<Text>,
    batches: Vec<Batch>,
    float: Vec<Vec<f32>>,
}

impl Evaluation {
    /// Reads the given texts, else the labelled texts beside a classifier, else example sentences.
    pub fn new(
        metric: Metric,
        folder: &Folder,
        given: Option<&Path>,
        batch: usize,
    ) -> Result<Self> {
        let labels: &[String] =
            if folder.model.is_classifier() { &folder.config.labels } else { &[] };
        let heldout = folder.path.join("heldout.tsv");
        let texts = match given {
            Some(path) => texts::read(path, labels, false)?,
            None if !labels.is_empty() && heldout.exists() => texts::read(&heldout, labels, true)?,
            None => {
                let sentences = repository().join("assets/reference/minilm_sentences.txt");
                texts::read(&sentences, &[], false)?
            }
        };
        ensure!(
            metric == Metric::Sqnr || !labels.is_empty(),
            "--metric {metric}: expected a classifier, got a model of embeddings; take sqnr"
        );
        ensure!(
            metric != Metric::Accuracy || texts.iter().any(|text| text.label.is_some()),
            "--metric accuracy: expected labelled texts; take agreement"
        );
        let strings: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
        let (tokenizer, config) = (&folder.tokenizer, &folder.config);
        let tokens = texts::tokenize(tokenizer, config, &strings, None)?;
        let batches = texts::batches(&tokens, batch, config.pad_token_id)?;
        let float = answers(&folder.model, &batches)?;
        Ok(Self { metric, texts, batches, float })
    }

    /// Texts to inspect a model on.
    pub fn sample(&self) -> Option<&Batch> {
        self.batches.first()
    }

    /// The value of a model.
    pub fn evaluate(&self, model: &Bert) -> Result<f64> {
        let answers = answers(model, &self.batches)?;
        let share = |right: Vec<bool>| {
            let count = right.iter().filter(|right| **right).count();
            count as f64 / right.len() as f64
        };
        Ok(match self.metric {
            Metric::Accuracy => {
                let labelled = self.texts.iter().zip(&answers);
                let right = labelled.filter_map(|(t, answer)| Some(class(answer).0 == t.label?));
                share(right.collect())
            }
            Metric::Agreement => {
                let pairs = self.float.iter().zip(&answers);
                share(pairs.map(|(a, b)| class(a).0 == class(b).0).collect())
            }
            Metric::Sqnr => sqnr_db(&self.float, &answers).min(FLOAT_DB),
        })
    }
}

fn answers(model: &Bert, batches: &[Batch]) -> Result<Vec<Vec<f32>>> {
    let mut answers = Vec::new();
    for batch in batches {
        answers.extend(model.forward(batch)?.to_vec2::<f32>()?);
    }
    Ok(answers)
}
