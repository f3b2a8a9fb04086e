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
    /// The first field with a value.
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

    /// The name of the first field with a value.
    pub fn first(&self) -> Option<&str> {
        self.first.as_ref().map(|field| &*field.name)
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
        let name = format!("{prefix}{}", self.name);
        let message = format!("{name}: {}", self.fault);
        Err(Refusal::invalid(name, message))
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
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Rest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rest, A::Error> {
                let (mut rest, mut seen) = (Rest::default(), HashSet::new());
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    let neutral = neutral(&name);
                    let known = neutral.as_deref().unwrap_or_default();
                    if rest.first.is_none() && !value.is_null() {
                        rest.first = Some(Field::new(&name, &[], &value));
                    }
                    let is_wrong = neutral.is_some() && !value.is_null() && !known.contains(&value);
                    if rest.wrong.is_none() && is_wrong {
                        rest.wrong = Some(Field::new(&name, known, &value));
                    }
                    if let Some(name) = seen.replace(name) {
                        let name = cut(&name, NAME);
                        return Err(A::Error::custom(format!("duplicate field `{name}`")));
                    }
                }
                Ok(rest)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}
