//! Facts that compressed-tensors' format has no place for, in the metadata of the safetensors file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::header::parse;
use crate::error::{Error, Result};
use crate::stored::Format;
use crate::words::brief;

/// The key of the metadata.
pub(super) const KEY: &str = "candle_dynquant";
/// The version that is written, and the only one that is read.
const VERSION: u64 = 1;

/// The quantized weights of a file.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u64,
    /// Each once, since most weights are alike.
    formats: Vec<Format>,
    /// The number of the format of each weight.
    weights: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// The formats of the weights by their names.
pub(super) fn read(json: &str) -> Result<BTreeMap<String, Format>> {
    let malformed = |got: String| Error::MalformedCheckpoint {
        what: "metadata `candle_dynquant`",
        expected: "a version, formats and weights as JSON".into(),
        got,
    };
    let Version { version } = parse(json.as_bytes()).map_err(malformed)?;
    if version != VERSION {
        return Err(Error::UnsupportedCheckpoint {
            what: "version of the metadata `candle_dynquant`",
            expected: VERSION.to_string(),
            got: version.to_string(),
        });
    }
    let record: Record = parse(json.as_bytes()).map_err(malformed)?;
    let format = |(name, number): (String, usize)| match record.formats.get(number) {
        Some(format) => Ok((name, format.check()?)),
        None => Err(malformed(format!(
            "format {number} of {}, for {:?}",
            record.formats.len(),
            brief(&name, 100)
        ))),
    };
    record.weights.into_iter().map(format).collect()
}

/// The metadata for these weights.
pub(super) fn write<'a>(weights: impl IntoIterator<Item = (&'a str, Format)>) -> String {
    let mut record = Record {
        version: VERSION,
        ..Default::default()
    };
    for (name, format) in weights {
        let known = record.formats.iter().position(|own| *own == format);
        let number = known.unwrap_or_else(|| {
            record.formats.push(format);
            record.formats.len() - 1
        });
        record.weights.insert(name.to_owned(), number);
    }
    // Numbers and words only.
    serde_json::to_string(&record).unwrap_or_else(|error| unreachable!("record: {error}"))
}
