//! Layouts of other libraries: their int8 weights get the names that compressed-tensors gives them,
//! so that later steps know one layout.

mod bitsandbytes;
mod quanto;
mod torchao;

use serde_json::Value;

use super::config::Quantization;
use super::files::Files;
use super::header::{Entry, invalid};
use super::weights::scheme;
use crate::error::{Error, Result};
use crate::qconfig::DynamicConfig;
use crate::stored::{SCALE, ZERO_POINT};
use crate::words::brief;

/// A layout of int8 weights.
pub(super) trait Layout: Sync {
    /// The name of its library, which is `quant_method` in a `config.json`.
    fn name(&self) -> &'static str;

    /// The weights in this layout; `config` is the entry `quantization_config` of this library, or
    /// null.
    ///
    /// # Errors
    /// When a weight lacks a tensor, or is more than codes with scales: fewer bits, another order,
    /// static activations.
    fn find(&self, files: &Files, config: &Value) -> Result<Found>;
}

const LAYOUTS: [&dyn Layout; 3] = [
    &bitsandbytes::Bitsandbytes,
    &quanto::Quanto,
    &torchao::Torchao,
];

/// The names of all libraries.
pub(super) fn libraries() -> impl Iterator<Item = &'static str> {
    LAYOUTS.iter().map(|layout| layout.name())
}

/// The weights in a layout and what else it has.
#[derive(Debug, Default)]
pub(super) struct Found {
    weights: Vec<Weight>,
    /// Tensors that say how a weight is stored or used.
    settings: Vec<String>,
    /// Keys of the metadata that describe tensors.
    metadata: Vec<String>,
}

/// A weight by the names that its tensors have in the files.
#[derive(Debug)]
struct Weight {
    name: String,
    codes: String,
    scales: String,
    zero_points: Option<String>,
    /// Whether its scales are the largest magnitudes of rows.
    absmax: bool,
    /// `None` where activations stay float.
    activation: Option<DynamicConfig>,
}

/// Renames the tensors of all layouts but compressed-tensors' own.
pub(super) fn translate(files: &mut Files, config: &mut Quantization) -> Result<()> {
    for layout in LAYOUTS {
        let entry = match &config.foreign {
            Some((library, entry)) if library == layout.name() => entry,
            _ => &Value::Null,
        };
        let found = layout.find(files, entry);
        let Found {
            weights,
            settings,
            metadata,
        } = found.map_err(|e| e.in_file(files.path()))?;
        for weight in weights {
            let renamed = weight.rename(files);
            renamed.map_err(|e| e.in_file(files.path()))?;
            config.describe(&weight.name, weight.activation);
        }
        settings.iter().for_each(|name| files.remove(name));
        metadata.iter().for_each(|key| files.forget(key));
    }
    Ok(())
}

impl Weight {
    fn rename(&self, files: &mut Files) -> Result<()> {
        let codes = tensor(files, &self.codes)?;
        let scales = (&*self.scales, tensor(files, &self.scales)?);
        let zero_points = self.zero_points.as_deref();
        let zero_points = zero_points.map(|name| Ok::<_, Error>((name, tensor(files, name)?)));
        scheme(&self.codes, codes, scales, zero_points.transpose()?)?;
        files.rename(&self.codes, &self.name, false)?;
        let scale = format!("{}{SCALE}", self.name);
        files.rename(&self.scales, &scale, self.absmax)?;
        match &self.zero_points {
            None => Ok(()),
            Some(own) => files.rename(own, &format!("{}{ZERO_POINT}", self.name), false),
        }
    }
}

fn tensor<'a>(files: &'a Files, name: &str) -> Result<&'a Entry> {
    match files.find(name) {
        Some((_, entry)) => Ok(entry),
        None => Err(invalid(
            name,
            "a tensor of a quantized weight",
            "no such tensor",
        )),
    }
}

/// The module of a tensor whose last part is `last`.
fn module<'a>(name: &'a str, last: &str) -> Option<&'a str> {
    match name.strip_suffix(last)? {
        "" => Some(""),
        module => module.strip_suffix('.'),
    }
}

/// A tensor of a module.
fn of_module(module: &str, last: &str) -> String {
    match module {
        "" => last.to_owned(),
        module => format!("{module}.{last}"),
    }
}

/// A weight that is not int8 codes with scales.
fn unsupported(what: &'static str, expected: &str, weight: &str, got: &str) -> Error {
    Error::UnsupportedCheckpoint {
        what,
        expected: expected.to_owned(),
        got: match weight {
            "" => brief(got, 100),
            weight => format!("{}, of {:?}", brief(got, 100), brief(weight, 200)),
        },
    }
}
