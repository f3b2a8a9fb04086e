//! Clients that hang up, and floods: the memory of the server stays bounded, and other clients get
//! their usual answers or a refusal. `DYNQUANT_LONG=1` keeps each attack up for a minute.

use std::fmt;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use dynquant_embed::program::print::note;
use serde_json::{Value, json};

use crate::process::{PATIENCE, Server};

/// The number of attacking threads.
const ATTACKERS: usize = 4;

/// The most memory, in MB: of the idle server, of 16 bodies, and of tokenizing a body for each two
/// cores.
fn most_mb() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    250. * (1 + (cores / 2).max(1)) as f64
}

fn time() -> Duration {
    let long = std::env::var_os("DYNQUANT_LONG").is_some();
    Duration::from_secs(if long { 60 } else { 4 })
}

/// A request with more bytes than are tokenized on the fly.
fn of_others() -> Value {
    json!({"inputs": "a text editor ".repeat(86), "truncate": true})
}

/// A body of the largest size.
fn large_body() -> String {
    json!({"inputs": "word ".repeat(400_000), "truncate": true}).to_string()
}

fn post(body: &str) -> String {
    let length = body.len();
    format!("POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// Sends a request; the server may close the connection meanwhile, or be late.
fn send(stream: &mut TcpStream, request: &str) {
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(request.as_bytes());
}

/// The answers that other clients got during an attack.
struct Seen {
    /// The times of the answers, in order.
    answers: Vec<Duration>,
    refused: usize,
    attacks: usize,
    /// The memory of the server before, at its peak, and after.
    before_mb: f64,
    most_mb: f64,
    after_mb: f64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = &self.answers;
        let within = |percent: usize| {
            let answer = answers.get((answers.len() * percent / 100).max(1) - 1);
            answer.copied().unwrap_or_default()
        };
        write!(
            f,
            "{} attacks; {:.0} MB before, at most {:.0}, {:.0} after; others: {} refused, {} \
             answered, half of them within {:?}, 99 % within {:?}, all within {:?}",
            self.attacks,
            self.before_mb,
            self.most_mb,
            self.after_mb,
            self.refused,
            answers.len(),
            within(50),
            within(99),
            within(100),
        )
    }
}

/// Ends an attack when dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Attacks from several threads, while another client sends one request after the other.
fn under(server: &Server, attack: impl Fn() + Sync) -> Seen {
    let expected = server.post("/embed", &of_others());
    assert_eq!(expected.status, 200, "{}", expected.body);
    let before_mb = server.resident_mb();
    let (over, attacks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let is_over = || over.load(Ordering::Relaxed);
    let mut seen = scope(|scope| {
        for _ in 0..ATTACKERS {
            scope.spawn(|| {
                while !is_over() {
                    attack();
                    attacks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let memory = scope.spawn(|| {
            let mut most = 0_f64;
            while !is_over() {
                most = most.max(server.resident_mb());
                sleep(Duration::from_millis(20));
            }
            most
        });
        // Ends the attack also after a failed assertion, since the threads are waited for.
        let end = End(&over);
        let start = Instant::now();
        let (mut answers, mut refused) = (Vec::new(), 0);
        while start.elapsed() < time() {
            let asked = Instant::now();
            let reply = server.post("/embed", &of_others());
            match reply.status {
                200 => {
                    answers.push(asked.elapsed());
                    assert_eq!(reply.body, expected.body);
                }
                429 | 503 => refused += 1,
                status => panic!("{status} {}", reply.body),
            }
            sleep(Duration::from_millis(10));
        }
        drop(end);
        answers.sort();
        Seen {
            answers,
            refused,
            attacks: 0,
            before_mb,
            most_mb: memory.join().unwrap(),
            after_mb: 0.,
        }
    });
    seen.attacks = attacks.into_inner();
    // The attack leaves no trace.
    assert_eq!(server.post("/embed", &of_others()).body, expected.body);
    for gauge in ["dynquant_queue_length", "dynquant_requests_in_flight", "dynquant_bytes_held"] {
        server.wait_until(gauge, |server| server.metric(gauge) == 0.);
    }
    seen.after_mb = server.resident_mb();
    note(format_args!("{seen}"));
    seen
}

/// Large requests whose clients hang up. Other clients are never refused: no large request takes
/// their room.
fn hang_ups(options: &[&str], request: &str) {
    let server = Server::start(options);
    let seen = under(&server, || {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        send(&mut stream, request);
        sleep(Duration::from_millis(20));
        let _ = stream.shutdown(Shutdown::Both);
    });
    assert!(seen.attacks > ATTACKERS, "{seen}");
    assert!(!seen.answers.is_empty() && seen.refused == 0, "{seen}");
    assert!(seen.most_mb < most_mb(), "{seen}");
    server.signal("TERM");
    let (status, logs) = server.wait();
    assert!(status.success(), "{status} {logs:?}");
}

#[test]
fn clients_that_hang_up() {
    hang_ups(&[], &post(&large_body()));
}

/// A connection with a part of the next request pending hides that its client has gone.
#[test]
fn clients_that_hang_up_unseen() {
    let of_four_bodies = ["--max-bytes", "8388608"];
    hang_ups(&of_four_bodies, &(post(&large_body()) + "POST"));
}

#[test]
fn requests_beyond_all_limits() {
    let limits = ["--queue", "64", "--max-requests", "8", "--max-bytes", "4000000"];
    let server = Server::start(&limits);
    let short = |index: usize| format!("{index} {}", "word ".repeat(50));
    let texts: Vec<String> = (0..60).map(short).collect();
    // Eight of these exceed the limit of bytes, or of texts.
    let bodies = [
        json!({"inputs": texts}).to_string(),
        json!({"inputs": "word ".repeat(120_000), "truncate": true}).to_string(),
    ];
    let alone = bodies.each_ref().map(|body| server.post_text("/embed", body).body);
    let next = AtomicUsize::new(0);
    let refused = AtomicUsize::new(0);
    let seen = under(&server, || {
        scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let index = next.fetch_add(1, Ordering::Relaxed) % bodies.len();
                    let reply = server.post_text("/embed", &bodies[index]);
                    match reply.status {
                        200 => assert_eq!(reply.body, alone[index]),
                        status => {
                            assert_eq!(status, 429, "{}", reply.body);
                            assert_eq!(reply.retry_after.as_deref(), Some("1"));
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
    });
    assert!(refused.into_inner() > 0, "{seen}");
    assert!(seen.most_mb < most_mb(), "{seen}");
}

#[test]
fn the_end_comes_in_the_middle_of_it() {
    let server = Server::start(&["--shutdown-seconds", "10"]);
    let request = post(&large_body());
    let over = AtomicBool::new(false);
    // None of these ends within that time.
    let idle = begun(&server, b"");
    let slow_head = begun(&server, b"POST /embed HTTP/1.1\r\nHost: a");
    let (slow_body, _) = server.begin();
    let slow_reader = begun(&server, &b"GET /metrics HTTP/1.1\r\n\r\n".repeat(10_000));
    let address = server.address.clone();
    scope(|scope| {
        for _ in 0..ATTACKERS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // The server is gone after the signal.
                    if let Ok(mut stream) = TcpStream::connect(&address) {
                        send(&mut stream, &request);
                        sleep(Duration::from_millis(20));
                    }
                }
            });
        }
        let end = End(&over);
        sleep(Duration::from_secs(1));
        server.signal("TERM");
        let (status, logs) = server.wait();
        drop(end);
        assert!(status.success(), "{status} {logs:?}");
    });
    drop((idle, slow_head, slow_body, slow_reader));
}

/// A connection on which as much was sent as the server accepts at once.
fn begun(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let _ = stream.write_all(bytes);
    stream
}
