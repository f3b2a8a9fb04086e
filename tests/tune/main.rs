//! Accuracy-driven tuning: searches over toy models, whose losses are known, and over real layers.

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod history;
mod layers;
mod model;
mod search;
mod yaml;
