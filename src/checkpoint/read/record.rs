//! Facts that compressed-tensors' format has no place for, in the metadata of the safetensors file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::header::parse;
use crate::error::{Error, Result};
use crate::kernels::Precision;
use crate::weight::origin::Part;
use crate::weight::{Format, Written};
use crate::words::brief;

pub const KEY: &str = "candle_dynquant";
/// The versions that are read: the second has views, the third attention or groups, and each is
/// written if there are any.
const VERSIONS: [u64; 3] = [1, 2, 3];

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u64,
    /// Each once, since most weights are alike.
    formats: Vec<Written>,
    /// The number of the format of each weight.
    weights: BTreeMap<String, usize>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    views: BTreeMap<String, View>,
    /// The precision of attention by its name, where it is not float32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    attention: BTreeMap<String, Precision>,
}

/// A quantized weight beside the tensor that has the same part, in floats or otherwise quantized,
/// for others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    pub of: String,
    pub part: Part,
}

#[derive(Clone, Debug, Default)]
pub struct Recorded {
    pub weights: BTreeMap<String, Format>,
    pub views: BTreeMap<String, View>,
    pub attention: BTreeMap<String, Precision>,
}

#[derive(Deserialize)]
struct Version {
    version: u64,
}

pub fn read(json: &str) -> Result<Recorded> {
    let malformed = |got: String| {
        Error::malformed(
            "metadata `candle_dynquant`",
            "a version, formats and weights as JSON",
            got,
        )
    };
    let Version { version } = parse(json.as_bytes()).map_err(malformed)?;
    if !VERSIONS.contains(&version) {
        let expected = VERSIONS.map(|version| version.to_string()).join(" or ");
        let got = version;
        return Err(Error::unsupported("version of the metadata `candle_dynquant`", expected, got));
    }
    let record: Record = parse(json.as_bytes()).map_err(malformed)?;
    let formats = record.formats.into_iter().map(Format::try_from).collect::<Result<Vec<_>>>()?;
    let format = |(name, number): (String, usize)| match formats.get(number) {
        Some(format) => Ok((name, *format)),
        None => Err(malformed(format!(
            "format {number} of {}, for {:?}",
            formats.len(),
            brief(&name, 100)
        ))),
    };
    let weights = record.weights.into_iter().map(format).collect::<Result<_>>()?;
    Ok(Recorded { weights, views: record.views, attention: record.attention })
}

/// The metadata for these weights and this attention.
pub fn write<'a>(
    weights: impl IntoIterator<Item = (&'a str, Format)>,
    views: BTreeMap<String, View>,
    attention: BTreeMap<String, Precision>,
) -> String {
    let mut record =
        Record { version: VERSIONS[usize::from(!views.is_empty())], views, ..Default::default() };
    if !attention.is_empty() {
        record.version = VERSIONS[2];
        record.attention = attention;
    }
    for (name, format) in weights {
        if format.groups().is_some() {
            record.version = VERSIONS[2];
        }
        let format = Written::from(format);
        let known = record.formats.iter().position(|written| *written == format);
        let number = known.unwrap_or_else(|| {
            record.formats.push(format);
            record.formats.len() - 1
        });
        record.weights.insert(name.to_owned(), number);
    }
    // Numbers and words only.
    serde_json::to_string(&record).unwrap_or_else(|error| unreachable!("record: {error}"))
}
