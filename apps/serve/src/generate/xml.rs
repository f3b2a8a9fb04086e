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

enum Values<'a> {
    /// Any text, as it is written.
    Text,
    /// Texts with constraints that are not checked.
    Constrained,
    Choice(Vec<&'a str>),
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
                Some(Values::Text | Values::Constrained | Values::Choice(_)) => literal(value),
            };
            arguments.push(format!("{}: {value}", literal(key)));
        };
        let arguments = format!("{{{}}}", arguments.join(", "));
        calls.push((name.to_owned(), RawValue::from_string(arguments).ok()?));
    }
    Some(calls)
}

/// The value of a parameter, and the text behind it: an end tag inside the value has other text
/// around it. A value that begins on a line of its own ends on one, too.
fn split_value(text: &str) -> Option<(&str, &str)> {
    let is_end = |behind: &str| {
        let behind = behind.trim_start();
        behind.starts_with("<parameter=") || behind.starts_with("</function>")
    };
    let split = |begin: &str, end: &str| {
        let text = text.strip_prefix(begin)?;
        let ends = text.match_indices(end).map(|(at, _)| at);
        let mut parts = ends.map(|at| (&text[..at], &text[at + end.len()..]));
        parts.find(|(_, behind)| is_end(behind))
    };
    let empty = text.strip_prefix("\n</parameter>\n").filter(|behind| is_end(behind));
    let empty = empty.map(|behind| ("", behind));
    let lines = || split("\n", "\n</parameter>\n");
    empty.or_else(lines).or_else(|| split("", "</parameter>"))
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
        None if schema["type"] != "string" => Values::Json(schema),
        None if keys.all(|key| NOTES.contains(&&**key)) => Values::Text,
        None => Values::Constrained,
    })
}

/// The rule of a call whose arguments keep to a schema: its properties in their order, those that
/// are not required or not; an error if the schema has something that is not checked.
pub fn rule(name: &str, schema: &Value) -> Result<String, String> {
    const KNOWN: &str =
        "type, title, description, properties, required, additionalProperties, $defs, definitions";
    let fault = |fault: String| Err(format!("parameters of {name:?}: {fault}"));
    let mut keys = schema.as_object().into_iter().flat_map(|map| map.keys());
    if let Some(key) = keys.find(|key| KNOWN.split(", ").all(|known| known != *key)) {
        return fault(format!("expected {KNOWN}, got {key:?}"));
    }
    let properties = schema["properties"].as_object();
    let required = schema["required"].as_array().map_or(&[][..], |names| names);
    let is_known = |key: &Value| {
        let key = key.as_str().unwrap_or_default();
        properties.is_some_and(|properties| properties.contains_key(key))
    };
    if let Some(key) = required.iter().find(|key| !is_known(key)) {
        return fault(format!("required: expected names of properties, got {key}"));
    }
    let begin = literal(&format!("<function={name}>\n"));
    let Some(properties) = properties else {
        let any = "(\"<parameter=\" /[A-Za-z0-9_.-]+/ \">\\n\" value)*";
        let any = if schema["additionalProperties"] == false { "" } else { any };
        return Ok(format!("{begin} {any} \"</function>\""));
    };
    let mut parts = Vec::new();
    for (key, property) in properties {
        if key.contains(['>', '\n']) {
            return fault(format!("expected names without > and ends of lines, got {key:?}"));
        }
        let value = match values(schema, property) {
            Some(Values::Text) => "value".to_owned(),
            Some(Values::Choice(choice)) => {
                let choice = choice.iter().map(|text| literal(&format!("{text}\n</parameter>\n")));
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
            Some(Values::Constrained) | None => {
                return fault(format!("{key:?}: expected no constraint of a text but \"enum\""));
            }
        };
        let part = format!("{} {value}", literal(&format!("<parameter={key}>\n")));
        let is_required = required.iter().any(|name| name == key);
        parts.push(if is_required { part } else { format!("({part})?") });
    }
    Ok(format!("{begin} {} \"</function>\"", parts.join(" ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_ends_as_it_begins() -> Result<(), serde_json::Error> {
        let schemas = [json!({"properties": {"a": {"type": "string"}}})];
        for (values, expected) in [
            ("\n</parameter>\n", json!([""])),
            ("\n\n</parameter>\n", json!([""])),
            ("7</parameter>", json!(["7"])),
            (
                "\nx</parameter>\n</function>\ny\n</parameter>\n",
                json!(["x</parameter>\n</function>\ny"]),
            ),
            ("\n</parameter>\n<parameter=b>\n7\n</parameter>\n", json!(["", 7])),
            ("7</parameter><parameter=b>\n[1]\n</parameter>\n", json!(["7", [1]])),
        ] {
            let text = format!("<function=f>\n<parameter=a>{values}</function>");
            let calls = read(&text, &["f".to_owned()], &schemas).unwrap_or_default();
            let arguments: Value = serde_json::from_str(calls[0].1.get())?;
            let got = ["a", "b"].iter().filter_map(|key| arguments.get(key).cloned());
            assert_eq!(got.collect::<Value>(), expected, "{values:?}");
        }
        Ok(())
    }

    #[test]
    fn what_a_rule_cannot_check_is_refused() {
        for (schema, expected) in [
            (json!({"not": {}}), "got \"not\""),
            (json!({"required": ["a"]}), "required: expected names of properties, got \"a\""),
            (json!({"properties": {"a>": {}}}), "got \"a>\""),
            (
                json!({"properties": {"a": {"type": "string", "maxLength": 2}}}),
                "no constraint of a text",
            ),
            (json!({"properties": {"a": {"$ref": "#/properties/a"}}}), "no constraint of a text"),
        ] {
            let error = rule("f", &schema).err().unwrap_or_default();
            assert!(error.contains(expected), "{schema}: {error}");
        }
    }
}
