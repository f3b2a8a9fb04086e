//! Quantized models that other readers of the folder refuse.

use std::path::Path;

use candle_dynquant::QConfig;
use candle_dynquant::checkpoint::Plan;
use candle_dynquant_io::{input, json};
use serde::Deserialize;

/// The largest `config.json` that is read, equal to the library's limit.
const MAX_CONFIG: u64 = 4 << 20;

/// Models, by `model_type`, that transformers 5.24 fails to load quantized: it merges or renames
/// their weights and finds no scales. `scripts/check_transformers.py` loads them.
const UNREAD: [&str; 3] = ["dinov2", "mixtral", "qwen3_moe"];

#[derive(Deserialize)]
struct Config {
    model_type: String,
}

/// The note for a folder that transformers will not read, if int8 weights are planned.
pub fn note(folder: &Path, plan: &Plan) -> Option<String> {
    let mut planned = plan.layers().iter().filter_map(|layer| layer.qconfig.as_ref().ok());
    if !planned.any(|qconfig| !matches!(qconfig, QConfig::Half(_))) {
        return None;
    }
    let text = input::read(&folder.join("config.json"), MAX_CONFIG).ok()?;
    let config: Config = serde_json::from_slice(&json::strict(text)).ok()?;
    let name = UNREAD.iter().find(|name| config.model_type == **name)?;
    Some(format!(
        "transformers 5.24 reads no int8 of {name}, which is an error there; this crate does, and both read --preset float16"
    ))
}
