//! JSON as Python or an editor may write it.

use candle_dynquant_io::json;
use candle_dynquant_support::json::unique;
use serde::de::DeserializeOwned;

/// Parses JSON without duplicate keys.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    unique(&json::strict(text.into()))
}
