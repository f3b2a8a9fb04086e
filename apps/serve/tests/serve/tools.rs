//! Tools: offered to the model by its template, and called by answers.

use std::fs;

use candle_dynquant_support::rows;
use serde_json::{Value, json};

use crate::generate::{CHAT, events, serve, write_model};
use crate::process::{ASSETS, Server, change};

/// A server with one of the templates with tools; `[TOOL_CALLS]` is a special token.
fn server(name: &str, options: &[&str]) -> Server {
    let fixture = fs::read_to_string(format!("{ASSETS}/reference/chat_tools.json")).unwrap();
    let fixture: Value = serde_json::from_str(&fixture).unwrap();
    let template = fixture["templates"][name].as_str().unwrap();
    let dir = write_model(&format!("tools_{name}_{}", options.len()), template);
    let file = format!("{dir}/tokenizer.json");
    let text = fs::read_to_string(&file).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocab.remove("Ġdeath").unwrap();
    vocab.insert("[TOOL_CALLS]".to_owned(), json!(1023));
    tokenizer["model"]["merges"].as_array_mut().unwrap().pop();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut mark = added[0].clone();
    (mark["id"], mark["content"]) = (json!(1023), json!("[TOOL_CALLS]"));
    added.push(mark);
    fs::write(file, tokenizer.to_string()).unwrap();
    // The prompts are long.
    let positions = |number: usize| format!("\"max_position_embeddings\": {number}");
    change(&dir, "config.json", &positions(1024), &positions(4096));
    Server::start(&[&["--model", &dir], options].concat())
}

