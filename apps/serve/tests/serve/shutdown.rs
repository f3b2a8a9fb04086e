//! The end of the server: accepted requests are answered, and no others.

use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::process::{Server, rest};
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
        let ask = || server.post("/embed", &body);
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        server.wait_until("all requests are in the queue", |server| {
            let texts =
                server.metric("dynquant_texts_total") + server.metric("dynquant_queue_length");
            texts >= (120 * (CLIENTS + 1)) as f64 - 6.
        });
        server.signal("TERM");
        for thread in threads {
            let reply = thread.join().unwrap();
            assert_eq!(reply.status, 200, "{}", reply.body);
            assert_eq!(reply.json(), expected);
        }
    });
    let (status, logs) = server.wait();
    assert!(status.success(), "{status} {logs:?}");
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
    assert!(server.wait().0.success());
}

#[test]
fn sigint_ends_idle_connections() {
    let server = Server::start(&[]);
    // The client keeps its connection open.
    server.ok("/embed", &json!({"inputs": "a"}));
    let mut idle = std::net::TcpStream::connect(&server.address).unwrap();
    server.signal("INT");
    assert_eq!(idle.read(&mut [0]).unwrap_or(0), 0);
    let (status, logs) = server.wait();
    assert!(status.success(), "{status} {logs:?}");
}

#[test]
fn the_time_for_the_end_is_limited() {
    let mut options = vec!["--shutdown-seconds", "1"];
    options.extend(LONG_ANSWERS);
    let server = Server::start(&options);
    // The request was accepted, and stays unanswered while nobody reads.
    let mut stream = long_answer(&server, 4096, 1);
    stream.read_exact(&mut [0]).unwrap();
    server.signal("TERM");
    let (status, logs) = server.wait();
    assert_eq!(status.code(), Some(1), "{logs:?}");
    let last = logs.last().unwrap();
    assert!(
        last.contains("--shutdown-seconds: expected accepted requests to be answered within 1 s"),
        "{last}"
    );
}

#[test]
fn who_sends_no_request_is_not_waited_for() {
    let server = Server::start(&[]);
    let mut slow = std::net::TcpStream::connect(&server.address).unwrap();
    slow.write_all(b"POST /embed HTTP/1.1\r\nHost: ").unwrap();
    server.ok("/embed", &json!({"inputs": "a"}));
    server.signal("TERM");
    let (status, logs) = server.wait();
    assert!(status.success(), "{status} {logs:?}");
}
