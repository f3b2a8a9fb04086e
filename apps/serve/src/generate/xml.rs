//! Calls whose arguments are texts between tags, as Qwen3-Coder's models write them:
//!
//! ```text
//! <function=weather>
//! <parameter=city>
//! Oslo
//! </parameter>
//! </function>
//! ```

use serde_json::Value;
use serde_json::value::RawValue;

use super::json::{in_one_line, literal};

/// The rule of a grammar that a parameter's text ends with.
pub const UNTIL: &str = "value[lazy]: /(?s:.*)/ \"\\n</parameter>\\n\"\n";

/// The most references from a schema to another.
const MAX_REFERENCES: usize = 16;

/// The keys of a schema that constrain no value.
const NOTES: [&str; 5] = ["type", "title", "description", "default", "examples"];

/// The values of a parameter.
enum Values<'a> {
    /// Texts, as they are written.
    Text { is_any: bool },
    /// A choice of texts.
    Choice(Vec<&'a str>),
    /// JSON.
    Json(&'a Value),
}

/// The calls that a text consists of, by the names of functions and the schemas of their arguments;
/// `None` if it has anything else.
pub fn read(
    text: &str,
    names: &[String],
    schemas: &[Value],
) -> Option<Vec<(String, Box<RawValue>)>> {
    let (mut calls, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (name, mut inside) = rest.strip_prefix("<function=")?.split_once('>')?;
        let place = names.iter().position(|known| known == name)?;
        let schema = schemas.get(place)?;
        let mut arguments = Vec::new();
        rest = loop {
            inside = inside.trim_start();
            if let Some(behind) = inside.strip_prefix("</function>") {
                break behind.trim_start();
            }
            let (key, text) = inside.strip_prefix("<parameter=")?.split_once('>')?;
            let (value, behind) = split_value(text)?;
            inside = behind;
            let property = &schema["properties"][key];
            let value = match values(schema, property) {
                Some(Values::Json(_)) | None => json(value),
                Some(Values::Text { .. } | Values::Choice(_)) => literal(value),
            };
            arguments.push(format!("{}: {value}", literal(key)));
        };
        let arguments = format!("{{{}}}", arguments.join(", "));
        calls.push((name.to_owned(), RawValue::from_string(arguments).ok()?));
    }
    Some(calls)
}

/// The value of a parameter, and the text behind it: an end tag inside the value has other text
/// behind it.
fn split_value(text: &str) -> Option<(&str, &str)> {
    const END: &str = "</parameter>";
    let ends = |(at, _): &(usize, &str)| {
        let behind = text[at + END.len()..].trim_start();
        behind.starts_with("<parameter=") || behind.starts_with("</function>")
    };
    let (at, _) = text.match_indices(END).find(ends)?;
    let value = text[..at].strip_suffix('\n').unwrap_or(&text[..at]);
    let value = value.strip_prefix('\n').unwrap_or(value);
    Some((value, &text[at + END.len()..]))
}

/// The JSON of a value that may be no text; the constants of Python are read, too.
fn json(value: &str) -> String {
    let trimmed = value.trim();
    match trimmed {
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        "None" => "null".to_owned(),
        _ if serde_json::from_str::<&RawValue>(trimmed).is_ok() => trimmed.to_owned(),
        _ => literal(value),
    }
}

/// The values that a schema allows; `None` where its references do not end.
fn values<'a>(root: &'a Value, mut schema: &'a Value) -> Option<Values<'a>> {
    let mut left = MAX_REFERENCES;
    while let Some(reference) = schema["$ref"].as_str() {
        schema = root.pointer(reference.strip_prefix('#')?)?;
        left = left.checked_sub(1)?;
    }
    let choice = match (&schema["enum"], &schema["const"]) {
        (Value::Array(choice), _) => choice.iter().map(Value::as_str).collect(),
        (_, Value::String(text)) => Some(vec![&**text]),
        _ => None,
    };
    let mut keys = schema.as_object().into_iter().flat_map(|map| map.keys());
    Some(match choice {
        Some(choice) => Values::Choice(choice),
        None if schema["type"] == "string" => Values::Text {
            is_any: keys.all(|key| NOTES.contains(&&**key)),
        },
        None => Values::Json(schema),
    })
}

/// The rule of a call whose arguments keep to a schema: its properties in their order, those that
/// are not required or not.
///
/// # Errors
/// When the schema has something that is not checked.
pub fn rule(name: &str, schema: &Value) -> Result<String, String> {
    const KNOWN: [&str; 8] = [
        "type",
        "title",
        "description",
        "properties",
        "required",
        "additionalProperties",
        "$defs",
        "definitions",
    ];
    let mut keys = schema.as_object().into_iter().flat_map(|map| map.keys());
    if let Some(key) = keys.find(|key| !KNOWN.contains(&&***key)) {
        let known = KNOWN.join(", ");
        return Err(format!(
            "parameters of {name:?}: expected {known}, got {key:?}"
        ));
    }
    let begin = literal(&format!("<function={name}>\n"));
    let Some(properties) = schema["properties"].as_object() else {
        let any = "(\"<parameter=\" /[A-Za-z0-9_.-]+/ \">\\n\" value)*";
        let any = if schema["additionalProperties"] == false {
            ""
        } else {
            any
        };
        return Ok(format!("{begin} {any} \"</function>\""));
    };
    let required = schema["required"].as_array().map_or(&[][..], |names| names);
    let mut parts = Vec::new();
    for (key, property) in properties {
        let value = match values(schema, property) {
            Some(Values::Text { is_any: true }) => "value".to_owned(),
            Some(Values::Choice(choice)) => {
                let choice = choice
                    .iter()
                    .map(|text| literal(&format!("{text}\n</parameter>\n")));
                format!("({})", choice.collect::<Vec<_>>().join(" | "))
            }
            Some(Values::Json(property)) => {
                let mut property = property.clone();
                for defs in ["$defs", "definitions"] {
                    if let (Some(map), Some(found)) = (property.as_object_mut(), schema.get(defs)) {
                        map.insert(defs.to_owned(), found.clone());
                    }
                }
                format!("%json {} \"\\n</parameter>\\n\"", in_one_line(property))
            }
            Some(Values::Text { is_any: false }) | None => {
                let expected = "expected no constraint of a text but \"enum\"";
                return Err(format!("parameters of {name:?}: {key:?}: {expected}"));
            }
        };
        let part = format!("{} {value}", literal(&format!("<parameter={key}>\n")));
        let is_required = required.iter().any(|name| name == key);
        parts.push(if is_required {
            part
        } else {
            format!("({part})?")
        });
    }
    Ok(format!("{begin} {} \"</function>\"", parts.join(" ")))
}
