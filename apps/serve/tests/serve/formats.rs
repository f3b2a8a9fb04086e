//! The requests and answers of each route, including errors.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use candle_dynquant_support::rows;
use serde_json::{Value, json};

use crate::process::Server;

const TEXT: &str = "Real-time strategy game of ancient warfare";

pub fn floats(value: &Value) -> Vec<f32> {
    let numbers = value.as_array().unwrap().iter();
    numbers.map(|x| x.as_f64().unwrap() as f32).collect()
}

pub fn length(embedding: &[f32]) -> f32 {
    embedding.iter().map(|x| x * x).sum::<f32>().sqrt()
}

#[test]
fn openai_embeddings() {
    let server = Server::start(&[]);
    let one = json!({"model": "debian-sections", "input": TEXT, "user": "someone"});
    let one = server.ok("/v1/embeddings", &one);
    assert_eq!((&one["object"], &one["model"]), (&json!("list"), &json!("debian-sections")));
    assert_eq!(one["usage"]["prompt_tokens"], one["usage"]["total_tokens"]);
    let tokens = one["usage"]["total_tokens"].as_u64().unwrap();
    assert!((8..20).contains(&tokens), "{tokens}");
    assert_eq!(one["data"].as_array().unwrap().len(), 1);
    let datum = &one["data"][0];
    assert_eq!((&datum["object"], &datum["index"]), (&json!("embedding"), &json!(0)));
    let embedding = floats(&datum["embedding"]);
    assert_eq!(embedding.len(), 128);
    assert!((length(&embedding) - 1.).abs() < 1e-5);

    let list = json!({"model": "debian-sections", "input": ["a text", TEXT], "dimensions": 128,
        "encoding_format": "float"});
    let list = server.ok("/v1/embeddings", &list);
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
    assert_eq!(list["data"][1]["index"], 1);
    assert_eq!(list["data"][1]["embedding"], datum["embedding"]);
    assert!(list["usage"]["total_tokens"].as_u64().unwrap() > tokens);

    let coded = json!({"input": TEXT, "encoding_format": "base64"});
    let coded = server.ok("/v1/embeddings", &coded);
    let bytes: Vec<u8> = embedding.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(coded["data"][0]["embedding"], BASE64_STANDARD.encode(bytes));
}

#[test]
fn token_ids_are_taken_as_they_are() {
    let server = Server::start(&[]);
    let embed = |inputs: Value| server.ok("/embed", &json!({"inputs": inputs}));
    let one = embed(json!([2, 100, 101, 3]));
    let two = embed(json!([[2, 100, 101, 3], [2, 100, 3]]));
    assert_eq!(one.as_array().unwrap().len(), 1);
    assert_eq!(two[0], one[0]);
    assert_ne!(two[1], one[0]);
    let of_openai = server.ok("/v1/embeddings", &json!({"input": [2, 100, 101, 3]}));
    assert_eq!(of_openai["data"][0]["embedding"], one[0]);
    assert_eq!(of_openai["usage"]["total_tokens"], 4);
    let unknown = server.post("/embed", &json!({"inputs": [2, 4800, 3]}));
    unknown.is(422, "inputs: expected token ids below 4800, got 4800");
}

