//! Generated texts: the same bits alone and among others, whole and in parts, and within limits.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Once;
use std::thread::scope;

use candle_dynquant_support::rows;
use serde_json::{Value, json};

use crate::process::{PATIENCE, Server, command, rest};

pub const ASSETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/decoder");
pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";

/// The small Llama, with a chat template.
fn model() -> &'static str {
    const DIR: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/chat");
    const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n\
        {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    static MADE: Once = Once::new();
    MADE.call_once(|| write_model(DIR, TEMPLATE));
    DIR
}

pub fn write_model(dir: &str, template: &str) {
    fs::create_dir_all(dir).unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(Path::new(ASSETS).join(file), Path::new(dir).join(file)).unwrap();
    }
    fs::write(Path::new(dir).join("chat_template.jinja"), template).unwrap();
}

/// Templates that exhaust the stack or the memory end only their process, and special tokens in a
/// message are text.
#[test]
fn a_template_cannot_end_the_server() {
    const DIR: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/hostile");
    for nested in ["not ".repeat(200_000), "1+".repeat(400_000)] {
        write_model(DIR, &format!("{{{{ {nested} 1 }}}}"));
        let output = command().args(["--model", DIR]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("chat template"), "{error}");
    }
    write_model(
        DIR,
        "{% set ns = namespace(x='ab') %}{% if messages[0].content == 'own' %}{% set ns.x = ns %}\
        {% elif messages[0].content == 'long' %}\
        {% for _ in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% endif %}{{ ns.x ~ '' }}\
        {{ messages[0].content }}",
    );
    let server = Server::start(&["--model", DIR]);
    let chat = |text: &str| {
        let messages = json!([{"role": "user", "content": text}]);
        server.post(CHAT, &json!({"messages": messages, "max_tokens": 1}))
    };
    let tokens = |text: &str| chat(text).json()["usage"]["prompt_tokens"].as_u64().unwrap();
    for hostile in ["own", "long"] {
        let reply = chat(hostile);
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.body.contains("chat template: expected a result within"), "{}", reply.body);
        assert_eq!(chat("a").status, 200);
    }
    assert!(tokens("a<|endoftext|>b") > tokens("a b") + 3);
}

pub fn serve(options: &[&str]) -> Server {
    Server::start(&[&["--model", model()], options].concat())
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
            _ => (
                CHAT,
                json!({
                    "messages": [{"role": "user", "content": prompt(index, words)}],
                    "logprobs": true,
                    "top_logprobs": 3,
                }),
            ),
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
    let ask = |(path, body): &(&str, Value)| content(&server.ok(path, body));
    requests.iter().map(ask).collect()
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
        let server = Server::start_in(
            &["--model", model()],
            &[
                ("DYNQUANT_ISA", isa),
                ("RAYON_NUM_THREADS", threads),
                ("CANDLE_NUM_THREADS", threads),
            ],
        );
        for (index, answer) in together(&server, &requests).into_iter().enumerate() {
            let case = format!("{isa}, {threads} threads, request {index}");
            assert_eq!(answer, alone[index], "{case}");
        }
        // Proves that texts were computed together.
        let steps = server.metric("dynquant_step_texts_count");
        let small = server.metric("dynquant_step_texts_bucket{le=\"8.0\"}");
        assert!(small < steps, "{steps} steps, none of more than 8 texts");
    }
}

/// A query does not depend on other queries, nor on the number of keys that it does not attend to.
#[test]
fn attention_in_8_bits_has_the_same_bits_too() {
    let server = serve(&["--attention", "int8"]);
    let requests = requests();
    let alone = one_by_one(&server, &requests);
    assert_eq!(together(&server, &requests), alone);
    // The arithmetic differs from float.
    let float = serve(&["--attention", "float32"]);
    let (path, body) = &requests[5];
    assert_ne!(content(&float.ok(path, body)), alone[5]);
}

