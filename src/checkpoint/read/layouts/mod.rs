//! Layouts of other libraries: their weights get the names that compressed-tensors gives them, so
//! that later steps know one layout.

mod bitsandbytes;
mod layout;
mod packed;
mod quanto;
mod qweight;
mod torchao;

use serde_json::Value;

use super::config::{METHOD, Quantization};
use super::files::{CONFIG, Files};
use crate::error::Result;
use layout::{Found, unsupported};

/// The weights in a layout; the value is the entry `quantization_config` of its library, or null. A
/// weight that lacks a tensor, or is more than codes with scales, is an error: fewer bits, another
/// layout, static activations.
type Find = fn(&Files, &Value) -> Result<Found>;

/// By the name of the library, which is `quant_method` in a `config.json`.
const LAYOUTS: [(&str, Find); 5] = [
    ("awq", qweight::find_awq),
    ("bitsandbytes", bitsandbytes::find),
    ("gptq", qweight::find_gptq),
    ("quanto", quanto::find),
    ("torchao", torchao::find),
];

/// Renames the tensors of all layouts but compressed-tensors' own.
///
/// # Errors
/// When `config.json` names a method that is none of these, or a weight is not one that is read.
pub fn translate(files: &mut Files, config: &mut Quantization) -> Result<()> {
    if let Some((method, _)) = &config.foreign
        && !LAYOUTS.iter().any(|(library, _)| library == method)
    {
        let libraries = LAYOUTS.iter().map(|(library, _)| *library);
        let known: Vec<_> = std::iter::once(METHOD).chain(libraries).collect();
        let error = unsupported("quant_method", &known.join(", "), "", method);
        let folder = files.folder.as_deref().unwrap_or(files.path());
        return Err(error.in_file(&folder.join(CONFIG)));
    }
    for (own, find) in LAYOUTS {
        let entry = match &config.foreign {
            Some((library, entry)) if library == own => entry,
            Some(_) => continue,
            None => &Value::Null,
        };
        let found = find(files, entry);
        let Found {
            weights,
            packed,
            settings,
            metadata,
        } = found.map_err(|e| e.in_file(files.path()))?;
        for weight in weights {
            let renamed = weight.rename(files);
            renamed.map_err(|e| e.in_file(files.path()))?;
            config.describe(&weight.name, weight.activation);
        }
        for (from, to, entry) in packed {
            let replaced = files.replace(&from, &to, entry);
            replaced.map_err(|e| e.in_file(files.path()))?;
        }
        settings.iter().for_each(|name| files.remove(name));
        metadata.iter().for_each(|key| files.forget(key));
    }
    packed::translate(files).map_err(|e| e.in_file(files.path()))
}
