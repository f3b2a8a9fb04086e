//! The metrics of `/metrics`.

use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::limits::Limits;

/// A route and the status of its answer.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Outcome {
    pub route: String,
    pub status: u16,
}

/// A route.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Route {
    pub route: String,
}

/// All counters, gauges and histograms.
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

/// The metrics of generated texts.
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

/// A histogram of times from 0.1 ms to 13 s.
fn times() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2., 18))
}

impl Metrics {
    /// All metrics at 0, except the taken places of `limits`.
    pub fn new(limits: &Limits) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("dynquant"),
            requests: Family::default(),
            latency: Family::new_with_constructor(times),
            wait: times(),
            batch_texts: Histogram::new(exponential_buckets(1., 2., 11)),
            batch_tokens: Histogram::new(exponential_buckets(4., 2., 12)),
            batch_time: times(),
            texts: Counter::default(),
            tokens: Counter::default(),
            generation: Generation::new(),
        };
        metrics.register(limits);
        metrics
    }

    /// The metrics of a server that generates texts.
    pub fn of_generation(limits: &Limits) -> Self {
        let mut metrics = Self::new(limits);
        metrics.generation.register(&mut metrics.registry);
        metrics
    }

    fn register(&mut self, limits: &Limits) {
        let all = &mut self.registry;
        let help = "Requests answered, by route and status";
        all.register("requests", help, self.requests.clone());
        let help = "From the head of a request to its answer";
        all.register_with_unit("request_duration", help, Unit::Seconds, self.latency.clone());
        let help = "Connections";
        all.register("connections", help, limits.connections.clone());
        let help = "Requests of the model, from their head to the last byte of their answer";
        all.register("requests_in_flight", help, limits.requests.clone());
        let help = "Bytes of large bodies and answers in memory";
        all.register("bytes_held", help, limits.bytes.clone());
        let help = "Texts that are tokenized, wait, or are computed";
        all.register("queue_length", help, limits.queue.clone());
        let help = "Time that texts waited for the model";
        all.register_with_unit("queue_duration", help, Unit::Seconds, self.wait.clone());
        let help = "Texts of a batch";
        all.register("batch_texts", help, self.batch_texts.clone());
        let help = "Tokens of a batch";
        all.register("batch_tokens", help, self.batch_tokens.clone());
        let help = "Time that the model took for a batch";
        all.register_with_unit("batch_duration", help, Unit::Seconds, self.batch_time.clone());
        let help = "Texts computed";
        all.register("texts", help, self.texts.clone());
        let help = "Tokens computed, special ones included";
        all.register("tokens", help, self.tokens.clone());
    }

    /// Counts an answered request.
    pub fn request(&self, route: &str, status: u16, start: Instant) {
        let route = route.to_owned();
        let time = start.elapsed().as_secs_f64();
        let of_route = Route { route: route.clone() };
        self.latency.get_or_create(&of_route).observe(time);
        let outcome = Outcome { route, status };
        self.requests.get_or_create(&outcome).inc();
    }

    /// Counts a batch of `tokens` tokens, computed from `start` on, and the waiting times of its
    /// texts.
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
        for waited in waited {
            self.wait.observe(waited.as_secs_f64());
        }
    }

    /// All metrics in the text format of OpenMetrics.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Generation {
    fn new() -> Self {
        Self {
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            tokens: Counter::default(),
            drafted_tokens: Counter::default(),
            accepted_tokens: Counter::default(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            cache_bytes: Gauge::default(),
            prefix_bytes: Gauge::default(),
            step_texts: Histogram::new(exponential_buckets(1., 2., 9)),
            step_time: times(),
            wait: times(),
        }
    }

    fn register(&self, all: &mut Registry) {
        let help = "Tokens of prompts read";
        all.register("prompt_tokens", help, self.prompt_tokens.clone());
        let help = "Tokens of prompts found in the cache, and not read";
        all.register("cached_prompt_tokens", help, self.cached_tokens.clone());
        let help = "Tokens generated";
        all.register("generated_tokens", help, self.tokens.clone());
        let help = "Tokens guessed and checked";
        all.register("drafted_tokens", help, self.drafted_tokens.clone());
        let help = "Tokens guessed rightly, among those generated";
        all.register("accepted_tokens", help, self.accepted_tokens.clone());
        let help = "Texts that are being generated";
        all.register("sequences_running", help, self.running.clone());
        let help =
            "Texts that wait for a place in the batch, or for room for their keys and values";
        all.register("sequences_waiting", help, self.waiting.clone());
        let help = "Bytes reserved for keys and values";
        all.register("cache_bytes", help, self.cache_bytes.clone());
        let help = "Bytes of keys and values of ended texts, for others that begin as these do";
        all.register("prefix_bytes", help, self.prefix_bytes.clone());
        let help = "Texts of a step";
        all.register("step_texts", help, self.step_texts.clone());
        let (unit, help) = (Unit::Seconds, "Time that the model took for a step");
        all.register_with_unit("step_duration", help, unit.clone(), self.step_time.clone());
        let help = "Time that texts waited for a place in the batch";
        all.register_with_unit("sequence_wait", help, unit, self.wait.clone());
    }

    /// Counts a text that joins the batch: the waiting time, and the tokens of the prompt that were
    /// found in the cache.
    pub fn joined(&self, since: Instant, cached: usize) {
        self.wait.observe(since.elapsed().as_secs_f64());
        self.cached_tokens.inc_by(cached as u64);
    }

    /// Sets the numbers of texts that are generated and that wait, the bytes of keys and values,
    /// and those of ended texts.
    pub fn now(&self, counts: [usize; 4]) {
        let bytes = [&self.cache_bytes, &self.prefix_bytes];
        let gauges = [&self.running, &self.waiting].into_iter().chain(bytes);
        for (gauge, count) in gauges.zip(counts) {
            gauge.set(count as i64);
        }
    }

    /// Counts a step of `texts` texts, with its tokens of prompts, and its written, guessed and
    /// rightly guessed tokens.
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