#[test]
fn float_models_and_a_shared_scale_have_the_same_bits_too() {
    for preset in ["none", "onnxruntime"] {
        let server = serve(&["--preset", preset]);
        let requests = &requests()[..9];
        let alone = one_by_one(&server, requests);
        assert_eq!(together(&server, requests), alone, "{preset}");
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
        assert_eq!(
            (&answer["model"], &answer["object"]),
            (&json!("small"), &json!("text_completion"))
        );
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
    assert_eq!(
        (&message["role"], &chat["object"]),
        (&json!("assistant"), &json!("chat.completion"))
    );
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
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = body.to_string();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    stream
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
    server.wait_until("six are read", |server| server.metric("dynquant_sequences_running") == 6.);
    assert_eq!(content(&server.ok(COMPLETIONS, &body)), alone);
    let read = server.metric("dynquant_prompt_tokens_total");
    assert!(read < 5000., "{read}");
    let answers = clients.map(rest);
    assert!(answers.iter().all(|answer| answer.contains("[DONE]")), "{answers:?}");
}

#[test]
fn attention_in_8_bits_limits_positions() {
    const DIR: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/positions");
    fs::create_dir_all(DIR).unwrap();
    let read = |file| fs::read(Path::new(ASSETS).join(file)).unwrap();
    let write = |file: &str, bytes| fs::write(Path::new(DIR).join(file), bytes).unwrap();
    write("tokenizer.json", read("tokenizer.json"));
    write("model.safetensors", read("model.safetensors"));
    let mut config: Value = serde_json::from_slice(&read("config.json")).unwrap();
    config["max_position_embeddings"] = json!(100_000);
    write("config.json", config.to_string().into());
    for (attention, most) in [("int8", 65_536), ("bfloat16", 100_000)] {
        let options = ["--model", DIR, "--attention", attention, "--max-tokens", "100001"];
        let output = crate::process::command().args(options).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let expected = format!("--max-tokens: expected at most {most}, which the model takes");
        assert!(stderr.contains(&expected), "{stderr}");
    }
}

#[test]
fn who_hangs_up_frees_the_cache() {
    // Few texts at a time, so that some wait.
    let server = serve(&["--max-sequences", "6", "--no-prefix-cache"]);
    for is_stream in [true, false] {
        let clients: Vec<TcpStream> =
            (0..9).map(|_| begin(&server, COMPLETIONS, &long(is_stream))).collect();
        server.wait_until("texts are written", |server| {
            server.metric("dynquant_sequences_running") == 6.
                && server.metric("dynquant_sequences_waiting") == 3.
                && server.metric("dynquant_cache_bytes") == f64::from(6 * 1024 * 2048)
        });
        drop(clients);
        server.wait_until("the cache is free", |server| {
            server.metric("dynquant_cache_bytes") == 0.
                && server.metric("dynquant_sequences_waiting") == 0.
                && server.metric("dynquant_queue_length") == 0.
                && server.metric("dynquant_requests_in_flight") == 0.
        });
    }
    // Most of the tokens were never written.
    let written = server.metric("dynquant_generated_tokens_total");
    assert!(written < 12_000., "{written}");
    server.ok(COMPLETIONS, &json!({"prompt": "And"}));
}

#[test]
fn a_full_queue_is_refused() {
    let server = serve(&["--queue", "2", "--max-sequences", "1"]);
    let clients = [(); 2].map(|()| begin(&server, COMPLETIONS, &long(true)));
    server.wait_until("one waits", |server| server.metric("dynquant_sequences_waiting") == 1.);
    let reply = server.post(COMPLETIONS, &json!({"prompt": "And"}));
    assert_eq!((reply.status, reply.retry_after.as_deref()), (429, Some("1")));
    assert!(reply.message().contains("the queue of 2"), "{}", reply.message());
    assert_eq!(reply.json()["error"]["code"], "rate_limit_exceeded");
    drop(clients);
    server.wait_until("the queue is free", |server| server.metric("dynquant_queue_length") == 0.);
    server.ok(COMPLETIONS, &json!({"prompt": "And"}));
}

/// The bytes of 128 tokens, from the error of a server with too few.
fn page(attention: &str) -> usize {
    let few = crate::process::command()
        .args(["--model", model(), "--attention", attention])
        .args(["--cache-bytes", "1000"])
        .output();
    let stderr = String::from_utf8(few.unwrap().stderr).unwrap();
    let (_, bytes) = stderr.split_once("--cache-bytes: expected at least ").expect(&stderr);
    let bytes = bytes.split(',').next().unwrap();
    bytes.parse().expect(&stderr)
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
    let most = std::sync::Mutex::new(0f64);
    let body = json!({"prompt": "And", "max_tokens": 200, "temperature": 0});
    let expected = content(&server.ok(COMPLETIONS, &body));
    scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| content(&server.ok(COMPLETIONS, &body)))).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            let bytes = server.metric("dynquant_cache_bytes");
            let mut most = most.lock().unwrap();
            *most = most.max(bytes);
        }
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
    let most = *most.lock().unwrap() as usize;
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
    let (status, _) = server.wait();
    assert!(status.success());
}

