//! The fields of a request that its route does not have.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Value, json};

use crate::error::{Refusal, cut};

/// The longest name in a message, in bytes.
const NAME: usize = 100;

/// The fields that no other field takes, without their values, which may be large.
#[derive(Default)]
pub struct Rest {
    first: Option<Box<Field>>,
    /// The first field whose value could change the answer.
    wrong: Option<Box<Field>>,
}

struct Field {
    name: String,
    fault: String,
}

impl Rest {
    /// Refuses fields of a request that could change the answer.
    pub fn check(&self) -> Result<(), Refusal> {
        self.wrong.as_ref().map_or(Ok(()), |field| field.refused(""))
    }

    /// Refuses all fields of a part of a request.
    pub fn check_part(&self, prefix: &str) -> Result<(), Refusal> {
        self.first.as_ref().map_or(Ok(()), |field| field.refused(prefix))
    }

    pub fn first(&self) -> Option<&str> {
        self.first.as_ref().map(|field| &*field.name)
    }

    /// Takes a field unless it has no value.
    fn take(&mut self, name: &str, value: &Value) {
        if value.is_null() {
            return;
        }
        self.first.get_or_insert_with(|| Field::new(name, &[], value));
        if let Some(known) = neutral(name).filter(|known| !known.contains(value)) {
            self.wrong.get_or_insert_with(|| Field::new(name, &known, value));
        }
    }
}

impl Field {
    fn new(name: &str, known: &[Value], value: &Value) -> Box<Self> {
        let known: Vec<String> = known.iter().map(Value::to_string).collect();
        let known = match known.as_slice() {
            [] => "no such field".to_owned(),
            known => known.join(" or "),
        };
        let value = value.to_string();
        let got = cut(&value, NAME);
        Box::new(Self {
            name: cut(name, NAME).into_owned(),
            fault: format!("not supported: expected {known}, got {got}"),
        })
    }

    fn refused(&self, prefix: &str) -> Result<(), Refusal> {
        Err(Refusal::invalid(format!("{prefix}{}", self.name), &self.fault))
    }
}

/// The values of a field that do not change the answer; `None` if no value does.
fn neutral(name: &str) -> Option<Vec<Value>> {
    Some(match name {
        // These fields describe the client.
        "user" | "metadata" | "safety_identifier" | "prompt_cache_key" => return None,
        "echo" | "store" => vec![json!(false)],
        "best_of" => vec![json!(1)],
        "suffix" => vec![json!("")],
        // huggingface_hub 2 sends no parameters as an empty object.
        "logit_bias" | "parameters" => vec![json!({})],
        "functions" => vec![json!([])],
        "function_call" => vec![json!("none"), json!("auto")],
        "response_format" => vec![json!({"type": "text"})],
        "modalities" => vec![json!(["text"])],
        "service_tier" => vec![json!("auto"), json!("default")],
        _ => Vec::new(),
    })
}

impl<'de> Deserialize<'de> for Rest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut rest, mut seen) = (Self::default(), HashSet::new());
        let take = |name: String, value: Value| {
            rest.take(&name, &value);
            let before = seen.replace(name);
            before.map(|name| format!("duplicate field `{}`", cut(&name, NAME)))
        };
        deserializer.deserialize_map(Entries { expected: "fields", take })?;
        Ok(rest)
    }
}

/// A visitor of a map's entries, each of which `take` may refuse with a message.
pub struct Entries<F> {
    pub expected: &'static str,
    pub take: F,
}

impl<'de, F: FnMut(String, Value) -> Option<String>> Visitor<'de> for Entries<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, value)) = map.next_entry()? {
            if let Some(fault) = (self.take)(name, value) {
                return Err(A::Error::custom(fault));
            }
        }
        Ok(())
    }
}
