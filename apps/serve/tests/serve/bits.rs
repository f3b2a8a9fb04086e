//! Batches change nothing for a client: it gets the same bytes as alone.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::process::{ASSETS, Server};

const CLIENTS: usize = 200;
const ROUNDS: usize = 3;

/// Requests of all kinds, with texts of many lengths.
fn requests() -> Vec<(&'static str, Value)> {
    let lines = std::fs::read_to_string(format!("{ASSETS}/bert/heldout.tsv")).unwrap();
    let texts: Vec<&str> =
        (lines.lines().step_by(16)).map(|line| line.split_once('\t').unwrap().1).collect();
    let request = |(index, texts): (usize, &[&str])| match index % 5 {
        0 => ("/embed", json!({"inputs": texts[0]})),
        1 => ("/v1/embeddings", json!({"input": texts, "encoding_format": "base64"})),
        2 => ("/predict", json!({"inputs": [[texts[0]], [texts[0], texts[1]]]})),
        3 => ("/embed", json!({"inputs": texts, "normalize": false})),
        _ => {
            let long = texts.concat().repeat(2);
            ("/embed", json!({"inputs": [long, "a"], "truncate": true}))
        }
    };
    texts.chunks_exact(3).enumerate().map(request).collect()
}

#[test]
fn answers_to_200_clients_are_those_to_one() {
    let server = Server::start(&["--max-batch-tokens", "700"]);
    let requests = requests();
    assert!(requests.len() > 60);
    let ask = |index: usize| {
        let (path, body) = &requests[index];
        let reply = server.post(path, body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.body
    };
    let alone: Vec<String> = (0..requests.len()).map(ask).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let index = next.fetch_add(1, Ordering::Relaxed) % requests.len();
                    assert_eq!(ask(index), alone[index], "{:?}", requests[index]);
                }
            });
        }
    });
    // Proves that texts were computed together: no request has more than 3 texts.
    let batches = server.metric("batch_texts_count");
    let small = server.metric("batch_texts_bucket{le=\"8.0\"}");
    assert!(small < batches, "{batches} batches, none of more than 8 texts");
}