#[test]
fn what_is_not_supported_is_named() {
    let server = serve(&[]);
    let prompt = |name: &str, value: Value| {
        let mut body = json!({"prompt": "And", "max_tokens": 1});
        body[name] = value;
        (COMPLETIONS, body)
    };
    let chat = |name: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 1});
        body[name] = value;
        (CHAT, body)
    };
    for (name, value) in [
        ("user", json!("me")),
        ("logit_bias", json!({})),
        ("n", json!(1)),
        ("tools", json!([])),
        ("response_format", json!({"type": "text"})),
        ("stop", Value::Null),
        ("service_tier", json!("auto")),
        ("never_heard_of", Value::Null),
    ] {
        let (path, body) = chat(name, value);
        server.ok(path, &body);
    }
    let refused = |(path, body): (&str, Value), expected: &str| {
        let reply = server.post(path, &body);
        let message = reply.message();
        assert_eq!(reply.status, 400, "{expected}: {}", reply.body);
        assert!(message.contains(expected), "{expected}: {message}");
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    };
    let value = |json| serde_json::from_str(json).expect(json);
    let of_prompts = r#"
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
    for [name, json, expected] in rows(of_prompts) {
        refused(prompt(name, value(json)), expected);
    }
    let long = prompt("prompt", json!(vec![5; 1024]));
    refused(long, "the prompt: expected at most 1023 tokens, got 1024");
    let long = "é\u{1}".repeat(100_000);
    let got = "stop: expected at most 16 strings of 1 to 1024 bytes, got one of 300000 bytes";
    refused(prompt("stop", json!(["a", long])), got);
    let stops: Vec<String> = (0..16).map(|index| format!("{index}").repeat(500)).collect();
    let (path, body) = prompt("stop", json!(stops));
    server.ok(path, &body);
    // A name is cut, so that the reason remains readable.
    let (path, body) = prompt(&long, json!(long));
    let reply = server.post(path, &body);
    assert!(reply.body.len() < 3000, "{} bytes", reply.body.len());
    refused((path, body), "..: not supported: expected no such field, got \"é");
    let said = |count| json!(vec![json!({"role": "user", "content": ""}); count]);
    let expected = "the prompt: expected at most 1023 tokens, got";
    refused(chat("messages", said(1024)), expected);
    let expected = "messages: expected at most 1024, the model's tokens, got 20000";
    refused(chat("messages", said(20_000)), expected);
    let of_chats = r#"
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
    for [name, json, expected] in rows(of_chats) {
        refused(chat(name, value(json)), expected);
    }
    let reply = server.post(COMPLETIONS, &json!({"prompt": vec![5; 2000]}));
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    let (path, body) = prompt("model", json!("gpt-5"));
    assert_eq!(server.post(path, &body).status, 404);
    for (path, body) in [
        ("/v1/embeddings", json!({"input": "a"})),
        ("/embed", json!({"inputs": "a"})),
        ("/predict", json!({"inputs": "a"})),
    ] {
        let message = server.post(path, &body).message();
        assert_eq!(message, "the model has no embeddings and classes: it generates texts");
    }
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.metric("dynquant_queue_length"), 0.);

    let embeddings = Server::start(&[]);
    let reply = embeddings.post(COMPLETIONS, &json!({"prompt": "And"}));
    assert_eq!(reply.message(), "the model generates no texts: it answers with embeddings");
    let base = Server::start(&["--model", ASSETS]);
    let (path, body) = chat("temperature", json!(0));
    let message = base.post(path, &body).message();
    assert!(message.contains("no chat template"), "{message}");
}
