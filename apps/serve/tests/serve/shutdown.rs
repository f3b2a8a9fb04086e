//! The end of the server: accepted requests are answered, and no others.

use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::process::{Server, ends, rest};
use crate::slow::{LONG_ANSWERS, long_answer};

fn logged(logs: &[String], message: &str) -> bool {
    let logs = logs.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    logs.into_iter().any(|log| log["message"] == message)
}

#[test]
fn sigterm_answers_what_was_accepted() {
    const CLIENTS: usize = 8;
    let server = Server::start(&["--max-batch-tokens", "256"]);
    let texts: Vec<String> =
        (0..120).map(|index| format!("{index} {}", "word ".repeat(50))).collect();
    let body = json!({"inputs": texts});
    let expected = server.ok("/embed", &body);
    std::thread::scope(|scope| {
        let ask = || assert_eq!(server.ok("/embed", &body), expected);
        let _threads = [(); CLIENTS].map(|()| scope.spawn(ask));
        server.wait_until("all requests are in the queue", |server| {
            let texts = server.metric("texts_total") + server.metric("queue_length");
            texts >= (120 * (CLIENTS + 1)) as f64 - 6.
        });
        server.signal("TERM");
    });
    let logs = server.wait_for_success();
    assert!(logged(&logs, "all accepted requests are answered"), "{logs:?}");
}

#[test]
fn a_request_that_is_not_complete_is_told_so() {
    let server = Server::start(&[]);
    let (mut stream, tail) = server.begin();
    server.signal("TERM");
    // The request was not accepted before: its texts were not known.
    server.wait_until("the end has begun", |server| server.status("/health") != Some(200));
    stream.write_all(tail.as_bytes()).unwrap();
    let reply = rest(stream);
    assert!(reply.starts_with("HTTP/1.1 503"), "{reply}");
    assert!(reply.to_lowercase().contains("retry-after: 1"), "{reply}");
    let body = "{\"error\":\"the server is shutting down\",\"error_type\":\"Unhealthy\"}";
    assert!(reply.ends_with(body), "{reply}");
    server.wait_for_success();
}

#[test]
fn sigint_ends_idle_connections() {
    let server = Server::start(&[]);
    // The client keeps its connection open.
    server.ok("/embed", &json!({"inputs": "a"}));
    let idle = server.connect("");
    server.signal("INT");
    ends(idle);
    server.wait_for_success();
}

#[test]
fn the_time_for_the_end_is_limited() {
    let server = Server::start(&[&["--shutdown-seconds", "1"], &LONG_ANSWERS[..]].concat());
    // The request was accepted, and stays unanswered while nobody reads.
    let mut stream = long_answer(&server, 4096, 1);
    stream.read_exact(&mut [0]).unwrap();
    server.signal("TERM");
    let (status, logs) = server.wait();
    assert_eq!(status.code(), Some(1), "{logs:?}");
    let expected = "--shutdown-seconds: expected accepted requests to be answered within 1 s";
    assert!(logs.last().unwrap().contains(expected), "{logs:?}");
}
