//! Prefixes: prompts that begin as an earlier text are read from there on, with the same bits.

use std::io::Read;
use std::thread::scope;

use serde_json::{Value, json};

use crate::generate::{CHAT, COMPLETIONS, begin, content, events, serve};
use crate::process::{Server, rest};

/// The bytes of 128 tokens of the small Llama in f32.
const PAGE_BYTES: usize = 128 * 2048;

/// Token ids by a seed; two seeds have no prefix in common.
fn tokens(seed: usize, count: usize) -> Vec<usize> {
    let token = |index| 3 + (seed * 79 + index * index * 31 + index * 104_729) % 1000;
    (0..count).map(token).collect()
}

/// A prompt of `count` tokens of the seed 0, and `rest` others that depend on both numbers.
fn prompt(count: usize, rest: usize) -> Vec<usize> {
    [tokens(0, count), tokens(1 + count + 7 * rest, rest)].concat()
}

fn request(prompt: &[usize], max_tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.7, "seed": prompt.len(),
        "repetition_penalty": 1.2, "logprobs": 5})
}

fn cached(answer: &Value) -> u64 {
    let details = &answer["usage"]["prompt_tokens_details"];
    details["cached_tokens"].as_u64().unwrap()
}

/// A server, and one that reads every prompt from its beginning.
fn pair(options: &[&str]) -> [Server; 2] {
    let alone = [options, &["--no-prefix-cache"]].concat();
    [serve(options), serve(&alone)]
}

/// Asks one server after the other; returns the tokens that the first found in its cache.
fn ask([server, alone]: &[Server; 2], path: &str, body: &Value) -> (u64, Value) {
    let (answer, expected) = (server.ok(path, body), alone.ok(path, body));
    assert_eq!(content(&answer), content(&expected), "{body}");
    assert_eq!(cached(&expected), 0);
    (cached(&answer), answer)
}

/// Asks for prompts, each of so many common tokens and others, and checks the tokens found.
fn check(options: &[&str], prompts: &[(usize, usize, u64)]) {
    let servers = pair(options);
    let mut sum = 0;
    for &(count, rest, expected) in prompts {
        let body = request(&prompt(count, rest), 24);
        let (found, _) = ask(&servers, COMPLETIONS, &body);
        assert_eq!(found, expected, "{options:?}, {count} and {rest}");
        sum += found;
    }
    let total = servers[0].metric("cached_prompt_tokens_total");
    assert_eq!(total as u64, sum);
}

/// The prompts of `check`: 128 tokens are a page, and the last token of a prompt is always read.
const PROMPTS: [(usize, usize, u64); 12] = [
    (300, 5, 0),
    (300, 5, 256),
    (280, 9, 256),
    (256, 0, 128),
    (257, 0, 256),
    (127, 9, 0),
    (128, 1, 128),
    (129, 0, 128),
    (640, 5, 256),
    (640, 6, 640),
    (383, 90, 256),
    (383, 90, 384),
];

#[test]
fn a_prefix_is_read_once() {
    for options in [
        &[][..],
        &["--attention", "bfloat16"],
        &["--prefill-tokens", "37"],
        &["--prefill-tokens", "2048"],
        &["--preset", "none", "--prefill-tokens", "96"],
    ] {
        check(options, &PROMPTS);
    }
    // Keys and values in 8 bits have no pages; the tokens of a piece may share a scale, and so
    // depend on the pieces.
    for options in [["--attention", "int8"], ["--preset", "onnxruntime"]] {
        check(&options, &PROMPTS.map(|(count, rest, _)| (count, rest, 0)));
    }
}

#[test]
fn turns_of_a_chat_are_read_once() {
    let servers = pair(&[]);
    let mut messages = vec![json!({"role": "system", "content": "Thou shalt answer. ".repeat(30)})];
    let mut before = 0;
    for turn in 0..6 {
        let question = format!("And what said he on day {turn} unto the people of Israel?");
        messages.push(json!({"role": "user", "content": question}));
        let mut body = json!({"messages": messages, "max_tokens": 60, "temperature": 0,
            "logprobs": true, "top_logprobs": 3});
        let (found, answer) = ask(&servers, CHAT, &body);
        // All of the turn before, up to what its template wrote last.
        assert!(found + 128 > before, "{found} of {before}");
        before = answer["usage"]["prompt_tokens"].as_u64().unwrap();

        body["stream_options"] = json!({"include_usage": true});
        let parts = events(&servers[0], CHAT, &body);
        assert_eq!(cached(parts.last().unwrap()), (before - 1) / 128 * 128);
        let text = &answer["choices"][0]["message"]["content"];
        messages.push(json!({"role": "assistant", "content": text}));
    }
}

