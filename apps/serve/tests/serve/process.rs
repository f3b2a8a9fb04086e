//! A server in a separate process, and requests to it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

/// A limit far longer than any step takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const ASSETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets");

pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_dynquant-serve"))
}

/// The message of a server that does not start.
pub fn failure(options: &[&str]) -> String {
    let output = command().args(options).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{options:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{options:?}: {stderr}");
    stderr
}

/// A copy of the files of a model in the assets, in a folder for a test.
pub fn copy_model(model: &str, name: &str) -> String {
    let dir = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(&dir).unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(format!("{ASSETS}/{model}/{file}"), format!("{dir}/{file}")).unwrap();
    }
    dir
}

/// Replaces a part of a file of a model, which must be there.
pub fn change(dir: &str, file: &str, from: &str, to: &str) {
    let file = Path::new(dir).join(file);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(file, text.replace(from, to)).unwrap();
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

    /// Checks that the answer is an error with this message.
    pub fn is(&self, status: u16, message: &str) {
        assert_eq!((self.status, &*self.message()), (status, message), "{}", self.body);
    }

    /// Checks that the answer is an error with this part of a message.
    pub fn says(&self, status: u16, part: &str) {
        assert_eq!(self.status, status, "{part}: {}", self.body);
        assert!(self.message().contains(part), "{part}: {}", self.body);
    }
}

/// The text of a request with a body.
pub fn request(path: &str, head: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: test\r\n{head}Content-Length: {length}\r\n\r\n{body}")
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
        let value = |line: &str| {
            let value = line.strip_prefix("dynquant_")?.strip_prefix(name)?;
            value.strip_prefix(' ').map(str::to_owned)
        };
        let value = text.lines().find_map(value);
        value.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    }

    /// Waits until the condition holds.
    pub fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until metrics have these values.
    pub fn wait_for(&self, metrics: &[(&str, f64)]) {
        let is_reached = |(name, value): &(&str, f64)| self.metric(name) == *value;
        self.wait_until(&format!("{metrics:?}"), |_| metrics.iter().all(is_reached));
    }

    /// A new connection, on which `bytes` were sent.
    pub fn connect(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes.as_ref()).unwrap();
        stream
    }

    /// A connection on which the server waits for the rest of a request's body to /embed, and the
    /// rest.
    pub fn begin(&self) -> (TcpStream, String) {
        const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
        let body = json!({"inputs": "a text editor"}).to_string();
        let whole = request("/embed", "Expect: 100-continue\r\n", &body);
        let (first, rest) = whole.split_at(whole.len() - body.len() + 10);
        let mut stream = self.connect(first);
        // The server sends this when the route begins to read the body.
        let mut interim = [0; CONTINUE.len()];
        stream.read_exact(&mut interim).unwrap();
        assert_eq!(interim, CONTINUE);
        (stream, rest.to_owned())
    }

    /// The memory of the server, in MB.
    #[cfg(target_os = "linux")]
    pub fn resident_mb(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
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
            sleep(Duration::from_millis(5));
        };
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        let logs = self.logs.lock().unwrap().clone();
        (status, logs)
    }

    /// Waits for the end, which must be a success; returns the log.
    pub fn wait_for_success(self) -> Vec<String> {
        let (status, logs) = self.wait();
        assert!(status.success(), "{status} {logs:?}");
        logs
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

/// Checks that the server closes a connection without an answer.
pub fn ends(mut stream: TcpStream) {
    // A reset also ends the connection.
    assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0);
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
