//! The figures of a run, as `--json` prints them.

use candle_dynquant::Report;
use serde::Serialize;

use crate::measure::{Run, class, cosines, percentile_ms, sqnr_db};
use crate::texts::Text;

/// The JSON object.
#[derive(Serialize)]
pub struct Figures {
    pub model: String,
    pub preset: String,
    /// Whether the embeddings are quantized too.
    pub embeddings: bool,
    /// Instruction set of the quantized layers.
    pub isa: String,
    pub threads: usize,
    pub float: Side,
    pub quantized: Side,
}

/// One of the two models.
#[derive(Serialize)]
pub struct Side {
    /// Share of right answers among the labelled texts; a classifier's, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    pub p50_ms: f64,
    pub p95_ms: f64,
    /// Of the layers that were swapped.
    pub weight_bytes: usize,
    /// Of the whole model.
    pub total_bytes: usize,
    #[serde(flatten)]
    pub against_float: Option<Distance>,
}

/// How far a model's answers are from the float model's.
#[derive(Serialize)]
pub struct Distance {
    /// `null` when the answers are equal to the last bit.
    pub sqnr_db: f64,
    pub cosine_mean: f64,
    pub cosine_min: f64,
    /// Share of texts that get the same class; a classifier's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
}

/// What the figures are taken from.
pub struct Measured<'a> {
    pub texts: &'a [Text],
    pub runs: &'a [Run; 2],
    pub report: &'a Report,
    pub float_bytes: usize,
    pub is_classifier: bool,
}

impl Figures {
    /// Draws up the figures.
    pub fn new(
        model: String,
        preset: String,
        embeddings: bool,
        threads: usize,
        measured: &Measured<'_>,
    ) -> Self {
        let report = measured.report;
        let (before, after) = (report.bytes_before(), report.bytes_after());
        let [float, _] = measured.runs;
        let total = measured.float_bytes;
        Self {
            model,
            preset,
            embeddings,
            isa: report.isa.clone(),
            threads,
            float: Side::new(measured, float, before, total, None),
            quantized: Side::new(
                measured,
                &measured.runs[1],
                after,
                total - before + after,
                Some(Distance::new(measured)),
            ),
        }
    }
}

impl Side {
    fn new(
        measured: &Measured<'_>,
        run: &Run,
        weight_bytes: usize,
        total_bytes: usize,
        against_float: Option<Distance>,
    ) -> Self {
        let right_or_wrong = || {
            let pairs = measured.texts.iter().zip(&run.answers);
            pairs.filter_map(|(text, answer)| Some(class(answer).0 == text.label?))
        };
        let is_labelled = measured.is_classifier && right_or_wrong().next().is_some();
        Self {
            accuracy: is_labelled.then(|| share(right_or_wrong())),
            p50_ms: percentile_ms(&run.times, 50),
            p95_ms: percentile_ms(&run.times, 95),
            weight_bytes,
            total_bytes,
            against_float,
        }
    }
}

impl Distance {
    fn new(measured: &Measured<'_>) -> Self {
        let [float, quantized] = measured.runs;
        let (cosine_mean, cosine_min) = cosines(&float.answers, &quantized.answers);
        let pairs = float.answers.iter().zip(&quantized.answers);
        let agreement = || share(pairs.map(|(a, b)| class(a).0 == class(b).0));
        Self {
            sqnr_db: sqnr_db(&float.answers, &quantized.answers),
            cosine_mean,
            cosine_min,
            agreement: measured.is_classifier.then(agreement),
        }
    }
}

/// The share of true ones.
fn share(answers: impl Iterator<Item = bool>) -> f64 {
    let (count, yes) = answers.fold((0, 0), |(count, yes), is| {
        (count + 1, yes + usize::from(is))
    });
    f64::from(yes as u32) / f64::from(count)
}
