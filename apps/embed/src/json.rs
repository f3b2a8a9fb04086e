//! JSON, as Python or an editor may have written it.

use candle_dynquant_io::json;
use serde::de::DeserializeOwned;

pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_slice(&json::strict(text.into()))
}
