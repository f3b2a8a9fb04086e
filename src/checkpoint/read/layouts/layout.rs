//! The common part of all layouts: weights by the names of their tensors.

use super::super::files::Files;
use super::super::header::{Encoding, Entry};
use super::super::weights::scheme;
use crate::error::{Error, Result};
use crate::qconfig::DynamicConfig;
use crate::weight::{SCALE, ZERO_POINT};
use crate::words::brief;

#[derive(Debug, Default)]
pub struct Found {
    pub weights: Vec<WeightNames>,
    /// Tensors of weights of 4 bits, each with its new name and entry.
    pub packed: Vec<(String, String, Entry)>,
    /// Tensors that say how a weight is stored or used.
    pub settings: Vec<String>,
    /// Keys of the metadata that describe tensors.
    pub metadata: Vec<String>,
}

/// A weight by the names that its tensors have in the files.
#[derive(Debug)]
pub struct WeightNames {
    pub name: String,
    pub codes: String,
    /// The encoding of codes and zero points.
    pub codes_as: Encoding,
    pub scales: String,
    pub scales_as: Encoding,
    pub zero_points: Option<String>,
    /// `None` where activations stay float.
    pub activation: Option<DynamicConfig>,
}

impl WeightNames {
    pub fn rename(&self, files: &mut Files) -> Result<()> {
        let codes = tensor(files, &self.codes)?;
        let scales = (&*self.scales, tensor(files, &self.scales)?);
        let zero_points = self.zero_points.as_deref();
        let zero_points = zero_points.map(|name| Ok::<_, Error>((name, tensor(files, name)?)));
        scheme(&self.codes, codes, scales, zero_points.transpose()?)?;
        files.rename(&self.codes, &self.name, self.codes_as)?;
        files.rename(&self.scales, &format!("{}{SCALE}", self.name), self.scales_as)?;
        let Some(zero_points) = &self.zero_points else { return Ok(()) };
        let (shard, entry) = files.get(zero_points, "a tensor")?;
        if shard.codes(entry, 0..entry.elements())?.iter().all(|zero| *zero == 0) {
            files.remove(zero_points);
            return Ok(());
        }
        files.rename(zero_points, &format!("{}{ZERO_POINT}", self.name), self.codes_as)
    }
}

pub fn tensor<'a>(files: &'a Files, name: &str) -> Result<&'a Entry> {
    let (_, entry) = files.get(name, "a tensor of a quantized weight")?;
    Ok(entry)
}

/// The module of a tensor whose last part is `last`.
pub fn module<'a>(name: &'a str, last: &str) -> Option<&'a str> {
    match name.strip_suffix(last)? {
        "" => Some(""),
        module => module.strip_suffix('.'),
    }
}

pub fn of_module(module: &str, last: &str) -> String {
    match module {
        "" => last.to_owned(),
        module => format!("{module}.{last}"),
    }
}

/// A weight that is not int8 codes with scales.
pub fn unsupported(what: &'static str, expected: &str, weight: &str, got: &str) -> Error {
    Error::unsupported(
        what,
        expected,
        match weight {
            "" => brief(got, 100),
            weight => format!("{}, of {:?}", brief(got, 100), brief(weight, 200)),
        },
    )
}