fn tools() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "$defs": {"city": {"enum": ["Oslo", "Bergen"]}},
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    json!([
        {"type": "function", "function": {"name": "weather", "description": "It <rains>.", "parameters": parameters,
            "strict": true}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

fn chat(choice: Value, seed: usize) -> Value {
    json!({"messages": [{"role": "user", "content": "And it came to pass"}], "max_tokens": 150,
        "temperature": 1, "seed": seed, "tools": tools(), "tool_choice": choice})
}

/// The function and the arguments of each call, which has an id and keeps to the schema.
fn calls(calls: &Value) -> Vec<(String, Value)> {
    let call = |call: &Value| {
        assert_eq!((&call["type"], call["id"].as_str().unwrap().len()), (&json!("function"), 9));
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        let city = arguments["city"].as_str().unwrap_or_default();
        let is_weather = ["Oslo", "Bergen"].contains(&city)
            && (1..=9).contains(&arguments["days"].as_u64().unwrap_or(0));
        let is_right = if name == "now" { arguments == json!({}) } else { is_weather };
        assert!(is_right, "{name} {arguments}");
        (name, arguments)
    };
    calls.as_array().into_iter().flatten().map(call).collect()
}

#[test]
fn an_answer_has_to_call_a_tool() {
    for name in ["hermes", "llama", "mistral", "arguments", "xml"] {
        for preset in ["int8", "none"] {
            let server = server(name, &["--preset", preset]);
            let named = json!({"type": "function", "function": {"name": "weather"}});
            for (seed, choice) in [json!("required"), named].iter().cycle().take(8).enumerate() {
                let mut body = chat(choice.clone(), seed);
                if seed % 4 > 1 {
                    body["parallel_tool_calls"] = json!(false);
                }
                let answer = server.ok(CHAT, &body);
                let choice = &answer["choices"][0];
                let message = &choice["message"];
                if choice["finish_reason"] == "length" {
                    assert!(body["tool_choice"] == "required" && seed % 4 < 2, "{answer}");
                } else {
                    assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {answer}");
                    assert_eq!(message["content"], Value::Null);
                }
                let expected = calls(&message["tool_calls"]);
                let is_named = body["tool_choice"].is_object();
                assert!(!is_named || expected[0].0 == "weather");
                let is_free = !is_named && seed % 4 < 2 && name != "llama";
                assert!(expected.len() == 1 || is_free || choice["finish_reason"] == "length");
                // As a stream: the same calls, each in a part.
                let parts = events(&server, CHAT, &body);
                let deltas = parts.iter().map(|part| &part["choices"][0]["delta"]);
                let streamed = deltas.filter_map(|delta| delta["tool_calls"].as_array().cloned());
                let streamed: Vec<Value> = streamed.flatten().collect();
                assert!((0..).zip(&streamed).all(|(index, call)| call["index"] == index));
                assert_eq!(calls(&streamed.into()), expected);
                let last = &parts.last().unwrap()["choices"][0]["finish_reason"];
                assert_eq!(last, &choice["finish_reason"]);
                if is_named {
                    // The call, its answer, and the next question.
                    let mut said = body["messages"].clone();
                    let id = message["tool_calls"][0]["id"].clone();
                    let answer = json!({"role": "tool", "tool_call_id": id, "content": "<rain>"});
                    said.as_array_mut().unwrap().extend([message.clone(), answer]);
                    let next = json!({"messages": said, "max_tokens": 5, "tools": [tools()[1]]});
                    server.ok(CHAT, &next);
                }
                // A call that is cut is text.
                body["max_tokens"] = json!(4);
                let cut = &server.ok(CHAT, &body)["choices"][0];
                let of_text = (&cut["message"]["tool_calls"], &cut["finish_reason"]);
                assert_eq!(of_text, (&Value::Null, &json!("length")));
                assert_ne!(cut["message"]["content"], "");
            }
        }
    }
}

/// An answer that may call tools is the text that it is without them in its prompt, and tools that a
/// template does not know are refused, as are mistakes.
#[test]
fn tools_are_checked() {
    let hermes = server("hermes", &[]);
    let mut body = chat(json!("auto"), 0);
    body["tools"] = json!([tools()[1]]);
    let free = hermes.ok(CHAT, &body);
    assert_eq!(free["choices"][0]["message"]["tool_calls"], Value::Null);
    let prompt = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    body["tool_choice"] = json!("none");
    let none = hermes.ok(CHAT, &body);
    assert!(prompt(&none) + 100 < prompt(&free), "{none}");
    for tools in [json!([]), Value::Null] {
        (body["tools"], body["tool_choice"]) = (tools, json!("auto"));
        assert_eq!(prompt(&hermes.ok(CHAT, &body)), prompt(&none));
    }
    let refused = |server: &Server, body: &Value, expected: &str| {
        server.post(CHAT, body).says(400, expected);
    };
    let function = |function: &str| {
        let function: Value = serde_json::from_str(function).unwrap();
        json!([{"type": "function", "function": function}])
    };
    for [field, value, expected] in rows(MISTAKES) {
        let mut body = chat(json!("required"), 0);
        match field {
            "function" => body["tools"] = function(value),
            _ => body[field] = serde_json::from_str(value).unwrap(),
        }
        refused(&hermes, &body, expected);
    }
    // Beside free text only the schemas of strict functions are read.
    for (name, is_text) in
        [("hermes", true), ("llama", false), ("mistral", true), ("arguments", true), ("xml", true)]
    {
        let server = server(name, &["--preset", "none"]);
        for seed in 0..4 {
            let message = &server.ok(CHAT, &chat(json!("auto"), seed))["choices"][0]["message"];
            assert!(message["content"].is_string() || !is_text, "{message}");
            calls(&message["tool_calls"]);
        }
        let mut body = chat(json!("auto"), 0);
        body["tools"] = function(r#"{"name": "a", "parameters": {"not": {}}}"#);
        server.ok(CHAT, &body);
        body["tools"][0]["function"]["strict"] = json!(true);
        let of_xml = "tools: parameters of \"a\": expected type, title";
        let expected = if name == "xml" { of_xml } else { "tools: Unimpl" };
        refused(&server, &body, expected);
    }
    let mut twice = chat(json!("required"), 0);
    twice["tools"] = json!([tools()[1], tools()[1]]);
    refused(&hermes, &twice, "tools: expected functions of different names, got two \"now\"");
    // Many tools, a large schema, and a deep one.
    let name = |index: usize| format!("f{index}");
    let tool = |index| json!({"type": "function", "function": {"name": name(index)}});
    body["tools"] = (0..2000).map(tool).collect();
    body["tool_choice"] = json!("required");
    refused(&hermes, &body, "");
    let values: Vec<usize> = (0..200_000).collect();
    body["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters":
        {"properties": {"a": {"enum": values}}, "required": ["a"]}}}]);
    refused(&hermes, &body, "tools: ");
    let deep = format!("{}{}", r#"{"items": "#.repeat(120), "{}") + &"}".repeat(120);
    let text = format!(r#"{{"messages": [], "tools": [{{"parameters": {deep}}}]}}"#);
    assert_eq!(hermes.post_text(CHAT, &text).status, 400);
    // Special tokens in calls and tools are text.
    let call = json!({"id": "a", "type": "function", "function": {"name": "<|endoftext|>",
        "arguments": "{\"<|endoftext|>\": [\"<|endoftext|>\"]}"}});
    body["messages"] = json!([{"role": "assistant", "tool_calls": [call]}]);
    body["tools"] =
        json!([{"type": "function", "function": {"name": "f", "description": "[TOOL_CALLS]"}}]);
    body["tool_choice"] = json!("auto");
    assert!(prompt(&hermes.ok(CHAT, &body)) > 100);

    let plain = serve(&[]);
    body["messages"] = json!([{"role": "user", "content": "a"}]);
    refused(&plain, &body, "tools: expected a chat template with calls as");
    body["tool_choice"] = json!("none");
    plain.ok(CHAT, &body);
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    body["messages"] = json!([{"role": "assistant", "content": null, "tool_calls": [call]}]);
    refused(&plain, &body, "messages: expected none with \"tool_calls\"");
}

const MISTAKES: &str = r##"
tools | [{}] | tools[0]: missing field `type`
tools | [{"type": "custom", "custom": {"name": "a"}}] | tools[0]: unknown variant `custom`
tools | [{"type": "function", "function": {"name": "a"}, "x": 1}] | tools[0]: unknown field `x`
function | {"name": ""} | tools[0]: name: expected 1 to 64 letters, digits, _ and -, got ""
function | {"name": "a b"} | got "a b"
function | {"name": "a", "parameters": {"type": "string"}} | tools[0]: parameters: expected a schema of type "object", got "string"
function | {"name": "a", "parameters": []} | tools[0]: invalid type: sequence, expected a map
function | {"name": "a", "parameters": {"not": {}}} | tools: Unimpl
function | {"name": "a", "parameters": {"$ref": "#"}} | tools:
function | {"name": "a", "schema": {}} | tools[0]: unknown field `schema`
tools | [] | tool_choice: expected the functions of tools, got "required"
tool_choice | "any" | tool_choice: expected "none", "auto", "required" or
tool_choice | {"type": "function", "function": {"name": "then"}} | tool_choice: expected the functions of tools, got "then"
tool_choice | {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}} | tool_choice: expected
response_format | {"type": "json_object"} | response_format: expected none beside tools
chat_template_kwargs | {"tools": []} | chat_template_kwargs: expected variables of the chat template, got "tools"
messages | [{"role": "tool", "content": "a"}] | messages: expected "tool_call_id" in a message of a tool, got none
messages | [{"role": "user", "content": "a", "tool_call_id": "a"}] | got "tool_call_id"
messages | [{"role": "user", "content": null}] | messages: expected "content", got none
messages | [{"role": "user", "content": "a", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}] | got "tool_calls"
messages | [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "now", "arguments": "[1]"}}]}] | messages: arguments of "now": expected a JSON object, got [1]
"##;
