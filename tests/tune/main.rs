//! Accuracy-driven tuning: searches over toy models, whose losses are known, and over real layers.

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod history;
mod layers;
mod model;
mod search;
mod yaml;

use candle_dynquant::{QConfigSpec, TuningConfig};

/// The default configuration for layers of any size: toy models have small layers.
fn config() -> TuningConfig {
    TuningConfig::default().spec(QConfigSpec::int8().min_params(0))
}
