//! Processes of the program, and clusters of them.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A limit far longer than any step takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// A lock for one cluster at a time: executors that wait for a core send no heartbeat.
static ONE: Mutex<()> = Mutex::new(());

pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dynquant-cluster"));
    command.args(words);
    command
}

/// Runs the program to its end.
pub fn output(words: &[&str]) -> Output {
    command(words).output().unwrap()
}

/// The arguments of `run`.
pub fn run<'a>(input: &'a Path, output: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let mut words = vec!["run", "--json", "--input", input, "--output", output];
    words.extend_from_slice(more);
    words
}

/// Runs a query that succeeds; returns its report.
pub fn ok(words: &[&str]) -> Value {
    let output = output(words);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {stderr}");
    assert!(stderr.is_empty(), "{words:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a query that fails; returns its last line.
pub fn error(words: &[&str]) -> String {
    let output = output(words);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{words:?}: {stderr}");
    stderr
}

/// A running process; it is killed when dropped.
pub struct Process {
    child: Child,
    /// The lines that it has written to stderr.
    logs: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    pub fn start(words: &[&str]) -> Self {
        let mut child =
            command(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let logs = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&logs);
        let reader = std::thread::spawn(move || {
            lines.for_each(|line| kept.lock().unwrap().push(line.unwrap()));
        });
        Self { child, logs, reader: Some(reader) }
    }

    pub fn logs(&self) -> String {
        self.logs.lock().unwrap().join("\n")
    }

    /// The number of lines with these words.
    pub fn count(&self, words: &str) -> usize {
        let logs = self.logs.lock().unwrap();
        logs.iter().filter(|line| line.contains(words)).count()
    }

    /// Waits for `count` lines with these words.
    pub fn wait_for(&mut self, words: &str, count: usize) {
        let start = Instant::now();
        while self.count(words) < count {
            assert!(start.elapsed() < PATIENCE, "no {words:?}: {}", self.logs());
            if !self.is_running() && self.count(words) < count {
                panic!("ended without {words:?}: {}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end; returns the status and the log.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        while self.is_running() {
            assert!(start.elapsed() < PATIENCE, "no end: {}", self.logs());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.reader.take().unwrap().join().unwrap();
        (self.child.wait().unwrap(), self.logs())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A scheduler and its executors.
pub struct Cluster {
    pub executors: Vec<Process>,
    pub scheduler: Process,
    /// The address for `--scheduler`.
    pub url: String,
    _one: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts executors with these options, each with one core, and waits until all have
    /// registered.
    pub fn start(executors: &[&[&str]]) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scheduler =
            Process::start(&["scheduler", "--port", "0", "--executor-timeout", "5"]);
        scheduler.wait_for("listening", 1);
        let logs = scheduler.logs();
        let (_, address) = logs.split_once("address=").unwrap();
        let mut cluster = Self {
            executors: Vec::new(),
            scheduler,
            url: format!("df://{}", address.split_whitespace().next().unwrap()),
            _one: one,
        };
        for options in executors {
            cluster.add(options);
        }
        cluster
    }

    /// Starts another executor.
    pub fn add(&mut self, options: &[&str]) {
        let [port, task_port] = free_ports();
        let mut words = vec!["executor", "--cores", "1", "--scheduler", &self.url];
        words.extend(["--port", &port, "--task-port", &task_port]);
        words.extend_from_slice(options);
        let mut executor = Process::start(&words);
        executor.wait_for("Executor registration succeed", 1);
        self.executors.push(executor);
    }
}

/// Ports that were free a moment ago.
pub fn free_ports() -> [String; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port().to_string())
}
