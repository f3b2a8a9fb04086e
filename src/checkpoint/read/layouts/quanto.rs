//! optimum-quanto's qint8: `weight._data` I8 and `weight._scale`. Activations are float, or have
//! static scales, which are not read.

use safetensors::Dtype;
use serde_json::Value;

use super::super::files::Files;
use super::super::header::{Encoding, invalid};
use super::layout::{Found, WeightNames, of_module, tensor, unsupported};
use crate::error::Result;

const CODES: &str = "._data";
const PACKED: &str = "._data._data";
const SCALES: &str = "._scale";
const FORMAT: &str = "format of quanto";

pub fn find(files: &Files, config: &Value) -> Result<Found> {
    for (key, expected) in [("weights", "int8"), ("activations", "none")] {
        match &config[key] {
            Value::Null => {}
            Value::String(got) if got == expected => {}
            got => return Err(unsupported(FORMAT, expected, "", &got.to_string())),
        }
    }
    let mut found = Found::default();
    let refused = |weight: &str, got: &str| Err(unsupported(FORMAT, "qint8", weight, got));
    for (name, _, entry) in files.tensors() {
        let has = |weight: &str, end: &str| files.find(&format!("{weight}{end}")).is_some();
        if let Some(weight) = name.strip_suffix(SCALES)
            && weight.ends_with("weight")
            && !(has(weight, CODES) || has(weight, PACKED))
        {
            return Err(invalid(weight, format!("codes, beside {name:?}"), "no such tensor"));
        }
        if let Some(weight) = name.strip_suffix(PACKED) {
            return refused(weight, "codes of fewer bits, packed");
        }
        let Some(weight) = name.strip_suffix(CODES) else { continue };
        let scales = format!("{weight}{SCALES}");
        if entry.dtype != Dtype::I8 {
            if !has(weight, SCALES) {
                // Another tensor of that name.
                continue;
            }
            return refused(weight, &entry.dtype.to_string());
        }
        tensor(files, &scales)?;
        if has(weight, "._shift") {
            return refused(weight, "a shift");
        }
        let module = weight.strip_suffix("weight").unwrap_or(weight);
        activations(files, module.trim_end_matches('.'), &mut found.settings)?;
        found.weights.push(WeightNames {
            name: weight.to_owned(),
            codes: name.to_owned(),
            codes_as: Encoding::Plain,
            scales,
            scales_as: Encoding::Plain,
            zero_points: None,
            activation: None,
        });
    }
    Ok(found)
}

/// Checks that the activations of a module are float: then their scales are 1.
fn activations(files: &Files, module: &str, settings: &mut Vec<String>) -> Result<()> {
    for last in ["input_scale", "output_scale"] {
        let name = of_module(module, last);
        let Some((shard, entry)) = files.find(&name) else { continue };
        let is_one = entry.is_float() && entry.shape.iter().all(|size| *size == 1);
        let values = if is_one { shard.floats(&name, entry, 0..1)? } else { Vec::new() };
        if values != [1.] {
            let got = format!("{} {values:?}, a static scale", entry.kind());
            return Err(invalid(&name, "1, for float activations", got));
        }
        settings.push(name);
    }
    Ok(())
}
