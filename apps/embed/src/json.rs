//! JSON, as Python or an editor may have written it.

use std::collections::HashSet;
use std::fmt;

use candle_dynquant_io::json;
use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads JSON in which no object has a key twice: readers differ in which of them they take.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    let text = json::strict(text.into());
    serde_json::from_slice::<Unique>(&text)?;
    serde_json::from_slice(&text)
}

macro_rules! plain {
    ($($visit:ident $value:ty),*) => {
        $(fn $visit<E>(self, _: $value) -> Result<Self, E> {
            Ok(self)
        })*
    };
}

/// Any value without a key twice.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    plain! { visit_bool bool, visit_i64 i64, visit_u64 u64, visit_f64 f64, visit_str &str }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self, A::Error> {
        while from.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = from.next_key::<String>()? {
            from.next_value::<Self>()?;
            if !seen.insert(key.clone()) {
                let key: String = key.chars().take(200).collect();
                return Err(A::Error::custom(format_args!("key {key:?} twice")));
            }
        }
        Ok(self)
    }
}
