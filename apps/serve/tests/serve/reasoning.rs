//! Variables of the chat template, and reasoning apart from the answer.

use serde_json::{Value, json};

use crate::generate::{CHAT, COMPLETIONS, events, joined, write_model};
use crate::process::Server;

/// A template that opens the reasoning, unless `enable_thinking` is false.
const TEMPLATE: &str = "{% for message in messages %}{{ message.content }}{% endfor %}\
     {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n\
     {% elif style | default('') == 'loud' %}!{% else %}<think>\n{% endif %}";

fn chat(variables: Value) -> Value {
    json!({"messages": [{"role": "user", "content": "In those days"}], "max_tokens": 20, "temperature": 0,
        "chat_template_kwargs": variables})
}

#[test]
fn reasoning_is_apart_and_variables_reach_the_template() {
    let server = Server::start(&["--model", &write_model("reasoning", TEMPLATE)]);
    let written = |end: &str| {
        let body =
            json!({"prompt": format!("In those days{end}"), "max_tokens": 20, "temperature": 0});
        let answer = server.ok(COMPLETIONS, &body);
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    for (variables, end, is_reasoning) in [
        (json!(null), "<think>\n", true),
        (json!({}), "<think>\n", true),
        (json!({"enable_thinking": true}), "<think>\n", true),
        (json!({"enable_thinking": false}), "<think>\n\n</think>\n\n", false),
        (json!({"style": "loud"}), "!", false),
    ] {
        let body = chat(variables);
        let message = &server.ok(CHAT, &body)["choices"][0]["message"];
        let text = written(end);
        let expected =
            if is_reasoning { [json!(text.trim()), json!("")] } else { [Value::Null, json!(text)] };
        let got = [&message["reasoning_content"], &message["content"]];
        assert_eq!(got, [&expected[0], &expected[1]], "{body}");
        let parts = events(&server, CHAT, &body);
        assert_eq!(joined(&parts, "content"), expected[1].as_str().unwrap());
        let reasoning = expected[0].as_str().unwrap_or_default();
        assert_eq!(joined(&parts, "reasoning_content"), reasoning);
    }
    // What the template does not read, or gets anyway, is refused by name.
    for name in
        ["thinking", "messages", "bos_token", "message", "content", "for", "loop", "default", "1"]
    {
        let reply = server.post(CHAT, &chat(json!({name: true})));
        for words in ["chat_template_kwargs", name] {
            reply.says(400, words);
        }
    }
    // A variable writes no special token, and is given once.
    let reply = server.post(CHAT, &chat(json!({"style": ["a", "<|endoftext|>"]})));
    reply.says(400, "\"style\"");
    let twice = r#"{"messages": [], "chat_template_kwargs": {"style": 1, "style": 2}}"#;
    server.post_text(CHAT, twice).says(400, "duplicate");
}
