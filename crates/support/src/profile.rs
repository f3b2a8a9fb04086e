//! The time of a model by layers and operations, without the time of nested stages, from the spans
//! of a trace.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

/// The target of the spans.
const TARGET: &str = "candle_dynquant::forward";

/// The times of one or more calls.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub whole: Duration,
    /// The number of calls and the time of each stage, without nested stages. A stage is a kind of
    /// layer at a place of the model, with `*` for numbers, or an operation.
    pub stages: BTreeMap<String, (usize, Duration)>,
}

impl Profile {
    pub fn add(&mut self, other: Self) {
        self.whole += other.whole;
        for (name, (calls, time)) in other.stages {
            let stage = self.stages.entry(name).or_default();
            stage.0 += calls;
            stage.1 += time;
        }
    }

    /// The stages by name, with calls and milliseconds of one of `count` calls, and candle's time
    /// outside all of them.
    pub fn means(&self, count: usize) -> (BTreeMap<&str, (usize, f64)>, f64) {
        let count = count.max(1);
        let ms = |time: Duration| time.as_secs_f64() * 1e3 / count as f64;
        let stages = self.stages.iter();
        let stages = stages.map(|(name, (calls, time))| (&**name, (calls / count, ms(*time))));
        let within = self.stages.values().map(|(_, time)| *time).sum();
        (stages.collect(), ms(self.whole.saturating_sub(within)))
    }
}

/// Adds up the time of spans while recording.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Times>>);

#[derive(Default)]
struct Times {
    is_recording: bool,
    /// The names of stages; a span's id is its stage's index, plus 1.
    names: Vec<String>,
    stages: Vec<(usize, Duration)>,
    /// The start of each open span, and the time of the spans within it.
    open: Vec<(Instant, Duration)>,
    /// The name of the span that begins.
    name: String,
}

impl Recorder {
    /// Installs a recorder of this process's spans.
    ///
    /// # Errors
    /// When the process already has a subscriber.
    pub fn install() -> Result<Self> {
        let recorder = Self::default();
        tracing::subscriber::set_global_default(recorder.clone()).map_err(Error::msg)?;
        Ok(recorder)
    }

    /// Calls a function and records its spans on the calling thread.
    pub fn record<R>(&self, run: impl FnOnce() -> R) -> (R, Profile) {
        *self.times() = Times { is_recording: true, ..Times::default() };
        let start = Instant::now();
        let result = run();
        let whole = start.elapsed();
        let times = std::mem::take(&mut *self.times());
        let stages = times.names.into_iter().zip(times.stages).collect();
        (result, Profile { whole, stages })
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of a stage: the kind of a layer, and its name with `*` for numbers.
struct Name<'a>(&'a mut String);

impl Visit for Name<'_> {
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
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.target() == TARGET { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET && self.times().is_recording
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let times = &mut *self.times();
        times.name.clear();
        times.name.push_str(span.metadata().name());
        span.record(&mut Name(&mut times.name));
        let index = times.names.iter().position(|known| *known == times.name);
        let index = index.unwrap_or_else(|| {
            times.names.push(times.name.clone());
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