#[test]
fn openai_models() {
    let server =
        Server::start(&["--model-name", "text-embedding-3-small", "--model-name", "other"]);
    let models = server.get("/v1/models").json();
    let created = &models["data"][0]["created"];
    let model = |name: &str| {
        let owned_by = "dynquant-serve";
        json!({"id": name, "object": "model", "created": created, "owned_by": owned_by})
    };
    let both = [model("text-embedding-3-small"), model("other")];
    assert_eq!(models, json!({"object": "list", "data": both}));
    assert!(created.as_u64().unwrap() > 1_700_000_000);
    assert_eq!(server.get("/v1/models/other").json(), both[1]);
    let answer = server.ok("/v1/embeddings", &json!({"model": "other", "input": "a"}));
    assert_eq!(answer["model"], "text-embedding-3-small");

    let body = json!({"model": "debian-sections", "input": "a"});
    for reply in [server.get("/v1/models/debian-sections"), server.post("/v1/embeddings", &body)] {
        let expected = "model: expected text-embedding-3-small or other, got \"debian-sections\"";
        reply.is(404, expected);
        let error = &reply.json()["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    }
}

#[test]
fn tei_embed() {
    let server = Server::start(&[]);
    let one = server.ok("/embed", &json!({"inputs": TEXT}));
    let list = json!({"inputs": [TEXT, "a text"], "normalize": true});
    let list = server.ok("/embed", &list);
    assert_eq!(one[0], list[0]);
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert!((length(&floats(&one[0])) - 1.).abs() < 1e-5);
    let raw = server.ok("/embed", &json!({"inputs": TEXT, "normalize": false}));
    assert!((length(&floats(&raw[0])) - 1.).abs() > 0.1);

    let long = "word ".repeat(100);
    let cut = |direction: &str| {
        let body = json!({"inputs": long, "truncate": true, "truncation_direction": direction});
        server.ok("/embed", &body)
    };
    assert_eq!(cut("right"), cut("Left"));
    let whole = json!({"inputs": "word ".repeat(62)});
    assert_eq!(cut("Right"), server.ok("/embed", &whole));
}

#[test]
fn tei_predict() {
    let server = Server::start(&[]);
    let one = server.ok("/predict", &json!({"inputs": TEXT}));
    let scores = one.as_array().unwrap().iter();
    let scores: Vec<f64> = scores.map(|class| class["score"].as_f64().unwrap()).collect();
    assert_eq!(one[0]["label"], "games");
    assert_eq!(scores.len(), 35);
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores[0] > 0.5);
    assert!((scores.iter().sum::<f64>() - 1.).abs() < 1e-5);
    let raw = server.ok("/predict", &json!({"inputs": TEXT, "raw_scores": true}));
    assert!(raw[0]["score"].as_f64().unwrap() > 1.);

    // The root route does what the model is made for.
    assert_eq!(server.ok("/", &json!({"inputs": TEXT})), one);
    // A list of strings is a text or a pair; a list of lists is a batch.
    assert_eq!(server.ok("/predict", &json!({"inputs": [TEXT]})), one);
    // As huggingface_hub 2 asks.
    assert_eq!(server.ok("/predict", &json!({"inputs": TEXT, "parameters": {}})), one);
    let asked = json!({"inputs": TEXT, "parameters": {"top_k": 1}});
    assert_eq!(server.post("/predict", &asked).status, 422);
    let pair = server.ok("/predict", &json!({"inputs": [TEXT, "a game"]}));
    let batch = server.ok("/predict", &json!({"inputs": [["a text"], [TEXT, "a game"], [TEXT]]}));
    assert_eq!(batch.as_array().unwrap().len(), 3);
    assert_eq!((&batch[1], &batch[2]), (&pair, &one));
    assert_ne!(pair, one);
    for inputs in [json!(["a", "b", "c"]), json!([["a", "b", "c"]])] {
        assert_eq!(server.post("/predict", &json!({"inputs": inputs})).status, 422);
    }
}

#[test]
fn info_and_health() {
    let server = Server::start(&["--max-texts", "7", "--auto-truncate"]);
    let info = server.get("/info").json();
    let fields = ["model_id", "model_dtype", "max_input_length", "max_client_batch_size"];
    assert_eq!(json!(fields.map(|field| &info[field])), json!(["debian-sections", "int8", 64, 7]));
    assert_eq!(info["auto_truncate"], true);
    assert_eq!(info["model_type"]["classifier"]["id2label"]["5"], "games");
    assert_eq!(info["model_type"]["classifier"]["label2id"]["games"], 5);
    let health = server.get("/health");
    assert_eq!((health.status, health.body.as_str()), (200, ""));
    // The option cuts, and so does the request.
    let long = "word ".repeat(100);
    server.ok("/v1/embeddings", &json!({"input": long}));
    let whole = json!({"inputs": long, "truncate": false});
    assert_eq!(server.post("/embed", &whole).status, 422);
}

#[test]
fn metrics_count_what_happens() {
    let server = Server::start(&[]);
    server.ok("/embed", &json!({"inputs": ["a", "b", "c"]}));
    server.ok("/embed", &json!({"inputs": "d"}));
    assert_eq!(server.get("/no/such/path").status, 404);
    let text = server.get("/metrics").body;
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE dynquant_"));
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    let expected = "batch_duration_seconds histogram, batch_texts histogram, batch_tokens histogram, \
        bytes_held gauge, connections gauge, queue_duration_seconds histogram, queue_length gauge, \
        request_duration_seconds histogram, requests counter, requests_in_flight gauge, texts counter, \
        tokens counter";
    assert_eq!(names.join(", "), expected);
    assert!(text.ends_with("# EOF\n"));
    assert_eq!(["texts_total", "batch_texts_sum"].map(|name| server.metric(name)), [4.; 2]);
    // A request may end just after its answer is read; the metrics have a separate connection.
    server.wait_for(&[("queue_length", 0.), ("requests_in_flight", 0.), ("bytes_held", 0.)]);
    server.wait_for(&[("connections", 1.)]);
    let requests = |labels: &str| server.metric(&format!("requests_total{{{labels}}}"));
    assert_eq!(requests("route=\"/embed\",status=\"200\""), 2.);
    assert_eq!(requests("route=\"other\",status=\"404\""), 1.);
}

#[test]
fn errors_have_the_format_of_their_route() {
    let server = Server::start(&[]);
    let cases = r#"
400 | /v1/embeddings | {"input":
400 | /v1/embeddings | {"model": "debian-sections"}
400 | /v1/embeddings | {"input": []}
400 | /v1/embeddings | {"input": ""}
400 | /v1/embeddings | {"input": ["a", 1]}
400 | /v1/embeddings | {"input": "a", "encoding_format": "hex"}
400 | /v1/embeddings | {"input": "a", "dimensions": 129}
400 | /v1/embeddings | {"input": "a", "normalize": false}
404 | /v1/responses | {}
422 | /embed | {"inputs":
422 | /embed | {"inputs": {}}
400 | /embed | {"inputs": []}
400 | /embed | {"inputs": ["a", ""]}
422 | /embed | {"inputs": "a", "dimensions": 0}
422 | /embed | {"inputs": "a", "encoding_format": "base64"}
422 | /embed_all | {"inputs": "a", "normalize": false}
422 | /embed | {"inputs": "a", "prompt_name": "query"}
400 | /predict | {"inputs": []}
422 | /predict | {"inputs": 1}
422 | /predict | {"inputs": "a", "top_k": 1}
422 | /rerank | {}
400 | /embeddings | {}
404 | /embed_spare | {}
405 | /health | {}
"#;
    for [status, path, body] in rows(cases) {
        let status = status.parse::<u16>().unwrap();
        let reply = server.post_text(path, body);
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.body);
        let error = reply.json();
        if path.starts_with("/v1/") || path == "/embeddings" {
            assert!(error["error"]["message"].is_string(), "{error}");
            assert_eq!(error["error"]["type"], "invalid_request_error");
            assert!(error["error"].get("param").is_some() && error["error"].get("code").is_some());
        } else {
            let kind = if status == 400 { "Empty" } else { "Validation" };
            assert_eq!(error["error_type"], kind, "{error}");
        }
        assert!(!reply.message().is_empty());
    }
    let reply = server.post("/v1/embeddings", &json!({"input": "a", "dimensions": 129}));
    reply.is(400, "dimensions: expected 1 to 128, which the model has, got 129");
    let reply = server.post("/embed", &json!({"inputs": ["a", ""]}));
    reply.is(400, "inputs[1]: expected a text, got an empty one");
}
