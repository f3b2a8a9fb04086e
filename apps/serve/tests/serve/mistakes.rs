//! Mistakes on the command line: a message that names the fault, and no panic.

use std::fs;
use std::process::Output;

use candle_dynquant_support::rows;
use serde_json::json;

use crate::process::{Server, command};

const ASSETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/bert");

fn run(options: &[&str]) -> Output {
    command().args(options).output().unwrap()
}

#[test]
fn are_named() {
    let cases = r#"
--default-prompt-name query | --default-prompt-name: the model has no prompts, got "query"
--model {assets}/decoder --default-prompt query: | --default-prompt-name: expected a model of embeddings of texts in --model, got a decoder
--model {assets}/reference/images/dinov2 --max-tokens 9 | --max-tokens: expected a model of embeddings of texts in --model, got a model of pictures
--preset int5 | expected one of int8, int8_reduce_range, int8_groups, int4, pytorch, per_channel, float16, bfloat16, onnxruntime, none, got "int5"
--port 70000 | --port
--queue 0 | expected a whole number from 1
--max-bytes 2000000 | --max-bytes: expected at least 2097152, which --max-body-bytes allows a body, got 2000000
--log-level loud | --log-level
--model /no/such/folder | --model: /no/such/folder: expected a folder with config.json
--model {assets} | config.json: expected a readable file
--max-tokens 65 | --max-tokens: expected at most 64, which the model takes, got 65
--max-tokens 3 | --max-tokens: tokens of a text: expected a limit of 4 or more, got 3
--host no.such.host.invalid | --host, --port: expected an address to listen on, got no.such.host.invalid:8080
"#;
    let cases = cases.replace("{assets}", concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets"));
    for [options, expected] in rows(&cases) {
        let output = run(&options.split(' ').collect::<Vec<_>>());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{options:?}: {stderr}");
        assert!(stderr.contains(expected), "{options:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{options:?}: {stderr}");
    }
}

/// Sums of attention in 8 bits have at most 65,536 terms, however many positions the model has.
#[test]
fn the_tokens_of_attention_in_int8_are_limited() {
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/decoder");
    let dir = concat!(env!("CARGO_TARGET_TMPDIR"), "/long-decoder");
    fs::create_dir_all(dir).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), format!("{dir}/{}", entry.file_name().display())).unwrap();
    }
    let config = format!("{dir}/config.json");
    let mut changed: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    changed["max_position_embeddings"] = json!(100_000);
    fs::write(config, changed.to_string()).unwrap();
    let output = run(&["--model", dir, "--attention", "int8", "--max-tokens", "65537"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let expected = "--max-tokens: expected at most 65536, which the model takes, got 65537";
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
fn a_port_in_use_is_named() {
    let server = Server::start(&[]);
    let (_, port) = server.address.rsplit_once(':').unwrap();
    let output = run(&["--port", port]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains(&format!("got 127.0.0.1:{port}")), "{stderr}");
}

#[test]
fn a_folder_is_served_as_it_is() {
    let server = Server::start(&["--model", ASSETS, "--preset", "none"]);
    let body = json!({"inputs": "Terminal text editor"});
    assert_eq!(server.ok("/predict", &body)[0]["label"], "editors");
    let info = server.get("/info").json();
    assert_eq!((&info["model_dtype"], &info["model_id"]), (&json!("none"), &json!("bert")));
}

#[test]
fn a_model_without_classes_says_so() {
    let dir = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-classes");
    fs::create_dir_all(dir).unwrap();
    let read = |file: &str| fs::read(format!("{ASSETS}/{file}")).unwrap();
    let write = |file: &str, bytes: &[u8]| fs::write(format!("{dir}/{file}"), bytes).unwrap();
    write("tokenizer.json", &read("tokenizer.json"));
    let config = String::from_utf8(read("config.json")).unwrap();
    let config = config.replace("BertForSequenceClassification", "BertModel");
    write("config.json", config.as_bytes());
    // Another name of the same length for the tensors of the head.
    let (from, to) = (b"\"classifier.", b"\"qa_outputs.");
    let mut weights = read("model.safetensors");
    let places = weights.windows(from.len()).enumerate();
    let places = places.filter_map(|(place, window)| (window == from).then_some(place));
    for place in places.collect::<Vec<_>>() {
        weights[place..place + to.len()].copy_from_slice(to);
    }
    write("model.safetensors", &weights);

    let server = Server::start(&["--model", dir]);
    server.ok("/embed", &json!({"inputs": "a"}));
    let info = server.get("/info").json();
    let expected = json!({"pooling": "mean", "sparse": false, "inputs": ["text"]});
    assert_eq!(info["model_type"], json!({"embedding": expected}));
    let reply = server.post("/predict", &json!({"inputs": "a"}));
    assert_eq!(reply.status, 424);
    assert_eq!(reply.json()["error_type"], "Backend");
    assert!(reply.message().contains("no classification head"));
}
