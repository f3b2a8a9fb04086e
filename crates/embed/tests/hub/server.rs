//! A server that answers like the Hugging Face hub.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

/// The variable that names the model to open.
pub const CHILD: &str = "DYNQUANT_TEST_MODEL";

pub const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/reference/encoders/bert");
pub const NAME: &str = "owner/small-bert";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The hash of `model.safetensors`, by `sha256sum`.
pub const SHA256: &str = "b1ded01454ed5abdca3c40742f1dddfd71d3c954a7871681fe0b47ac01c2f8e2";

/// The answer to a request.
#[derive(Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// The number of bytes of the body that are not sent.
    pub cut: usize,
    /// Whether the length is not stated.
    pub is_unsized: bool,
    /// The time before the body.
    pub wait: Duration,
}

impl Reply {
    pub fn new(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..self }
    }
}

/// The requests: path, and the header `authorization`.
pub type Seen = Arc<Mutex<Vec<(String, String)>>>;

pub struct Hub {
    port: u16,
    pub seen: Seen,
    pub cache: TempDir,
}

impl Hub {
    /// Starts a server; `answer` may replace the usual answer to a path.
    pub fn start(
        dir: &'static str,
        answer: impl Fn(&str, Reply) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Seen::default();
        let requests = Arc::clone(&seen);
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
                // A client that hangs up is not an error here.
                std::thread::spawn(move || serve((dir, stream), port, &*answer, &requests));
            }
        });
        let cache = tempfile::tempdir().unwrap();
        Self { port, seen, cache }
    }

    /// A process that opens the model of that name.
    pub fn child(&self, test: &str, model: &str) -> Command {
        let mut child = Command::new(std::env::current_exe().unwrap());
        for (name, _) in std::env::vars_os() {
            let known = name.to_string_lossy().to_lowercase();
            if known.starts_with("hf_") || known.ends_with("_proxy") {
                child.env_remove(name);
            }
        }
        child
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, model)
            .env("HF_HOME", self.cache.path())
            .env("HF_ENDPOINT", format!("http://127.0.0.1:{}", self.port))
            .env("HF_HUB_DOWNLOAD_TIMEOUT", "1");
        child
    }

    pub fn run(&self, model: &str) -> Output {
        self.child("a_model_is_opened", model).output().unwrap()
    }

    pub fn paths(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|(path, _)| path.clone()).collect()
    }

    pub fn repo(&self) -> std::path::PathBuf {
        self.cache.path().join("hub/models--owner--small-bert")
    }
}

fn serve(
    (dir, stream): (&str, TcpStream),
    port: u16,
    answer: &impl Fn(&str, Reply) -> Reply,
    seen: &Seen,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut token = String::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        if let Some((name, value)) = header.split_once(':') {
            if name.eq_ignore_ascii_case("authorization") {
                value.trim().clone_into(&mut token);
            }
        } else {
            break;
        }
    }
    seen.lock().unwrap().push((path.clone(), token));
    let reply = answer(&path, usual(dir, &path, port));
    let mut head = format!("HTTP/1.1 {} It\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !head.contains("content-length") && !reply.is_unsized {
        head += &format!("content-length: {}\r\n", reply.body.len());
    }
    let mut stream = &stream;
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    std::thread::sleep(reply.wait);
    stream.write_all(&reply.body[..reply.body.len() - reply.cut])
}

/// The answer of the real hub: weights are elsewhere, small files after a relative redirection.
fn usual(dir: &str, path: &str, port: u16) -> Reply {
    let resolve = format!("/{NAME}/resolve/{COMMIT}/");
    let revisions = ["main", "v1", COMMIT].map(|it| format!("/api/models/{NAME}/revision/{it}"));
    if revisions.iter().any(|it| it == path) {
        let others = ["README.md", "onnx/model.onnx"].map(str::to_owned);
        let files = files_of_model(dir).into_iter().chain(others);
        let siblings: Vec<_> = files.map(|it| json!({"rfilename": it})).collect();
        let list = json!({"id": NAME, "sha": COMMIT, "siblings": siblings});
        return Reply::new(200).body(list.to_string());
    }
    if let Some(file) = path.strip_prefix(&resolve) {
        return match fs::read(format!("{dir}/{file}")) {
            Err(_) => Reply::new(404),
            Ok(bytes) if dir == MODEL && file.ends_with(".safetensors") => Reply::new(302)
                .with("x-repo-commit", COMMIT)
                .with("x-linked-etag", format!("\"{SHA256}\""))
                .with("x-linked-size", bytes.len())
                .with("location", format!("http://localhost:{port}/cdn/{file}")),
            Ok(_) => Reply::new(307).with("location", format!("/api/resolve-cache/{file}")),
        };
    }
    for elsewhere in ["/api/resolve-cache/", "/cdn/"] {
        if let Some(file) = path.strip_prefix(elsewhere) {
            let bytes = fs::read(format!("{dir}/{file}")).unwrap();
            let etag = format!("\"{:x}\"", bytes.len() + file.len());
            return Reply::new(200).with("etag", etag).body(bytes);
        }
    }
    Reply::new(404)
}
pub fn files_of_model(model: &str) -> Vec<String> {
    let names = |dir: &str| -> Vec<String> {
        let Ok(entries) = fs::read_dir(format!("{model}/{dir}")) else {
            return Vec::new();
        };
        let files = entries.map(Result::unwrap).filter(|it| it.path().is_file());
        files.map(|it| format!("{dir}{}", it.file_name().display())).collect()
    };
    ["", "1_Pooling/", "2_Normalize/"].map(names).concat()
}

/// The cached files of the model: names and targets of links.
pub fn snapshot(hub: &Hub) -> BTreeMap<String, u64> {
    fn all(dir: &std::path::Path, prefix: &str, found: &mut BTreeMap<String, u64>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{prefix}{}", path.file_name().unwrap().display());
            if path.is_dir() {
                all(&path, &format!("{name}/"), found);
            } else {
                found.insert(name, fs::metadata(&path).unwrap().len());
            }
        }
    }
    let mut found = BTreeMap::new();
    all(&hub.repo().join("snapshots").join(COMMIT), "", &mut found);
    found
}
