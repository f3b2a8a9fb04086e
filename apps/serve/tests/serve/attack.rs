//! Clients that hang up, and floods: the memory of the server stays bounded, and other clients get
//! their usual answers or a refusal. `DYNQUANT_LONG=1` keeps each attack up for a minute.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use dynquant_embed::program::print::note;
use serde_json::{Value, json};

use crate::process::{PATIENCE, Server, request};

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

/// A request with a body of the largest size.
fn large() -> String {
    let body = json!({"inputs": "word ".repeat(400_000), "truncate": true});
    request("/embed", "", &body.to_string())
}

/// Sends bytes; the server may close the connection meanwhile, or be late.
fn send(stream: &mut TcpStream, bytes: &[u8], patience: Duration) {
    stream.set_write_timeout(Some(patience)).unwrap();
    let _ = stream.write_all(bytes);
}

/// The events of an attack.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Seen {
    attacks: usize,
    /// The memory of the server before, at its peak, and after.
    before_mb: f64,
    most_mb: f64,
    after_mb: f64,
    /// The answers to other clients, and the times of half of them, of 99 % and of all.
    refused: usize,
    answered: usize,
    within: [Duration; 3],
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
        let answered = answers.len();
        let within = [50, 99, 100].map(|percent| {
            let answer = answers.get((answered * percent / 100).max(1) - 1);
            answer.copied().unwrap_or_default()
        });
        let most_mb = memory.join().unwrap();
        Seen { attacks: 0, before_mb, most_mb, after_mb: 0., refused, answered, within }
    });
    seen.attacks = attacks.into_inner();
    // The attack leaves no trace.
    assert_eq!(server.post("/embed", &of_others()).body, expected.body);
    server.wait_for(&[("queue_length", 0.), ("requests_in_flight", 0.), ("bytes_held", 0.)]);
    seen.after_mb = server.resident_mb();
    note(format_args!("{seen:?}"));
    seen
}

/// Large requests whose clients hang up. Other clients are never refused: no large request takes
/// their room.
fn hang_ups(options: &[&str], request: &str) {
    let server = Server::start(options);
    let seen = under(&server, || {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        send(&mut stream, request.as_bytes(), PATIENCE);
        sleep(Duration::from_millis(20));
        let _ = stream.shutdown(Shutdown::Both);
    });
    assert!(seen.attacks > ATTACKERS, "{seen:?}");
    assert!(seen.answered > 0 && seen.refused == 0, "{seen:?}");
    assert!(seen.most_mb < most_mb(), "{seen:?}");
    server.signal("TERM");
    server.wait_for_success();
}

#[test]
fn clients_that_hang_up() {
    hang_ups(&[], &large());
}

/// A connection with a part of the next request pending hides that its client has gone.
#[test]
fn clients_that_hang_up_unseen() {
    let of_four_bodies = ["--max-bytes", "8388608"];
    hang_ups(&of_four_bodies, &(large() + "POST"));
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
    assert!(refused.into_inner() > 0, "{seen:?}");
    assert!(seen.most_mb < most_mb(), "{seen:?}");
}

#[test]
fn the_end_comes_in_the_middle_of_it() {
    let server = Server::start(&["--shutdown-seconds", "10"]);
    let request = large();
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
                        send(&mut stream, request.as_bytes(), PATIENCE);
                        sleep(Duration::from_millis(20));
                    }
                }
            });
        }
        let end = End(&over);
        sleep(Duration::from_secs(1));
        server.signal("TERM");
        server.wait_for_success();
        drop(end);
    });
    drop((idle, slow_head, slow_body, slow_reader));
}

/// A connection on which as much was sent as the server accepts at once.
fn begun(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    send(&mut stream, bytes, Duration::from_millis(500));
    stream
}
