//! Runs both models on the same batches, and compares their answers.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_dynquant_decoder::sampling::highest;

use super::model::{Batch, Bert};
use super::texts::Text;

/// The number of batches that run before times are taken.
const WARM_UP: usize = 3;

/// The answers and times of one model.
#[derive(Default)]
pub struct Run {
    /// The model's answer to every text: logits or an embedding.
    pub answers: Vec<Vec<f32>>,
    /// The time of each batch.
    pub times: Vec<Duration>,
}

/// Runs `float` and `quantized` alternately, batch by batch, so that other load on the machine
/// affects both. Repeats the batches if there are fewer than `timings`. Calls `tick` after every
/// batch, with the total number of batches.
pub fn side_by_side(
    float: &Bert,
    quantized: &Bert,
    batches: &[Batch],
    timings: usize,
    mut tick: impl FnMut(usize),
) -> Result<[Run; 2]> {
    for batch in batches.iter().cycle().take(WARM_UP) {
        float.forward(batch)?;
        quantized.forward(batch)?;
    }
    let mut runs = [Run::default(), Run::default()];
    let rounds = timings.div_ceil(batches.len().max(1));
    let total = rounds * batches.len();
    for count in 0..total {
        let batch = &batches[count % batches.len()];
        // The second model finds its input in the cache, so the models take turns in going first.
        let order = if count % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let start = Instant::now();
            let answers = [float, quantized][side].forward(batch)?;
            runs[side].times.push(start.elapsed());
            if count < batches.len() {
                runs[side].answers.extend(answers.to_vec2::<f32>()?);
            }
        }
        tick(total);
    }
    Ok(runs)
}

/// The model's answers to all texts of the batches.
pub fn answers(model: &Bert, batches: &[Batch]) -> Result<Vec<Vec<f32>>> {
    let mut answers = Vec::new();
    for batch in batches {
        answers.extend(model.forward(batch)?.to_vec2::<f32>()?);
    }
    Ok(answers)
}

/// The share of right classes among labelled texts, if there are any.
pub fn accuracy(texts: &[Text], answers: &[Vec<f32>]) -> Option<f64> {
    let labelled = texts.iter().zip(answers);
    share(labelled.filter_map(|(text, answer)| Some(class(answer).0 == text.label?)))
}

/// The share of texts that get the same class.
pub fn agreement(a: &[Vec<f32>], b: &[Vec<f32>]) -> Option<f64> {
    share(a.iter().zip(b).map(|(a, b)| class(a).0 == class(b).0))
}

fn share(all: impl Iterator<Item = bool>) -> Option<f64> {
    let (count, yes) = all.fold((0, 0), |(count, yes), is| (count + 1, yes + usize::from(is)));
    (count > 0).then(|| yes as f64 / f64::from(count))
}

/// The `percent` percentile in milliseconds, by nearest rank.
pub fn percentile_ms(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(f64::NAN, |t| t.as_secs_f64() * 1e3)
}

/// The signal-to-quantization-noise ratio,
/// `10 log10(sum |reference|^2 / sum |reference - other|^2)`.
pub fn sqnr_db(reference: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    let (mut signal, mut noise) = (0., 0.);
    for (a, b) in reference.iter().flatten().zip(other.iter().flatten()) {
        let (a, b) = (f64::from(*a), f64::from(*b));
        signal += a * a;
        noise += (a - b) * (a - b);
    }
    10. * (signal / noise).log10()
}

/// The cosine of two answers.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The mean and the minimum of the cosines, text by text.
pub fn cosines(reference: &[Vec<f32>], other: &[Vec<f32>]) -> (f64, f64) {
    let pairs = reference.iter().zip(other);
    let each: Vec<f64> = pairs.map(|(a, b)| cosine(a, b)).collect();
    let mean = each.iter().sum::<f64>() / each.len() as f64;
    (mean, each.into_iter().fold(f64::INFINITY, f64::min))
}

/// The class with the largest logit, and its probability.
pub fn class(logits: &[f32]) -> (usize, f64) {
    let best = highest(logits);
    let sum: f64 = logits.iter().map(|l| f64::from(l - logits[best]).exp()).sum();
    (best, 1. / sum)
}

/// The answer most similar to the answer `index`, and its cosine.
pub fn nearest(answers: &[Vec<f32>], index: usize) -> Option<(usize, f64)> {
    let others = (0..answers.len()).filter(|other| *other != index);
    others
        .map(|other| (other, cosine(&answers[index], &answers[other])))
        .max_by(|a, b| a.1.total_cmp(&b.1))
}
