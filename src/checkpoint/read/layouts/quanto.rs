//! optimum-quanto's qint8: `weight._data` I8 and `weight._scale`. Activations are float, or have
//! static scales, which are not read.

use safetensors::Dtype;
use serde_json::Value;

use super::super::files::Files;
use super::super::header::invalid;
use super::super::shard::is_float;
use super::layout::{Found, Layout, Weight, of_module, tensor, unsupported};
use crate::error::Result;

pub struct Quanto;

const CODES: &str = "._data";
const SCALES: &str = "._scale";
const FORMAT: &str = "format of quanto";

impl Layout for Quanto {
    fn name(&self) -> &'static str {
        "quanto"
    }

    fn find(&self, files: &Files, config: &Value) -> Result<Found> {
        for (key, expected) in [("weights", "int8"), ("activations", "none")] {
            match &config[key] {
                Value::Null => {}
                Value::String(got) if got == expected => {}
                got => return Err(unsupported(FORMAT, expected, "", &got.to_string())),
            }
        }
        let mut found = Found::default();
        for (name, _, entry) in files.tensors() {
            if let Some(weight) = name.strip_suffix(SCALES)
                && weight.ends_with("weight")
                && !["", CODES]
                    .map(|own| format!("{weight}{CODES}{own}"))
                    .iter()
                    .any(|own| files.find(own).is_some())
            {
                return Err(invalid(
                    weight,
                    format!("codes, beside {name:?}"),
                    "no such tensor",
                ));
            }
            let Some(weight) = name.strip_suffix(CODES) else {
                continue;
            };
            if let Some(weight) = weight.strip_suffix(CODES) {
                return Err(unsupported(
                    FORMAT,
                    "qint8",
                    weight,
                    "codes of fewer bits, packed",
                ));
            }
            let scales = format!("{weight}{SCALES}");
            if entry.dtype != Dtype::I8 {
                if files.find(&scales).is_none() {
                    // Another tensor of that name.
                    continue;
                }
                return Err(unsupported(
                    FORMAT,
                    "qint8",
                    weight,
                    &entry.dtype.to_string(),
                ));
            }
            tensor(files, &scales)?;
            if files.find(&format!("{weight}._shift")).is_some() {
                return Err(unsupported(FORMAT, "qint8", weight, "a shift"));
            }
            let module = weight.strip_suffix("weight").unwrap_or(weight);
            activations(files, module.trim_end_matches('.'), &mut found.settings)?;
            found.weights.push(Weight {
                name: weight.to_owned(),
                codes: name.to_owned(),
                scales,
                zero_points: None,
                absmax: false,
                activation: None,
            });
        }
        Ok(found)
    }
}

/// Checks that the activations of a module are float: then their scales are 1.
fn activations(files: &Files, module: &str, settings: &mut Vec<String>) -> Result<()> {
    for last in ["input_scale", "output_scale"] {
        let name = of_module(module, last);
        let Some((shard, entry)) = files.find(&name) else {
            continue;
        };
        let is_one = is_float(entry.dtype) && entry.shape.iter().all(|size| *size == 1);
        let values = if is_one {
            shard.floats(&name, entry, 0..1)?
        } else {
            Vec::new()
        };
        if values != [1.] {
            let got = format!(
                "{} {:?} {values:?}, a static scale",
                entry.dtype, entry.shape
            );
            return Err(invalid(&name, "1, for float activations", got));
        }
        settings.push(name);
    }
    Ok(())
}
