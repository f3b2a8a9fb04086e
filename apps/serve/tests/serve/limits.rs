//! Each limit, and the answer beyond it.

use std::io::{Read, Write};

use serde_json::json;

use crate::process::{Server, rest};

fn text_of(words: usize) -> String {
    "word ".repeat(words)
}

#[test]
fn texts_of_a_request() {
    let server = Server::start(&["--max-texts", "3"]);
    let texts = |count| vec!["a"; count];
    server.ok("/embed", &json!({"inputs": texts(3)}));
    let tei = server.post("/embed", &json!({"inputs": texts(4)}));
    tei.is(422, "inputs: expected at most 3 texts, got 4");
    let openai = server.post("/v1/embeddings", &json!({"input": texts(5)}));
    openai.is(400, "input: expected at most 3 texts, got 5");
    let batch: Vec<_> = texts(4).into_iter().map(|text| vec![text]).collect();
    assert_eq!(server.post("/predict", &json!({"inputs": batch})).status, 422);
}

#[test]
fn tokens_of_a_text() {
    let server = Server::start(&["--max-tokens", "10"]);
    server.ok("/embed", &json!({"inputs": text_of(8)}));
    let long = json!({"inputs": ["a", text_of(9)]});
    server.post("/embed", &long).is(422, "inputs[1]: expected at most 10 tokens, got 11");
    let reply = server.post("/v1/embeddings", &json!({"input": text_of(2000)}));
    reply.is(400, "input: expected at most 10 tokens, got 2002");
    // Places in the queue are freed after a refusal.
    server.ok("/embed", &json!({"inputs": text_of(8)}));
}

#[test]
fn bytes_of_a_body() {
    let server = Server::start(&["--max-body-bytes", "1000"]);
    let body = |length: usize| format!("{:<length$}", json!({"inputs": "a"}).to_string());
    assert_eq!(server.post_text("/embed", &body(1000)).status, 200);
    for (path, length) in [("/embed", 1001), ("/v1/embeddings", 1001), ("/embed", 7000)] {
        let message = format!("the body: expected at most 1000 bytes, got {length}");
        server.post_text(path, &body(length)).is(413, &message);
    }
    // A chunked body of unknown length.
    let head = "POST /embed HTTP/1.1\r\nHost: test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = body(700);
    let chunk = format!("{:x}\r\n{chunk}\r\n", chunk.len());
    let reply = rest(server.connect(format!("{head}{chunk}{chunk}0\r\n\r\n")));
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    assert!(reply.contains("the body: expected at most 1000 bytes, got more"), "{reply}");
}

#[test]
fn requests_at_a_time() {
    let server = Server::start(&["--max-requests", "1"]);
    let (mut stream, tail) = server.begin();
    for (path, body) in [
        ("/embed", json!({"inputs": "a"})),
        ("/predict", json!({"inputs": "a"})),
        ("/v1/embeddings", json!({"input": "a"})),
    ] {
        let reply = server.post(path, &body);
        reply.is(429, "overloaded: expected at most 1 requests at a time, got one more");
        assert_eq!(reply.retry_after.as_deref(), Some("1"));
        let error = reply.json();
        match path {
            "/v1/embeddings" => assert_eq!(error["error"]["code"], "rate_limit_exceeded"),
            _ => assert_eq!(error["error_type"], "Overloaded"),
        }
    }
    // Operators are answered meanwhile.
    assert_eq!(server.get("/health").status, 200);
    stream.write_all(tail.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    // The client may be faster than the server, which frees the place after writing the answer.
    server.wait_until("no place for a request", |server| {
        server.post("/embed", &json!({"inputs": "a"})).status == 200
    });
}

#[test]
fn places_in_the_queue() {
    let server = Server::start(&["--queue", "64"]);
    let texts: Vec<String> = (0..60).map(|index| format!("{index} {}", text_of(50))).collect();
    let body = json!({"inputs": texts});
    let expected = server.ok("/embed", &body);
    let replies = std::thread::scope(|scope| {
        let flood = || (0..4).map(|_| server.post("/embed", &body)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(flood)).collect();
        let replies = threads.into_iter().map(|thread| thread.join().unwrap());
        replies.flatten().collect::<Vec<_>>()
    });
    let (answered, refused): (Vec<_>, Vec<_>) =
        replies.into_iter().partition(|reply| reply.status == 200);
    assert!(!answered.is_empty() && !refused.is_empty(), "{}", answered.len());
    for reply in answered {
        assert_eq!(reply.json(), expected);
    }
    for reply in refused {
        reply.says(429, "the room left in the queue of 64, got 60");
        assert_eq!(reply.retry_after.as_deref(), Some("1"));
    }
    // More texts than places are not an overload: they would never fit.
    let reply = server.post("/embed", &json!({"inputs": vec!["a"; 65]}));
    reply.is(422, "inputs: expected at most 64 texts, got 65");
    assert_eq!(server.ok("/embed", &body), expected);
}

/// A message may quote a whole body, and its answer may never be read.
#[test]
fn length_of_a_message() {
    let server = Server::start(&[]);
    let long = "\u{1}é\"".repeat(20_000);
    for reply in [
        server.post("/v1/embeddings", &json!({"input": "a", "model": long})),
        server.post("/embed", &json!({"inputs": "a", "prompt_name": long})),
        server.post("/embed", &json!({"inputs": "a", "truncation_direction": long})),
        server.get(&format!("/v1/models/{}", "a".repeat(50_000))),
        server.get(&format!("/{}", "a".repeat(50_000))),
    ] {
        assert!((400..500).contains(&reply.status), "{}", reply.status);
        let message = reply.message();
        let end = &message[message.len() - 2..];
        assert_eq!((message.len() / 100, end), (10, ".."));
    }
}
