//! The time of each stage of a model, by the spans that its layers are in the trace.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use candle_dynquant_support::bert::{Batch, Bert};
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Batches that are run in each model; if there are few, they are repeated.
const BATCHES: usize = 40;

/// A kind of layer at a place of the model, `*` for its numbers: its own time, without the
/// layers within it.
#[derive(Serialize)]
pub struct Stage {
    pub stage: String,
    /// Of the model with more of them, in a batch.
    pub calls: usize,
    pub float_ms: f64,
    pub quantized_ms: f64,
}

/// The stages of both models, those that take the quantized model longest first; the last one is
/// what candle computes between the layers.
pub fn stages(float: &Bert, quantized: &Bert, batches: &[Batch]) -> Result<Vec<Stage>> {
    let recorder = Recorder::default();
    tracing::subscriber::set_global_default(recorder.clone()).map_err(Error::msg)?;
    let mut stages = BTreeMap::<String, [(usize, Duration); 2]>::new();
    let mut between = [Duration::ZERO; 2];
    for batch in batches.iter().cycle().take(BATCHES) {
        for (side, model) in [float, quantized].into_iter().enumerate() {
            *recorder.times() = Times::default();
            let start = Instant::now();
            model.forward(batch)?;
            between[side] += start.elapsed();
            let times = std::mem::take(&mut *recorder.times());
            for (name, (calls, time)) in times.names.into_iter().zip(times.stages) {
                let stage = &mut stages.entry(name).or_default()[side];
                stage.0 += calls;
                stage.1 += time;
                between[side] -= time;
            }
        }
    }
    let stage = |stage, of_models: [(usize, Duration); 2]| {
        let [float_ms, quantized_ms] =
            of_models.map(|(_, time)| time.as_secs_f64() * 1e3 / BATCHES as f64);
        Stage {
            stage,
            calls: of_models[0].0.max(of_models[1].0) / BATCHES,
            float_ms,
            quantized_ms,
        }
    };
    let of_layers = stages.into_iter().map(|(name, both)| stage(name, both));
    let mut all: Vec<_> = of_layers.collect();
    all.sort_by(|a, b| b.quantized_ms.total_cmp(&a.quantized_ms));
    let between = between.map(|time| (BATCHES, time));
    all.push(stage("between the layers".to_owned(), between));
    Ok(all)
}

/// Adds up the time of the spans of layers.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Times>>);

#[derive(Default)]
struct Times {
    /// A span's id is the index of its stage, plus 1.
    names: Vec<String>,
    stages: Vec<(usize, Duration)>,
    /// The start of each span that is entered, and the time of those within it.
    open: Vec<(Instant, Duration)>,
}

impl Recorder {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stage: the kind of a layer, and its name with `*` for numbers.
struct Name(String);

impl Visit for Name {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "layer" {
            for part in value.split('.') {
                let number = part.bytes().all(|byte| byte.is_ascii_digit());
                let separator = if self.0.contains(' ') { '.' } else { ' ' };
                self.0.push(separator);
                self.0.push_str(if number { "*" } else { part });
            }
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "candle_dynquant::forward"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut name = Name(span.metadata().name().to_owned());
        span.record(&mut name);
        let mut times = self.times();
        let index = times.names.iter().position(|known| *known == name.0);
        let index = index.unwrap_or_else(|| {
            times.names.push(name.0);
            times.stages.push((0, Duration::ZERO));
            times.names.len() - 1
        });
        Id::from_u64(index as u64 + 1)
    }

    fn enter(&self, _: &Id) {
        self.times().open.push((Instant::now(), Duration::ZERO));
    }

    fn exit(&self, id: &Id) {
        let mut times = self.times();
        let Some((start, within)) = times.open.pop() else {
            return;
        };
        let whole = start.elapsed();
        if let Some((_, within)) = times.open.last_mut() {
            *within += whole;
        }
        if let Some((calls, time)) = times.stages.get_mut(id.into_u64() as usize - 1) {
            *calls += 1;
            *time += whole.saturating_sub(within);
        }
    }

    fn event(&self, _: &Event<'_>) {}
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
}
