//! bitsandbytes' int8: `weight` I8 and `SCB`, the largest magnitude of each row, which is code 127.

use safetensors::Dtype;
use serde::Deserialize;
use serde_json::Value;

use super::super::files::Files;
use super::super::header::{Encoding, invalid};
use super::layout::{Found, WeightNames, module, of_module, tensor, unsupported};
use crate::error::Result;
use crate::qconfig::DynamicConfig;

const SCALES: &str = "SCB";
/// How the codes are ordered: 0 for rows, others as some GPUs multiply them.
const ORDER: &str = "weight_format";
const FORMAT: &str = "format of bitsandbytes";

#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    load_in_4bit: bool,
    /// Activations from this magnitude on are multiplied in float16; all are int8 if it is 0.
    llm_int8_threshold: Option<f64>,
}

pub fn find(files: &Files, config: &Value) -> Result<Found> {
    let config = Option::<Config>::deserialize(config);
    let config = config.map_err(|e| unsupported(FORMAT, "int8", "", &e.to_string()))?;
    let config = config.unwrap_or_default();
    if config.load_in_4bit {
        return Err(unsupported(FORMAT, "int8", "", "load_in_4bit"));
    }
    // Codes of all activations would round those that it keeps.
    let activation = (config.llm_int8_threshold == Some(0.)).then(DynamicConfig::default);
    let mut found = Found::default();
    for (name, _, entry) in files.tensors() {
        if name.contains(".quant_state.bitsandbytes__") {
            return Err(unsupported(FORMAT, "int8", name, "4-bit codes"));
        }
        let Some(module) = module(name, SCALES) else { continue };
        let weight = of_module(module, "weight");
        let codes = tensor(files, &weight)?;
        if codes.dtype != Dtype::I8 {
            return Err(invalid(&weight, format!("I8, beside {name:?}"), codes.dtype));
        }
        let rows = codes.shape.first().copied().unwrap_or_default();
        entry.check(name, Dtype::F32, &[rows], "")?;
        let order = of_module(module, ORDER);
        if let Some((shard, entry)) = files.find(&order) {
            // A number of one byte.
            let bytes = match entry.bytes {
                1 => shard.bytes(entry)?,
                _ => Vec::new(),
            };
            if bytes != [0] {
                let got = format!("{} {bytes:?}", entry.kind());
                return Err(invalid(&order, "0, for codes in the order of rows", got));
            }
            found.settings.push(order);
        }
        found.weights.push(WeightNames {
            name: weight.clone(),
            codes: weight,
            codes_as: Encoding::Plain,
            scales: name.to_owned(),
            scales_as: Encoding::Absmax,
            zero_points: None,
            activation,
        });
    }
    Ok(found)
}
