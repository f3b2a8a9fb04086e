//! JSON, as Python or an editor may have written it.

use candle_dynquant_io::json;
use candle_dynquant_support::json::unique;
use serde::de::DeserializeOwned;

/// Reads JSON in which no object has a key twice.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    unique(&json::strict(text.into()))
}
