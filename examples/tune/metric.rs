//! The evaluation of a model: one number, the larger the better.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use candle_dynquant_support::bert::measure::{accuracy, agreement, answers, sqnr_db};
use candle_dynquant_support::bert::texts::Text;
use candle_dynquant_support::bert::{Batch, Bert, Folder};

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

const METRICS: [(&str, Metric); 3] =
    [("accuracy", Metric::Accuracy), ("agreement", Metric::Agreement), ("sqnr", Metric::Sqnr)];

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = METRICS.iter().find(|(_, metric)| metric == self).ok_or(fmt::Error)?;
        f.write_str(name)
    }
}

impl FromStr for Metric {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        let known = METRICS.iter().find(|(name, _)| *name == word);
        known.map(|(_, metric)| *metric).context("expected accuracy, agreement or sqnr")
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
        let texts = folder.texts(given)?;
        ensure!(
            metric == Metric::Sqnr || folder.model.is_classifier(),
            "--metric {metric}: expected a classifier, got a model of embeddings; take sqnr"
        );
        ensure!(
            metric != Metric::Accuracy || texts.iter().any(|text| text.label.is_some()),
            "--metric accuracy: expected labelled texts; take agreement"
        );
        let strings: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
        let batches = folder.batches(&strings, None, batch)?;
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
        Ok(match self.metric {
            Metric::Accuracy => accuracy(&self.texts, &answers).unwrap_or(f64::NAN),
            Metric::Agreement => agreement(&self.float, &answers).unwrap_or(f64::NAN),
            Metric::Sqnr => sqnr_db(&self.float, &answers).min(FLOAT_DB),
        })
    }
}
