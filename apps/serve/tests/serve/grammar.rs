//! Answers in JSON: of any form, and by a schema.

use std::thread::scope;

use serde_json::{Value, json};

use crate::generate::{CHAT, COMPLETIONS, events, joined, serve};
use crate::process::Server;

fn chat(number: usize, format: &Value) -> Value {
    let content = format!("In those days there were {number}");
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 200, "seed": number,
        "temperature": if number.is_multiple_of(2) { 0. } else { 1. }, "response_format": format})
}

fn by_schema(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}})
}

/// The content of an answer, and whether it ended by itself.
fn answer(server: &Server, body: &Value) -> (String, bool) {
    let answer = server.ok(CHAT, body);
    let choice = &answer["choices"][0];
    let content = choice["message"]["content"].as_str().unwrap().to_owned();
    (content, choice["finish_reason"] == "stop")
}

#[test]
fn an_answer_keeps_to_its_schema() {
    let person = by_schema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kin": {"type": "array", "items": {"enum": ["son", "daughter"]}, "maxItems": 3},
        },
        "required": ["name", "age", "kin"],
        "additionalProperties": false,
    }));
    let is_person = |value: &Value| {
        let kin = value["kin"].as_array().unwrap();
        let is_kin = kin.iter().all(|kin| kin == "son" || kin == "daughter");
        let age = value["age"].as_u64().unwrap();
        let name = value["name"].as_str().unwrap().chars().count();
        is_kin && kin.len() <= 3 && age <= 150 && name <= 20
    };
    for preset in ["int8", "none"] {
        let server = serve(&["--preset", preset]);
        let plain = serve(&["--preset", preset, "--drafts", "0", "--no-prefix-cache"]);
        let mut ended = 0;
        for number in 0..12 {
            let body = chat(number, &person);
            let (content, is_end) = answer(&server, &body);
            assert_eq!((content.clone(), is_end), answer(&plain, &body), "{body}");
            if is_end {
                let value = serde_json::from_str(&content).expect(&content);
                assert!(is_person(&value), "{content}");
                ended += 1;
            }
        }
        assert!(ended > 8, "{ended}");
        // As a stream, and many at a time.
        scope(|scope| {
            for number in 0..12 {
                let (server, plain, person) = (&server, &plain, &person);
                scope.spawn(move || {
                    let body = chat(number, person);
                    let parts = events(server, CHAT, &body);
                    assert_eq!(joined(&parts, "content"), answer(plain, &body).0);
                });
            }
        });
        let any = json!({"type": "json_object"});
        for number in 0..6 {
            let (content, is_end) = answer(&server, &chat(number, &any));
            assert!(content.trim_start().starts_with('{'), "{content}");
            assert!(!is_end || serde_json::from_str::<Value>(&content).unwrap().is_object());
        }
        // A schema without an end.
        let reply = server.post(CHAT, &chat(0, &by_schema(json!({"$ref": "#"}))));
        reply.says(400, "response_format");
        let (yes, is_end) = answer(&server, &chat(1, &by_schema(json!({"const": "yes"}))));
        assert_eq!((yes.as_str(), is_end), ("\"yes\"", true));
    }
}

/// The forms that vLLM's clients ask for, in chats and in completions.
#[test]
fn an_answer_keeps_to_its_form() {
    let server = serve(&["--preset", "none"]);
    let body = |form: &Value, number: usize| {
        let mut body = chat(number, &json!({"type": "text"}));
        body["structured_outputs"] = form.clone();
        body
    };
    let is_date = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        let digits = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
        parts.iter().all(digits) && parts.iter().map(|part| part.len()).eq([4, 2])
    };
    let is_sum = |text: &str| text.split(" + ").all(|part| ["a", "b"].contains(&part));
    let lark = "start: sum\nsum: name (\" + \" name){0,3}\nname: /[ab]/\n";
    type Keeps<'a> = &'a dyn Fn(&str) -> bool;
    let forms: [(Value, Keeps<'_>); 4] = [
        (json!({"choice": ["a ram", "\"two\" goats\n"]}), &|text| {
            ["a ram", "\"two\" goats\n"].contains(&text)
        }),
        (json!({"regex": "[0-9]{4}-[0-9]{2}"}), &is_date),
        (json!({"grammar": lark}), &is_sum),
        (json!({"json": {"const": "yes"}}), &|text| text == "\"yes\""),
    ];
    for (form, keeps) in forms {
        for number in 0..4 {
            let (content, is_end) = answer(&server, &body(&form, number));
            assert!(is_end && keeps(&content), "{form} {content}");
            let prompts = json!({"prompt": ["In those days", "And"], "max_tokens": 60,
                "seed": number, "temperature": 1, "structured_outputs": form});
            let completed = server.ok(COMPLETIONS, &prompts);
            for choice in completed["choices"].as_array().unwrap() {
                assert!(keeps(choice["text"].as_str().unwrap()), "{completed}");
            }
        }
    }
    for (form, expected) in [
        (json!({"choice": []}), "structured_outputs: expected one text or more"),
        (json!({"choice": ["a"], "regex": "a"}), "expected map with a single key"),
        (json!({"backend": "guidance"}), "unknown variant `backend`"),
        (json!({"regex": "(a"}), "structured_outputs: "),
        (json!({"grammar": "start: other"}), "structured_outputs: "),
        (json!({"grammar": "start: start"}), "structured_outputs: "),
        (json!({"grammar": "start: \"a\"\n".repeat(100_000)}), "structured_outputs: "),
        (json!({"json": {"not": {}}}), "structured_outputs: "),
    ] {
        for route in [CHAT, COMPLETIONS] {
            let mut body = body(&form, 1);
            if route == COMPLETIONS {
                body = json!({"prompt": "a", "structured_outputs": form});
            }
            server.post(route, &body).says(400, expected);
        }
    }
    // Too large once it is written.
    let large = body(&json!({"regex": "((a{1,1000}){1,1000}){1,1000}"}), 1);
    server.post(CHAT, &large).says(400, "the grammar: ");
    let mut both = body(&json!({"choice": ["a"]}), 1);
    both["response_format"] = json!({"type": "json_object"});
    server.post(CHAT, &both).says(400, "expected none beside response_format");
}
