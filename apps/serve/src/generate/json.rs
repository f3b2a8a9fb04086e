//! JSON in grammars.

use llguidance::JsonCompileOptions;
use serde_json::Value;

/// A text as a grammar writes it.
pub fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A schema whose JSON is written in one line.
pub fn in_one_line(mut schema: Value) -> Value {
    if schema.is_object() {
        let options = JsonCompileOptions {
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            whitespace_flexible: false,
            ..JsonCompileOptions::default()
        };
        options.apply_to(&mut schema);
    }
    schema
}
