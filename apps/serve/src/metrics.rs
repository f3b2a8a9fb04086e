//! The metrics of `/metrics`.

use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::limits::Limits;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Route {
    route: String,
}

pub struct Metrics {
    registry: Registry,
    requests: Family<Outcome, Counter>,
    latency: Family<Route, Histogram>,
    wait: Histogram,
    batch_texts: Histogram,
    batch_tokens: Histogram,
    batch_time: Histogram,
    texts: Counter,
    tokens: Counter,
    pub generation: Generation,
}

pub struct Generation {
    prompt_tokens: Counter,
    cached_tokens: Counter,
    tokens: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
    running: Gauge,
    waiting: Gauge,
    cache_bytes: Gauge,
    prefix_bytes: Gauge,
    step_texts: Histogram,
    step_time: Histogram,
    wait: Histogram,
}

/// A registered counter, gauge or family of these.
fn new<M: Metric + Clone + Default>(all: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    all.register(name, help, metric.clone());
    metric
}

/// A registered histogram of sizes from `first` on, each bucket twice as large as the one before.
fn sizes(all: &mut Registry, name: &str, help: &str, first: f64, buckets: u16) -> Histogram {
    let metric = Histogram::new(exponential_buckets(first, 2., buckets));
    all.register(name, help, metric.clone());
    metric
}

fn times(all: &mut Registry, name: &str, help: &str) -> Histogram {
    let metric = seconds();
    all.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2., 18))
}

impl Metrics {
    /// All metrics at 0, except the taken places of `limits`; those of generated texts are listed
    /// only for a generator.
    pub fn new(limits: &Limits, is_generator: bool) -> Self {
        let [mut registry, mut unlisted] = [(); 2].map(|()| Registry::with_prefix("dynquant"));
        let all = &mut registry;
        let requests = new(all, "requests", "Requests answered, by route and status");
        let latency = Family::<Route, Histogram>::new_with_constructor(seconds);
        let help = "From the head of a request to its answer";
        all.register_with_unit("request_duration", help, Unit::Seconds, latency.clone());
        let in_flight = "Requests of the model, from their head to the last byte of their answer";
        for (name, help, places) in [
            ("connections", "Connections", &limits.connections),
            ("requests_in_flight", in_flight, &limits.requests),
            ("bytes_held", "Bytes of large bodies and answers in memory", &limits.bytes),
            ("queue_length", "Texts that are tokenized, wait, or are computed", &limits.queue),
        ] {
            all.register(name, help, places.clone());
        }
        Self {
            requests,
            latency,
            wait: times(all, "queue_duration", "Time that texts waited for the model"),
            batch_texts: sizes(all, "batch_texts", "Texts of a batch", 1., 11),
            batch_tokens: sizes(all, "batch_tokens", "Tokens of a batch", 4., 12),
            batch_time: times(all, "batch_duration", "Time that the model took for a batch"),
            texts: new(all, "texts", "Texts computed"),
            tokens: new(all, "tokens", "Tokens computed, special ones included"),
            generation: Generation::new(if is_generator { all } else { &mut unlisted }),
            registry,
        }
    }

    pub fn request(&self, route: &str, status: u16, start: Instant) {
        let route = route.to_owned();
        let time = start.elapsed().as_secs_f64();
        self.latency.get_or_create(&Route { route: route.clone() }).observe(time);
        self.requests.get_or_create(&Outcome { route, status }).inc();
    }

    /// Counts a batch, computed from `start` on, and the waiting times of its texts.
    pub fn batch(
        &self,
        start: Instant,
        tokens: usize,
        waited: impl ExactSizeIterator<Item = Duration>,
    ) {
        self.batch_time.observe(start.elapsed().as_secs_f64());
        self.batch_texts.observe(waited.len() as f64);
        self.batch_tokens.observe(tokens as f64);
        self.texts.inc_by(waited.len() as u64);
        self.tokens.inc_by(tokens as u64);
        waited.for_each(|waited| self.wait.observe(waited.as_secs_f64()));
    }

    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Generation {
    fn new(all: &mut Registry) -> Self {
        let cached = "Tokens of prompts found in the cache, and not read";
        let waits =
            "Texts that wait for a place in the batch, or for room for their keys and values";
        let prefixes = "Bytes of keys and values of ended texts, for others that begin as these do";
        let accepted = "Tokens guessed rightly, among those generated";
        Self {
            prompt_tokens: new(all, "prompt_tokens", "Tokens of prompts read"),
            cached_tokens: new(all, "cached_prompt_tokens", cached),
            tokens: new(all, "generated_tokens", "Tokens generated"),
            drafted_tokens: new(all, "drafted_tokens", "Tokens guessed and checked"),
            accepted_tokens: new(all, "accepted_tokens", accepted),
            running: new(all, "sequences_running", "Texts that are being generated"),
            waiting: new(all, "sequences_waiting", waits),
            cache_bytes: new(all, "cache_bytes", "Bytes reserved for keys and values"),
            prefix_bytes: new(all, "prefix_bytes", prefixes),
            step_texts: sizes(all, "step_texts", "Texts of a step", 1., 9),
            step_time: times(all, "step_duration", "Time that the model took for a step"),
            wait: times(all, "sequence_wait", "Time that texts waited for a place in the batch"),
        }
    }

    /// Counts a text that joins the batch, with the tokens of its prompt found in the cache.
    pub fn joined(&self, since: Instant, cached: usize) {
        self.wait.observe(since.elapsed().as_secs_f64());
        self.cached_tokens.inc_by(cached as u64);
    }

    /// Sets the texts that are generated and that wait, and the bytes of all and of ended texts.
    pub fn now(&self, counts: [usize; 4]) {
        let gauges = [&self.running, &self.waiting, &self.cache_bytes, &self.prefix_bytes];
        for (gauge, count) in gauges.into_iter().zip(counts) {
            gauge.set(count as i64);
        }
    }

    /// Counts a step, with its written, guessed and rightly guessed tokens.
    pub fn step(&self, start: Instant, texts: usize, prompt_tokens: usize, counts: [usize; 3]) {
        self.step_time.observe(start.elapsed().as_secs_f64());
        self.step_texts.observe(texts as f64);
        self.prompt_tokens.inc_by(prompt_tokens as u64);
        let counters = [&self.tokens, &self.drafted_tokens, &self.accepted_tokens];
        for (counter, count) in counters.into_iter().zip(counts) {
            counter.inc_by(count as u64);
        }
    }
}
