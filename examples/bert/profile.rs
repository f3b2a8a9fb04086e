//! The time of each stage of both models.

use std::collections::BTreeSet;
use std::time::Duration;

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
    let stage = |stage: &str, of_models: [(usize, Duration); 2]| {
        let [float_ms, quantized_ms] =
            of_models.map(|(_, time)| time.as_secs_f64() * 1e3 / BATCHES as f64);
        Stage {
            stage: stage.to_owned(),
            calls: of_models[0].0.max(of_models[1].0) / BATCHES,
            float_ms,
            quantized_ms,
        }
    };
    let names: BTreeSet<&String> = profiles.iter().flat_map(|of| of.stages.keys()).collect();
    let of_both = |name: &String| {
        let of_models = profiles.each_ref().map(|of| of.stages.get(name));
        stage(name, of_models.map(|times| times.copied().unwrap_or_default()))
    };
    let mut all: Vec<_> = names.into_iter().map(of_both).collect();
    all.sort_by(|a, b| b.quantized_ms.total_cmp(&a.quantized_ms));
    let between = profiles.each_ref().map(|profile| (BATCHES, profile.between()));
    all.push(stage("between the layers", between));
    Ok(all)
}
