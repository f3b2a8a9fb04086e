//! Mistakes on the command line: a message that names the fault, and no panic.

use candle_dynquant_support::rows;
use serde_json::json;

use crate::models::serve;
use crate::process::{ASSETS, Server, failure};

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
    for [options, expected] in rows(&cases.replace("{assets}", ASSETS)) {
        let error = failure(&options.split(' ').collect::<Vec<_>>());
        assert!(error.contains(expected), "{options:?}: {error}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let server = Server::start(&[]);
    let (_, port) = server.address.rsplit_once(':').unwrap();
    let error = failure(&["--port", port]);
    assert!(error.contains(&format!("got 127.0.0.1:{port}")), "{error}");
}

#[test]
fn a_folder_is_served_as_it_is() {
    let model = format!("{ASSETS}/bert");
    let server = Server::start(&["--model", &model, "--preset", "none"]);
    let body = json!({"inputs": "Terminal text editor"});
    assert_eq!(server.ok("/predict", &body)[0]["label"], "editors");
    let info = server.get("/info").json();
    assert_eq!((&info["model_dtype"], &info["model_id"]), (&json!("none"), &json!("bert")));
}

#[test]
fn a_model_without_classes_says_so() {
    let server = serve("bert", &[]);
    server.ok("/embed", &json!({"inputs": "a"}));
    let reply = server.post("/predict", &json!({"inputs": "a"}));
    reply.says(424, "no classification head");
    assert_eq!(reply.json()["error_type"], "Backend");
}
