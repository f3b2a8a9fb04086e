//! Layouts of other libraries: their weights get the names that compressed-tensors gives them, so
//! that later steps know one layout.

mod bitsandbytes;

mod layout;
mod packed;
mod quanto;
mod qweight;
mod torchao;

use std::path::PathBuf;

use candle_dynquant_io::keys::Table;
use safetensors::Dtype;
use serde_json::Value;

use super::config::{METHOD, Quantization};
use super::files::{CONFIG, Files};
use super::keys;
use crate::error::Result;
use crate::words::brief;
use layout::{Found, module, of_module, unsupported};

/// The weights in a layout; the value is the entry `quantization_config` of its library, or null. A
/// weight that lacks a tensor, or is more than codes with scales, is an error: fewer bits, another
/// layout, static activations.
type Find = fn(&Files, &Value) -> Result<Found>;

/// The layouts by the name of the library, which is `quant_method` in a `config.json`, with its
/// keys there.
const LAYOUTS: [(&str, &Table, Find); 6] = [
    ("auto-round", &keys::QWEIGHT, qweight::find_auto_round),
    ("awq", &keys::QWEIGHT, qweight::find_awq),
    ("bitsandbytes", &keys::BITSANDBYTES, bitsandbytes::find),
    ("gptq", &keys::QWEIGHT, qweight::find_gptq),
    ("quanto", &keys::QUANTO, quanto::find),
    ("torchao", &keys::TORCHAO, torchao::find),
];

/// Renames the tensors of all layouts but compressed-tensors' own.
///
/// # Errors
/// When `config.json` names another method, or a weight is not in a form that is read.
pub fn translate(files: &mut Files, config: &mut Quantization) -> Result<()> {
    if let Some((method, _)) = &config.foreign
        && !LAYOUTS.iter().any(|(library, ..)| library == method)
    {
        let libraries = LAYOUTS.iter().map(|(library, ..)| *library);
        let known: Vec<_> = std::iter::once(METHOD).chain(libraries).collect();
        let error = unsupported("quant_method", &known.join(", "), "", method);
        return Err(error.in_file(&config_file(files)));
    }
    for (name, keys, find) in LAYOUTS {
        let entry = match &config.foreign {
            Some((library, entry)) if library == name => {
                keys::check(keys, entry).map_err(|e| e.in_file(&config_file(files)))?;
                entry
            }
            Some(_) => continue,
            None => &Value::Null,
        };
        let Found { weights, packed, settings, metadata } =
            find(files, entry).map_err(|e| e.in_file(files.path()))?;
        for weight in weights {
            weight.rename(files).map_err(|e| e.in_file(files.path()))?;
            config.describe(&weight.name, weight.activation);
        }
        for (from, to, entry) in packed {
            files.replace(&from, &to, entry).map_err(|e| e.in_file(files.path()))?;
        }
        settings.iter().for_each(|name| files.remove(name));
        metadata.iter().for_each(|key| files.forget(key));
    }
    packed::translate(files, config).map_err(|e| e.in_file(files.path()))?;
    leave_out_static_scales(files, config);
    Ok(())
}

fn config_file(files: &Files) -> PathBuf {
    files.folder.as_deref().unwrap_or(files.path()).join(CONFIG)
}

/// Removes compressed-tensors' static scales of activations: each row has a scale of its own here.
fn leave_out_static_scales(files: &mut Files, config: &mut Quantization) {
    let is_int8 = |module: &str| {
        let weight = files.find(&of_module(module, "weight"));
        weight.is_some_and(|(_, weight)| weight.dtype == Dtype::I8)
    };
    let is_static = |name: &&str| {
        let mut ends = ["input_scale", "input_zero_point"].into_iter();
        ends.any(|end| module(name, end).is_some_and(is_int8))
    };
    let names = files.tensors().map(|(name, ..)| name).filter(is_static);
    let names: Vec<_> = names.map(str::to_owned).collect();
    if let [first, ..] = &names[..] {
        config.notes.push(format!(
            "{} tensors of static scales of activations, such as {:?}, are left out: each row has a scale of its own",
            names.len(),
            brief(first, 200),
        ));
    }
    names.iter().for_each(|name| files.remove(name));
}
