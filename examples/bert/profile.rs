//! The time of each stage of both models.

use std::collections::BTreeSet;

use anyhow::Result;
use candle_dynquant_support::bert::{Batch, Bert};
use candle_dynquant_support::profile::{Profile, Recorder};
use serde::Serialize;

/// The number of batches run in each model; fewer batches are repeated.
const BATCHES: usize = 40;

/// A kind of layer at a place of the model, with `*` for numbers, and its time without nested
/// layers.
#[derive(Serialize)]
pub struct Stage {
    pub stage: String,
    /// The number of calls per batch, of the model with more calls.
    pub calls: usize,
    pub float_ms: f64,
    pub quantized_ms: f64,
}

/// The stages of both models, the slowest in the quantized model first; the last is candle's time
/// between the layers.
pub fn stages(float: &Bert, quantized: &Bert, batches: &[Batch]) -> Result<Vec<Stage>> {
    let recorder = Recorder::install()?;
    let mut profiles = [Profile::default(), Profile::default()];
    for batch in batches.iter().cycle().take(BATCHES) {
        for (profile, model) in profiles.iter_mut().zip([float, quantized]) {
            let (answers, times) = recorder.record(|| model.forward(batch));
            answers?;
            profile.add(times);
        }
    }
    let stage = |stage: &str, of_models: [(usize, f64); 2]| {
        let [(calls, float_ms), (others, quantized_ms)] = of_models;
        Stage { stage: stage.to_owned(), calls: calls.max(others), float_ms, quantized_ms }
    };
    let [(float, float_ms), (quantized, quantized_ms)] =
        profiles.each_ref().map(|profile| profile.means(BATCHES));
    let names: BTreeSet<&str> = float.keys().chain(quantized.keys()).copied().collect();
    let of_both = |name| [&float, &quantized].map(|of| of.get(name).copied().unwrap_or_default());
    let mut all: Vec<_> = names.into_iter().map(|name| stage(name, of_both(name))).collect();
    all.sort_by(|a, b| b.quantized_ms.total_cmp(&a.quantized_ms));
    all.push(stage("between the layers", [(1, float_ms), (1, quantized_ms)]));
    Ok(all)
}
