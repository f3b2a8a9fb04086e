//! A server in a separate process, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

/// A limit far longer than any step takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_dynquant-serve"))
}

/// A running server; it is killed when dropped.
pub struct Server {
    child: Child,
    pub address: String,
    agent: Agent,
    /// The lines that it has written to stderr.
    logs: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

/// An answer.
pub struct Reply {
    pub status: u16,
    pub retry_after: Option<String>,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The message of an error in either format.
    pub fn message(&self) -> String {
        let body = self.json();
        let message = match &body["error"] {
            Value::Object(error) => &error["message"],
            message => message,
        };
        message.as_str().unwrap().to_owned()
    }
}

impl Server {
    /// Starts a server with the built-in model, and waits until it listens.
    pub fn start(options: &[&str]) -> Self {
        Self::start_in(options, &[])
    }

    /// Starts a server as [`start`](Self::start) does, with these environment variables.
    pub fn start_in(options: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = command()
            .args(["--port", "0", "--log-json"])
            .args(options)
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut early = Vec::new();
        let address = loop {
            let line = lines.next().expect("the server ended").unwrap();
            let log: Value = serde_json::from_str(&line).expect(&line);
            early.push(line);
            if log["message"] == "listening" {
                break log["address"].as_str().unwrap().to_owned();
            }
        };
        let logs = Arc::new(Mutex::new(early));
        let kept = Arc::clone(&logs);
        let reader = std::thread::spawn(move || {
            lines.for_each(|line| kept.lock().unwrap().push(line.unwrap()));
        });
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .max_idle_connections_per_host(256)
            // A connection that the server is about to close must not be reused.
            .max_idle_age(Duration::from_millis(500))
            .build();
        Self { child, address, agent: config.into(), logs, reader: Some(reader) }
    }

    pub fn get(&self, path: &str) -> Reply {
        let reply = self.agent.get(self.url(path)).call();
        reply_of(reply.unwrap())
    }

    /// The status of an answer, if there is one.
    pub fn status(&self, path: &str) -> Option<u16> {
        let reply = self.agent.get(self.url(path)).call();
        reply.ok().map(|reply| reply.status().as_u16())
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string())
    }

    pub fn post_text(&self, path: &str, body: &str) -> Reply {
        let reply = self.agent.post(self.url(path));
        let reply = reply.content_type("application/json").send(body);
        reply_of(reply.unwrap())
    }

    /// The answer to a request, which must have status 200.
    pub fn ok(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        reply.json()
    }

    /// The value of a metric.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    }

    /// Waits until the condition holds.
    pub fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A connection on which the server waits for the rest of a request's body to /embed, and the
    /// rest.
    pub fn begin(&self) -> (TcpStream, String) {
        let body = json!({"inputs": "a text editor"}).to_string();
        let (first, rest) = body.split_at(10);
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let head = format!(
            "POST /embed HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\
             Expect: 100-continue\r\n\r\n"
        );
        stream.write_all(format!("{head}{first}").as_bytes()).unwrap();
        // The server sends this when the route begins to read the body.
        let mut interim = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        stream.read_exact(&mut interim).unwrap();
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        (stream, rest.to_owned())
    }

    /// The memory of the server, in MB.
    #[cfg(target_os = "linux")]
    pub fn resident_mb(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kb: f64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
        kb / 1e3
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end; returns the status and the log.
    pub fn wait(mut self) -> (ExitStatus, Vec<String>) {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(start.elapsed() < PATIENCE, "the server does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        let logs = self.logs.lock().unwrap().clone();
        (status, logs)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rest of the data on a connection, until the server closes it.
pub fn rest(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn reply_of(mut reply: ureq::http::Response<ureq::Body>) -> Reply {
    let retry_after = reply.headers().get("retry-after");
    Reply {
        status: reply.status().as_u16(),
        retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
        body: reply.body_mut().read_to_string().unwrap(),
    }
}
