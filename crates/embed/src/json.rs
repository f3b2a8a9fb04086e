//! JSON as Python or an editor may write it.

use candle_dynquant_decoder::json::unique;
use candle_dynquant_io::json;
use serde::de::DeserializeOwned;

/// Parses JSON without duplicate keys.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    unique(&json::strict(text.into()))
}
