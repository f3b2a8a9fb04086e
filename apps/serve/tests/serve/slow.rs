//! Slow clients: their connections end, and others are answered meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::process::{PATIENCE, Server, ends, request, rest};

/// A pause long enough that only slow clients are taken for slow.
const PAUSE: Duration = Duration::from_millis(50);

fn others_are_answered(server: &Server) {
    server.ok("/embed", &json!({"inputs": "a"}));
}

/// Sends a part repeatedly until the server ends the connection; returns what it said.
fn drip(mut stream: TcpStream, part: &[u8]) -> String {
    let start = Instant::now();
    stream.set_read_timeout(Some(PAUSE)).unwrap();
    let mut said = Vec::new();
    loop {
        assert!(start.elapsed() < PATIENCE, "the server goes on reading");
        let written = stream.write_all(part);
        let mut buffer = [0; 1024];
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => said.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if written.is_err() {
                    break;
                }
            }
            // A reset also ends the connection.
            Err(_) => break,
        }
    }
    String::from_utf8(said).unwrap()
}

#[test]
fn silence() {
    let server = Server::start(&["--idle-seconds", "1"]);
    for head in ["", "POST /embed HTTP/1.1\r\nHost: "] {
        let start = Instant::now();
        ends(server.connect(head));
        assert!(start.elapsed() < PATIENCE, "{head:?}");
        others_are_answered(&server);
    }
}

#[test]
fn heads() {
    let server = Server::start(&["--idle-seconds", "1"]);
    let stream = server.connect("POST /embed HTTP/1.1\r\n");
    assert_eq!(drip(stream, b"x: y\r\n"), "");
    others_are_answered(&server);
}

/// Only a part of each head is kept.
#[test]
#[cfg(target_os = "linux")]
fn heads_of_many() {
    const MANY: usize = 300;
    let server = Server::start(&["--idle-seconds", "5"]);
    let before = server.resident_mb();
    let part = format!("GET /health HTTP/1.1\r\nx: {}", "y".repeat(60_000));
    let slow: Vec<TcpStream> = (0..MANY).map(|_| server.connect(&part)).collect();
    let mut long = TcpStream::connect(&server.address).unwrap();
    // The server may not read everything.
    let _ = long.write_all(part.repeat(2).as_bytes());
    assert!(drip(long, b"").starts_with("HTTP/1.1 431"));
    others_are_answered(&server);
    let most = (MANY * 2 * 65_536) as f64 / 1e6;
    let grown = server.resident_mb() - before;
    assert!(grown < 10. + most, "{grown} MB");
    slow.into_iter().for_each(ends);
    others_are_answered(&server);
}

#[test]
fn bodies() {
    let server = Server::start(&["--transfer-seconds", "1", "--max-requests", "2"]);
    let head = "POST /embed HTTP/1.1\r\nHost: test\r\nContent-Length: 2000000\r\n\r\n";
    let stream = server.connect(head);
    let dripping = std::thread::spawn(|| drip(stream, b" "));
    others_are_answered(&server);
    let reply = dripping.join().unwrap();
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    assert!(reply.contains("the body: expected all of it within 1 s, got a part"), "{reply}");
}

/// Sends requests for answers of 1.5 kB per text. Sockets buffer some 4 MB.
pub fn long_answer(server: &Server, texts: usize, requests: usize) -> TcpStream {
    let body = json!({"inputs": vec!["a"; texts]}).to_string();
    server.connect(request("/embed", "", &body).repeat(requests))
}

pub const LONG_ANSWERS: [&str; 8] =
    ["--max-texts", "12288", "--queue", "12288", "--transfer-seconds", "5", "--max-requests", "1"];

/// Waits until an answer is begun: its bytes are counted while it is unread.
fn begins_to_be_answered(server: &Server, stream: &mut TcpStream) {
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    assert_eq!(server.metric("requests_in_flight"), 1.);
    assert!(server.metric("bytes_held") > 4e6);
    let reply = server.post("/embed", &json!({"inputs": "a"}));
    assert_eq!(reply.status, 429, "{}", reply.body);
}

fn is_over(server: &Server) {
    server.wait_for(&[("requests_in_flight", 0.), ("bytes_held", 0.)]);
    others_are_answered(server);
}

#[test]
fn readers() {
    let server = Server::start(&LONG_ANSWERS);
    let mut stream = long_answer(&server, 12_288, 1);
    begins_to_be_answered(&server, &mut stream);
    let (mut part, mut read) = (vec![0; 16 << 10], 0);
    // The server writes repeatedly, but not forever.
    while server.metric("bytes_held") > 0. {
        read += stream.read(&mut part).unwrap_or(0);
        assert!(read < 5_000_000, "the server goes on writing");
        sleep(PAUSE);
    }
    is_over(&server);
}

/// The second request of a connection begins only after the first is answered.
#[test]
fn readers_who_ask_on() {
    let server = Server::start(&LONG_ANSWERS);
    let mut stream = long_answer(&server, 4096, 2);
    begins_to_be_answered(&server, &mut stream);
    is_over(&server);
}

/// A client that reads in time gets the whole answer, however long it is.
#[test]
fn a_long_answer_is_read_whole() {
    let server = Server::start(&LONG_ANSWERS);
    let reply = server.ok("/embed", &json!({"inputs": vec!["a"; 4096]}));
    assert_eq!(reply.as_array().unwrap().len(), 4096);
}

#[test]
fn connections_that_are_too_many() {
    const MOST: usize = 20;
    let server = Server::start(&["--max-connections", "20", "--idle-seconds", "5"]);
    let connect = |_| server.connect("");
    let idle: Vec<TcpStream> = (0..MOST).map(connect).collect();
    for (path, kind) in [
        ("/health", "\"error_type\":\"Overloaded\""),
        ("/v1/models", "\"code\":\"rate_limit_exceeded\""),
    ] {
        let reply = rest(server.connect(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")));
        assert!(reply.starts_with("HTTP/1.1 429"), "{reply}");
        assert!(reply.contains("overloaded: expected at most 20 connections at a time"), "{reply}");
        assert!(reply.contains(kind) && reply.contains("retry-after: 1"), "{reply}");
    }
    // More connections than get a refusal.
    let more: Vec<TcpStream> = (0..200).map(connect).collect();
    idle.into_iter().chain(more).for_each(ends);
    server.wait_until("a place is free", |server| server.status("/health") == Some(200));
    others_are_answered(&server);
}
