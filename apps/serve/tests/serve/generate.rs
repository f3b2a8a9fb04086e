//! Generated texts: the same bits alone and among others, whole and in parts, and within limits.

use std::io::Read;
use std::net::TcpStream;
use std::sync::LazyLock;
use std::thread::scope;

use candle_dynquant_support::rows;
use serde_json::{Value, json};

use crate::process::{ASSETS, Reply, Server, change, copy_model, failure, request, rest};

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";

/// The small Llama, with a chat template.
static MODEL: LazyLock<String> = LazyLock::new(|| {
    const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n\
        {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    write_model("chat", TEMPLATE)
});

/// The small Llama with a chat template, in a folder for a test.
pub fn write_model(name: &str, template: &str) -> String {
    let dir = copy_model("decoder", name);
    std::fs::write(format!("{dir}/chat_template.jinja"), template).unwrap();
    dir
}

/// Templates that exhaust the stack or the memory end only their process, and special tokens in a
/// message are text.
#[test]
fn a_template_cannot_end_the_server() {
    for nested in ["not ".repeat(200_000), "1+".repeat(400_000)] {
        let dir = write_model("hostile", &format!("{{{{ {nested} 1 }}}}"));
        let error = failure(&["--model", &dir]);
        assert!(error.contains("chat template"), "{error}");
    }
    let dir = write_model(
        "hostile",
        "{% set ns = namespace(x='ab') %}{% if messages[0].content == 'own' %}{% set ns.x = ns %}\
        {% elif messages[0].content == 'long' %}\
        {% for _ in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% endif %}{{ ns.x ~ '' }}\
        {{ messages[0].content }}",
    );
    let server = Server::start(&["--model", &dir]);
    let chat = |text: &str| {
        let messages = json!([{"role": "user", "content": text}]);
        server.post(CHAT, &json!({"messages": messages, "max_tokens": 1}))
    };
    let tokens = |text: &str| chat(text).json()["usage"]["prompt_tokens"].as_u64().unwrap();
    for hostile in ["own", "long"] {
        chat(hostile).says(400, "chat template: expected a result within");
        assert_eq!(chat("a").status, 200);
    }
    assert!(tokens("a<|endoftext|>b") > tokens("a b") + 3);
}

pub fn serve(options: &[&str]) -> Server {
    Server::start(&[&["--model", &**MODEL], options].concat())
}

/// The events of a stream, without the final `[DONE]`.
pub fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let reply = server.post(path, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let events = reply.body.strip_suffix("data: [DONE]\n\n").expect("an end");
    let data = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    events.split_terminator("\n\n").map(data).collect()
}

/// The texts of a field in the parts of a streamed chat, concatenated.
pub fn joined(parts: &[Value], field: &str) -> String {
    let deltas = parts.iter().map(|part| &part["choices"][0]["delta"][field]);
    deltas.filter_map(Value::as_str).collect()
}

/// A text of about `words` words from the Bible.
fn prompt(index: usize, words: usize) -> String {
    const VERSE: &str = "And the LORD spake unto Moses in the wilderness of Sinai, in the tabernacle \
        of the congregation, on the first day of the second month, saying, Take ye the sum of all ";
    let all = VERSE.split(' ').cycle().skip(index * 3);
    all.take(words).collect::<Vec<_>>().join(" ")
}

/// Requests to both routes with all kinds of sampling; some prompts are longer than a piece of 128
/// tokens.
fn requests() -> Vec<(&'static str, Value)> {
    let request = |index: usize| {
        let words = [2 + index % 9, 100][usize::from(index % 11 == 5)];
        let sampling = match index % 3 {
            0 => json!({"temperature": 0}),
            1 => json!({"seed": index, "temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5}),
            _ => json!({"seed": index, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1}),
        };
        let (path, mut body) = match index % 2 {
            0 => (COMPLETIONS, json!({"prompt": prompt(index, words), "logprobs": 5})),
            _ => {
                let said = json!({"role": "user", "content": prompt(index, words)});
                (CHAT, json!({"messages": [said], "logprobs": true, "top_logprobs": 3}))
            }
        };
        body["max_tokens"] = json!(40 + index % 13);
        body.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
        (path, body)
    };
    (0..33).map(request).collect()
}

/// The parts of an answer that do not identify it.
pub fn content(answer: &Value) -> String {
    json!([answer["choices"], counts(answer)]).to_string()
}

/// The numbers of tokens, but not of those that were found in the cache.
fn counts(answer: &Value) -> Value {
    let mut usage = answer["usage"].clone();
    usage["prompt_tokens_details"].take();
    usage
}

/// The answers to all requests, each sent after the answer to the one before it.
fn one_by_one(server: &Server, requests: &[(&'static str, Value)]) -> Vec<String> {
    requests.iter().map(|(path, body)| content(&server.ok(path, body))).collect()
}

/// The answers to all requests at a time: each arrives while those before it are written.
fn together(server: &Server, requests: &[(&'static str, Value)]) -> Vec<String> {
    scope(|scope| {
        let ask = |(path, body)| scope.spawn(move || content(&server.ok(path, body)));
        let threads: Vec<_> = requests.iter().map(|(path, body)| ask((*path, body))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The library's instruction sets that this processor certainly has.
fn isas() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        return vec!["portable", "avx2"];
    }
    vec!["portable"]
}

#[test]
fn an_answer_has_the_bits_that_it_has_alone() {
    let requests = requests();
    let alone = one_by_one(&serve(&[]), &requests);
    for (isa, threads) in isas().into_iter().flat_map(|isa| [(isa, "1"), (isa, "2")]) {
        let [of_rayon, of_candle] = ["RAYON", "CANDLE"].map(|of| format!("{of}_NUM_THREADS"));
        let variables = [("DYNQUANT_ISA", isa), (&*of_rayon, threads), (&*of_candle, threads)];
        let server = Server::start_in(&["--model", &MODEL], &variables);
        for (index, answer) in together(&server, &requests).into_iter().enumerate() {
            let case = format!("{isa}, {threads} threads, request {index}");
            assert_eq!(answer, alone[index], "{case}");
        }
        // Proves that texts were computed together.
        let steps = server.metric("step_texts_count");
        let small = server.metric("step_texts_bucket{le=\"8.0\"}");
        assert!(small < steps, "{steps} steps, none of more than 8 texts");
    }
}

/// Also of float models, where activations share a scale, and with attention in 8 bits: a query does
/// not depend on other queries, nor on the number of keys that it does not attend to.
#[test]
fn every_arithmetic_has_the_same_bits_too() {
    let requests = requests();
    for (options, count) in [
        (["--preset", "none"], 9),
        (["--preset", "onnxruntime"], 9),
        (["--attention", "int8"], requests.len()),
    ] {
        let (server, requests) = (serve(&options), &requests[..count]);
        let alone = one_by_one(&server, requests);
        assert_eq!(together(&server, requests), alone, "{options:?}");
        if options[0] == "--attention" {
            // The arithmetic differs from float.
            let float = one_by_one(&serve(&["--attention", "float32"]), &requests[5..6]);
            assert_ne!(float[0], alone[5]);
        }
    }
}

#[test]
fn a_stream_has_the_parts_of_the_whole() {
    let server = serve(&[]);
    for (path, mut body) in requests().into_iter().take(8) {
        body["max_tokens"] = json!(40);
        body["stop"] = json!(["the L", ", and of"]);
        let whole = server.ok(path, &body);
        let plain = events(&server, path, &body);
        assert!(plain.iter().all(|event| event.get("usage").is_none()));
        body["stream_options"] = json!({"include_usage": true});
        let parts = events(&server, path, &body);
        let (last, parts) = parts.split_last().unwrap();
        assert_eq!((&last["choices"], counts(last)), (&json!([]), counts(&whole)));
        assert_eq!(parts.len(), plain.len());

        let (mut text, mut logged) = (String::new(), Vec::new());
        let key = if path == CHAT { "content" } else { "tokens" };
        for part in parts {
            assert_eq!((&part["usage"], &part["id"]), (&Value::Null, &parts[0]["id"]));
            let choice = &part["choices"][0];
            let piece = if path == CHAT { &choice["delta"]["content"] } else { &choice["text"] };
            text.push_str(piece.as_str().unwrap_or_default());
            logged.extend(choice["logprobs"][key].as_array().unwrap().clone());
        }
        let (choice, end) = (&whole["choices"][0], &parts[parts.len() - 1]["choices"][0]);
        let expected = if path == CHAT { &choice["message"]["content"] } else { &choice["text"] };
        assert_eq!(&json!(text), expected);
        assert_eq!(json!(logged), choice["logprobs"][key]);
        assert_eq!(end["finish_reason"], choice["finish_reason"]);
        let object = ["text_completion", "chat.completion.chunk"][usize::from(path == CHAT)];
        assert_eq!(parts[0]["object"], object);
    }
}

#[test]
fn a_text_ends_before_its_stop_string() {
    let server = serve(&[]);
    let mut body = json!({"prompt": "And God said", "max_tokens": 60, "temperature": 0});
    let whole = server.ok(COMPLETIONS, &body);
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 60);
    body["logprobs"] = json!(0);
    let mut cut_tokens = 0;
    for start in (1..text.len() - 7).filter(|start| text.is_char_boundary(*start)).step_by(9) {
        let stop: String = text[start..].chars().take(6).collect();
        body["stop"] = json!(["never", stop]);
        let choice = &server.ok(COMPLETIONS, &body)["choices"][0];
        let expected = &text[..text.find(&stop).unwrap()];
        assert_eq!(choice["text"], expected, "{stop:?}");
        assert_eq!(choice["finish_reason"], "stop");
        // The remaining tokens begin before the stop string.
        let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
        let written: String = tokens.iter().map(|token| token.as_str().unwrap()).collect();
        assert!(written.starts_with(expected), "{written:?}, {expected:?}");
        cut_tokens += usize::from(written != expected);
    }
    assert!(cut_tokens > 0, "no stop string began within a token");
}

#[test]
fn prompts_of_all_kinds_are_continued() {
    let server = serve(&["--model-name", "small"]);
    let base = json!({"model": "small", "max_tokens": 8, "temperature": 0});
    let with = |name: &str, value: Value| {
        let mut body = base.clone();
        body[name] = value;
        body
    };
    let texts = ["And he said", "In those days"];
    let each = texts.map(|text| {
        let answer = server.ok(COMPLETIONS, &with("prompt", json!(text)));
        assert_eq!(json!([answer["model"], answer["object"]]), json!(["small", "text_completion"]));
        answer["choices"][0]["text"].clone()
    });
    let both = server.ok(COMPLETIONS, &with("prompt", json!(texts)));
    let choices = both["choices"].as_array().unwrap();
    for (index, (choice, text)) in choices.iter().zip(&each).enumerate() {
        assert_eq!((&choice["index"], &choice["text"]), (&json!(index), text));
    }
    assert_eq!((choices.len(), &both["usage"]["completion_tokens"]), (2, &json!(16)));
    let streamed = events(&server, COMPLETIONS, &with("prompt", json!(texts)));
    for (index, text) in each.iter().enumerate() {
        let choices = streamed.iter().map(|part| &part["choices"][0]);
        let choices = choices.filter(|choice| choice["index"] == index);
        let streamed: String = choices.map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(&json!(streamed), text);
    }
    let ids = server.ok(COMPLETIONS, &with("prompt", json!([33, 70, 68])));
    let lists = server.ok(COMPLETIONS, &with("prompt", json!([[33, 70, 68], [5]])));
    assert_eq!(ids["usage"]["prompt_tokens"], 3);
    assert_eq!(lists["choices"][0], ids["choices"][0]);

    // A chat is a prompt in the template; parts and the newer name of a role are equivalent.
    let said = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Who "}, {"type": "text", "text": "art thou?"}]},
    ]);
    let chat = server.ok(CHAT, &with("messages", said));
    let rendered = "system: Be brief.\nuser: Who art thou?\nassistant:";
    let text = server.ok(COMPLETIONS, &with("prompt", json!(rendered)));
    let message = &chat["choices"][0]["message"];
    assert_eq!(json!([message["role"], chat["object"]]), json!(["assistant", "chat.completion"]));
    assert_eq!(message["content"], text["choices"][0]["text"]);
    assert_eq!(chat["usage"], text["usage"]);

    // The seed decides; without a seed answers differ.
    let drawn = |seed: Value| {
        let mut body = with("prompt", json!("And"));
        body["temperature"] = json!(1.5);
        body["seed"] = seed;
        body["max_tokens"] = json!(30);
        server.ok(COMPLETIONS, &body)["choices"][0]["text"].clone()
    };
    assert_eq!(drawn(json!(-7)), drawn(json!(-7)));
    assert_ne!(drawn(json!(1)), drawn(json!(2)));
    assert_ne!(drawn(Value::Null), drawn(Value::Null));
}

#[test]
fn log_probabilities_are_those_of_the_scores() {
    let server = serve(&[]);
    let body = json!({
        "messages": [{"role": "user", "content": "Why?"}],
        "max_tokens": 12, "temperature": 0, "logprobs": true, "top_logprobs": 20,
    });
    let answer = server.ok(CHAT, &body);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 12);
    let (mut text, mut bytes) = (String::new(), Vec::new());
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 20);
        // Without a penalty the most likely token is taken.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&entry["token"], &entry["logprob"]));
        let logs: Vec<f64> = top.iter().map(|top| top["logprob"].as_f64().unwrap()).collect();
        assert!(logs.is_sorted_by(|a, b| a >= b) && logs[0] < 0.);
        let sum: f64 = logs.iter().map(|log| log.exp()).sum();
        assert!(sum > 0.3 && sum < 1. + 1e-9, "{sum}");
        text.push_str(entry["token"].as_str().unwrap());
        bytes.extend(entry["bytes"].as_array().unwrap().clone());
    }
    assert_eq!(answer["choices"][0]["message"]["content"], text);
    assert_eq!(json!(text.as_bytes()), json!(bytes));
}

/// Sends a request on a new connection, whose answer nobody has read.
pub fn begin(server: &Server, path: &str, body: &Value) -> TcpStream {
    server.connect(request(path, "Connection: close\r\n", &body.to_string()))
}

/// A request for long texts that no token ends.
fn long(stream: bool) -> Value {
    json!({"prompt": "And", "max_tokens": 1000, "temperature": 2, "seed": 3, "stream": stream,
        "repetition_penalty": 1.3})
}

/// Six long prompts take 6,000 steps here; a short prompt that comes later is answered while most
/// of their tokens are unread.
#[test]
fn a_long_prompt_holds_up_no_short_one() {
    let server = serve(&["--prefill-tokens", "1"]);
    let body = json!({"prompt": [5, 6], "max_tokens": 2, "temperature": 0});
    let alone = content(&server.ok(COMPLETIONS, &body));
    let long = json!({"prompt": vec![7; 1000], "max_tokens": 4, "stream": true});
    let clients = [(); 6].map(|()| begin(&server, COMPLETIONS, &long));
    server.wait_for(&[("sequences_running", 6.)]);
    assert_eq!(content(&server.ok(COMPLETIONS, &body)), alone);
    let read = server.metric("prompt_tokens_total");
    assert!(read < 5000., "{read}");
    let answers = clients.map(rest);
    assert!(answers.iter().all(|answer| answer.contains("[DONE]")), "{answers:?}");
}

#[test]
fn attention_in_8_bits_limits_positions() {
    let dir = copy_model("decoder", "positions");
    let positions = |number: usize| format!("\"max_position_embeddings\": {number}");
    change(&dir, "config.json", &positions(1024), &positions(100_000));
    for (attention, most) in [("int8", 65_536), ("bfloat16", 100_000)] {
        let options = ["--model", &dir, "--attention", attention, "--max-tokens", "100001"];
        let error = failure(&options);
        let expected = format!("--max-tokens: expected at most {most}, which the model takes");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn who_hangs_up_frees_the_cache() {
    // Few texts at a time, so that some wait.
    let server = serve(&["--max-sequences", "6", "--no-prefix-cache"]);
    for is_stream in [true, false] {
        let clients: Vec<TcpStream> =
            (0..9).map(|_| begin(&server, COMPLETIONS, &long(is_stream))).collect();
        let bytes = f64::from(6 * 1024 * 2048);
        let all = [("sequences_running", 6.), ("sequences_waiting", 3.), ("cache_bytes", bytes)];
        server.wait_for(&all);
        drop(clients);
        server.wait_for(&[("cache_bytes", 0.), ("sequences_waiting", 0.)]);
        server.wait_for(&[("queue_length", 0.), ("requests_in_flight", 0.)]);
    }
    // Most of the tokens were never written.
    let written = server.metric("generated_tokens_total");
    assert!(written < 12_000., "{written}");
    server.ok(COMPLETIONS, &json!({"prompt": "And"}));
}

#[test]
fn a_full_queue_is_refused() {
    let server = serve(&["--queue", "2", "--max-sequences", "1"]);
    let clients = [(); 2].map(|()| begin(&server, COMPLETIONS, &long(true)));
    server.wait_for(&[("sequences_waiting", 1.)]);
    let reply = server.post(COMPLETIONS, &json!({"prompt": "And"}));
    reply.says(429, "the queue of 2");
    assert_eq!(reply.retry_after.as_deref(), Some("1"));
    assert_eq!(reply.json()["error"]["code"], "rate_limit_exceeded");
    drop(clients);
    server.wait_for(&[("queue_length", 0.)]);
    server.ok(COMPLETIONS, &json!({"prompt": "And"}));
}

/// The bytes of 128 tokens, from the error of a server with too few.
fn page(attention: &str) -> usize {
    let options = ["--model", &MODEL, "--attention", attention, "--cache-bytes", "1000"];
    let error = failure(&options);
    let (_, bytes) = error.split_once("--cache-bytes: expected at least ").expect(&error);
    bytes.split(',').next().unwrap().parse().expect(&error)
}

/// A cache for 512 tokens: texts of 129 to 256 take two of four pages.
#[test]
fn texts_wait_for_room_in_the_cache() {
    // Four layers, two heads of 32 inputs, keys and values.
    let rows = 128 * 4 * 2 * 2;
    let float = page("float32");
    assert_eq!(float, rows * 32 * 4);
    assert_eq!(page("bfloat16"), rows * 32 * 2);
    // A code for each input, a scale, and at most two more numbers of packed weights.
    let codes = page("int8");
    assert!((rows * (32 + 4)..=rows * (32 + 12)).contains(&codes), "{codes}");
    wait_for_room("float32", float);
    wait_for_room("int8", codes);
}

fn wait_for_room(attention: &str, page: usize) {
    let budget = (4 * page + 127).to_string();
    let server = serve(&["--attention", attention, "--cache-bytes", &budget]);
    assert_eq!(server.get("/info").json()["max_input_length"], 511);
    let body = json!({"prompt": "And", "max_tokens": 200, "temperature": 0});
    let expected = content(&server.ok(COMPLETIONS, &body));
    let most = scope(|scope| {
        let ask = || assert_eq!(content(&server.ok(COMPLETIONS, &body)), expected);
        let threads = [(); 8].map(|()| scope.spawn(ask));
        let mut most = 0_f64;
        while threads.iter().any(|thread| !thread.is_finished()) {
            most = most.max(server.metric("cache_bytes"));
        }
        most as usize
    });
    assert_eq!(most, 4 * page, "{attention}");
}

#[test]
fn streams_end_before_the_server() {
    let server = serve(&[]);
    let mut body = long(true);
    body["max_tokens"] = json!(300);
    let mut stream = begin(&server, COMPLETIONS, &body);
    let mut first = [0; 15];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    server.signal("TERM");
    let all = rest(stream);
    assert!(all.contains("\"finish_reason\":\"length\""), "{all}");
    assert!(all.contains("data: [DONE]"), "{all}");
    server.wait_for_success();
}

#[test]
fn what_is_not_supported_is_named() {
    let server = serve(&[]);
    let post = |mut body: Value, name: &str, value: Value| {
        body[name] = value;
        server.post(if body["messages"].is_null() { COMPLETIONS } else { CHAT }, &body)
    };
    let prompt = |name: &str, value| post(json!({"prompt": "And", "max_tokens": 1}), name, value);
    let question = json!({"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 1});
    let chat = |name: &str, value| post(question.clone(), name, value);
    let value = |json| serde_json::from_str(json).expect(json);
    for [name, json] in rows(NEUTRAL) {
        assert_eq!(chat(name, value(json)).status, 200, "{name}");
    }
    let refused = |reply: Reply, expected: &str| {
        reply.says(400, expected);
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    };
    for [name, json, expected] in rows(OF_PROMPTS) {
        refused(prompt(name, value(json)), expected);
    }
    let long = prompt("prompt", json!(vec![5; 1024]));
    refused(long, "the prompt: expected at most 1023 tokens, got 1024");
    let long = "é\u{1}".repeat(100_000);
    let got = "stop: expected at most 16 strings of 1 to 1024 bytes, got one of 300000 bytes";
    refused(prompt("stop", json!(["a", long])), got);
    let stops: Vec<String> = (0..16).map(|index| format!("{index}").repeat(500)).collect();
    assert_eq!(prompt("stop", json!(stops)).status, 200);
    // A name is cut, so that the reason remains readable.
    let reply = prompt(&long, json!(long));
    assert!(reply.body.len() < 3000, "{} bytes", reply.body.len());
    refused(reply, "..: not supported: expected no such field, got \"é");
    let said = |count| json!(vec![json!({"role": "user", "content": ""}); count]);
    let expected = "the prompt: expected at most 1023 tokens, got";
    refused(chat("messages", said(1024)), expected);
    let expected = "messages: expected at most 1024, the model's tokens, got 20000";
    refused(chat("messages", said(20_000)), expected);
    for [name, json, expected] in rows(OF_CHATS) {
        refused(chat(name, value(json)), expected);
    }
    let reply = server.post(COMPLETIONS, &json!({"prompt": vec![5; 2000]}));
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(prompt("model", json!("gpt-5")).status, 404);
    for (path, body) in [
        ("/v1/embeddings", json!({"input": "a"})),
        ("/embed", json!({"inputs": "a"})),
        ("/predict", json!({"inputs": "a"})),
    ] {
        let message = server.post(path, &body).message();
        assert_eq!(message, "the model has no embeddings and classes: it generates texts");
    }
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.metric("queue_length"), 0.);

    let embeddings = Server::start(&[]);
    let reply = embeddings.post(COMPLETIONS, &json!({"prompt": "And"}));
    assert_eq!(reply.message(), "the model generates no texts: it answers with embeddings");
    let base = Server::start(&["--model", &format!("{ASSETS}/decoder")]);
    base.post(CHAT, &question).says(400, "no chat template");
}

/// Fields that change nothing.
const NEUTRAL: &str = r#"
user | "me"
logit_bias | {}
n | 1
tools | []
response_format | {"type": "text"}
stop | null
service_tier | "auto"
never_heard_of | null
"#;

const OF_PROMPTS: &str = r#"
n | 2 | n: expected 1, got 2
logit_bias | {"5": 1} | logit_bias: not supported: expected {}, got
echo | true | echo: not supported: expected false, got true
best_of | 3 | best_of: not supported
never_heard_of | 1 | never_heard_of: not supported: expected no such field
logprobs | 6 | logprobs: expected at most 5, got 6
temperature | 2.1 | temperature: expected a number from 0 to 2, got 2.1
top_p | -0.1 | top_p: expected a number from 0 to 1
top_k | -2 | top_k: expected -1, 0 or more, got -2
frequency_penalty | 3 | frequency_penalty: expected a number from -2
repetition_penalty | 0 | repetition_penalty: expected a number from 0.01
max_tokens | 0 | max_tokens: expected 1 or more, got 0
max_completion_tokens | 2 | expected the same as max_tokens, 1, got 2
stop | ["a", ""] | stop: expected at most 16 strings of 1 to 1024 bytes, got one of 0 bytes
stop | ["0","1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g"] | got 17 strings
stream_options | {} | stream_options: expected "stream": true
prompt | [] | prompt: expected at least one text, got none
prompt | "" | prompt: expected at least one text, got none
prompt | [1024] | prompt: expected token ids below 1024, got 1024
prompt | [1, "a"] | expected a string, a list of strings, a list of token
"#;

const OF_CHATS: &str = r#"
messages | [] | messages: expected at least one text
messages | [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}] | expected a string, or a list of parts of type "text"
messages | [{"role": "critic", "content": "a"}] | messages: expected role system, developer, user, assistant or tool, got "critic"
messages | [{"role": "user", "content": "a", "name": "b"}] | messages: expected "role" and "content", got "name"
messages | [{"role": "user", "content": [{"type": "text", "text": "a", "image_url": {}}]}] | messages: expected "type" and "text", got "image_url"
messages | [{"role": "user", "content": [["text", "a"]]}] | expected a string, or a list of parts of type "text"
top_logprobs | 2 | top_logprobs: expected "logprobs": true
tools | [{}] | tools[0]: missing field `type`
response_format | {"type": "xml"} | unknown variant `xml`
response_format | {"type": "json_object", "strict": true} | unknown field `strict`
response_format | {"type": "json_schema", "json_schema": {"schema": {"not": {}}}} | response_format: Unimplemented keys: ["not"]
response_format | {"type": "json_schema", "json_schema": {"schema": {"pattern": "("}}} | response_format: regex
"#;