/// Mostly the text of a continuation is split into the tokens that the model wrote.
#[test]
fn written_tokens_are_read_once() {
    for preset in ["int8", "none"] {
        let servers = pair(&["--preset", preset]);
        let (mut text, mut before, mut of_written) = ("In those days".to_owned(), 0, 0);
        for _ in 0..8 {
            let body = json!({"prompt": text, "max_tokens": 90, "temperature": 0, "logprobs": 5,
                "repetition_penalty": 1.1});
            let (found, answer) = ask(&servers, COMPLETIONS, &body);
            of_written += usize::from(found > before);
            before = answer["usage"]["prompt_tokens"].as_u64().unwrap();
            text += answer["choices"][0]["text"].as_str().unwrap();
        }
        assert!(of_written >= 4, "{preset}: {of_written}");
    }
}

/// Also those of a request of several prompts, and of a client that hangs up.
#[test]
fn running_texts_share_their_prefix_and_keep_their_bits() {
    let servers = pair(&[]);
    let [server, alone] = &servers;
    let mut long = request(&prompt(300, 5), 600);
    let expected = alone.ok(COMPLETIONS, &long);
    long["stream"] = json!(true);
    let running = begin(server, COMPLETIONS, &long);
    server.wait_until("a text is written", |it| it.metric("generated_tokens_total") > 20.);
    let mut many = request(&[], 60);
    many["prompt"] = json!([(300, 5), (290, 7), (9, 200), (200, 1)].map(|(a, b)| prompt(a, b)));
    let (found, _) = ask(&servers, COMPLETIONS, &many);
    assert_eq!(found, 256 + 256 + 128);
    let written = rest(running);
    let parts = written.split("data: ").filter_map(|part| {
        let part: Value = serde_json::from_str(part.lines().next()?).ok()?;
        Some(part["choices"][0]["text"].as_str()?.to_owned())
    });
    assert_eq!(expected["choices"][0]["text"], parts.collect::<String>());

    let mut abandoned = request(&tokens(5, 200), 700);
    abandoned["stream"] = json!(true);
    let mut client = begin(server, COMPLETIONS, &abandoned);
    client.read_exact(&mut [0; 1000]).unwrap();
    drop(client);
    server.wait_for(&[("sequences_running", 0.)]);
    let (found, _) = ask(&servers, COMPLETIONS, &request(&tokens(5, 200), 9));
    assert_eq!(found, 128);
}

/// 32 clients at a time, of which some hang up, and room for few prefixes.
#[test]
fn answers_are_those_without_a_cache() {
    let bytes = (14 * PAGE_BYTES).to_string();
    let [server, alone] = pair(&["--cache-bytes", &bytes]);
    let bodies: Vec<Value> = (0..48)
        .map(|index| {
            let stem = [0, 128, 140, 256, 300, 390, 512, 600][index * 5 % 8];
            let family = tokens(index % 3, stem);
            let rest = tokens(100 + index, 1 + index * 37 % 150);
            request(&[family, rest].concat(), 20 + index * 11 % 60)
        })
        .collect();
    let expected: Vec<String> =
        (bodies.iter()).map(|body| content(&alone.ok(COMPLETIONS, body))).collect();
    scope(|scope| {
        for client in 0..32 {
            let (server, bodies, expected) = (&server, &bodies, &expected);
            scope.spawn(move || {
                for round in 0..4 {
                    let index = (client * 7 + round * 13) % bodies.len();
                    if (client + round) % 5 == 0 {
                        let mut body = bodies[index].clone();
                        body["stream"] = json!(true);
                        let mut stream = begin(server, COMPLETIONS, &body);
                        // Some are waiting then, others are read or written.
                        stream.read_exact(&mut [0; 400]).unwrap();
                    } else {
                        let answer = server.ok(COMPLETIONS, &bodies[index]);
                        assert_eq!(content(&answer), expected[index], "{client}, {round}");
                    }
                }
            });
        }
    });
    server.wait_for(&[("queue_length", 0.), ("sequences_running", 0.)]);
    let read = server.metric("prompt_tokens_total");
    let found = server.metric("cached_prompt_tokens_total");
    assert!(found > 1000. && read > 1000., "{found} found, {read} read");
    // Only prefixes hold pages now.
    let held = server.metric("prefix_bytes");
    assert_eq!(server.metric("cache_bytes"), held);
    assert!(held > 0. && held <= (14 * PAGE_BYTES) as f64, "{held}");
}

/// Texts that take the whole cache: every other must leave it, and none fails or waits for ever.
#[test]
fn a_text_that_fits_is_never_refused() {
    let bytes = (4 * PAGE_BYTES).to_string();
    let servers = pair(&["--cache-bytes", &bytes]);
    ask(&servers, COMPLETIONS, &request(&tokens(9, 130), 100));
    // The page that is full stays.
    servers[0].wait_for(&[("cache_bytes", PAGE_BYTES as f64)]);
    let body = |seed| request(&tokens(seed, 400), 113);
    for (seed, expected) in [(1, 0), (2, 0), (2, 384), (1, 0)] {
        let (found, _) = ask(&servers, COMPLETIONS, &body(seed));
        assert_eq!(found, expected);
    }
    scope(|scope| {
        for client in 0..6 {
            let servers = &servers;
            scope.spawn(move || ask(servers, COMPLETIONS, &body(client / 2)));
        }
    });
}
