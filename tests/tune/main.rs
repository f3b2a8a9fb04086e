//! Accuracy-driven tuning: searches over toy models, whose losses are known, and over real layers.

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod history;
#[path = "../common/kit.rs"]
mod kit;
mod layers;
mod model;
mod search;
mod yaml;

use crate::kit::*;

/// The default configuration for layers of any size: toy models have small layers.
fn config() -> TuningConfig {
    TuningConfig::default().spec(all_int8())
}
