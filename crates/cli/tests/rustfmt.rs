//! A rustfmt that takes long, or never ends.
#![cfg(unix)]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{SMALL, has, kill, read, said, stderr};
use tempfile::TempDir;

/// A limit far longer than any step takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with `a.rs` and this script as the program `rustfmt`.
struct Fake(TempDir);

impl Fake {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rustfmt = folder.path().join("rustfmt");
        // Another process writes the program: a child of another test would inherit the open file
        // from this process, and a program that is open for writing cannot be run.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let mut shell = Command::new("sh");
        let written = shell.args(["-c", write]).arg(&rustfmt).arg(script).status();
        assert!(written.unwrap().success());
        fs::write(folder.path().join("a.rs"), SMALL).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn port(&self, args: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let args = [&["port"], args].concat();
        let mut command = common::command(&args, &[&self.path("a.rs")]);
        command.env("PATH", format!("{}:{path}", self.0.path().display()));
        command
    }

    /// The file after the command has written it in the folder.
    fn write(&self) -> String {
        let mut command = self.port(&["--write"]);
        let output = command.current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        read(&self.path("a.rs"))
    }

    /// Starts the command, waits until rustfmt runs, and returns the ids of both.
    fn started(&self) -> (std::process::Child, String) {
        let mut command = self.port(&["--rustfmt-seconds", "3600"]);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let mut id = String::new();
        until("rustfmt is started", || {
            id = fs::read_to_string(self.path("id")).unwrap_or_default();
            id.ends_with('\n')
        });
        (child, id.trim().to_owned())
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn runs(id: &str) -> bool {
    // A zombie, which nobody has waited for yet, counts as ended.
    let stat = fs::read_to_string(Path::new("/proc").join(id).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// A script that writes its id and then sleeps longer than the test.
const ENDLESS: &str =
    "cd \"$(dirname \"$0\")\"; echo $$ >id.new; mv id.new id; while [ -e id ]; do :; done";

const NOTE: &str = "not formatted: rustfmt was ended after 1s";

#[test]
fn rustfmt_is_ended_at_its_limit_and_the_text_is_not_formatted() {
    let scripts = ["sleep 1000", "sleep 1000 & exit 1", "cat; sleep 1000"];
    for script in [ENDLESS].into_iter().chain(scripts) {
        let fake = Fake::new(script);
        let mut command = fake.port(&["--write", "--rustfmt-seconds", "1"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        let note = format!("{}: {NOTE}\n", fake.path("a.rs").display());
        has(&stderr(&output), &note);
        let ported = read(&fake.path("a.rs"));
        has(&ported, "#[derive(Clone, Quantizable)]\npub struct A");
    }
    let fake = Fake::new(ENDLESS);
    let mut command = fake.port(&["--json", "--rustfmt-seconds", "1"]);
    let output = command.output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["files"][0]["note"], NOTE);
    assert!(!runs(read(&fake.path("id")).trim()));
}

#[test]
fn rustfmt_need_not_run() {
    let fake = Fake::new("touch \"$(dirname \"$0\")/ran\"");
    let output = fake.port(&["--rustfmt-seconds", "0"]).output().unwrap();
    assert!(output.status.success() && !fake.path("ran").exists());
    assert!(!stderr(&output).contains("not formatted"));
    let output = fake.port(&[]).output().unwrap();
    assert!(output.status.success() && fake.path("ran").exists());
}

#[test]
fn rustfmt_formats_what_it_had_formatted() {
    // This rustfmt leaves the original as it is and puts the result on one line.
    let fake =
        Fake::new("cat >in; if grep -q candle_nn in; then cat in; else tr '\\n' ' ' <in; fi");
    let ported = fake.write();
    let start = "use candle_dynquant::nn::Linear; ";
    assert!(ported.starts_with(start), "{ported}");
    assert_eq!(ported.lines().count(), 1);
    // A file that was not formatted before stays unformatted.
    let fake = Fake::new("cat >in; tr '\\n' ' ' <in");
    assert!(fake.write().lines().count() > 5);
}

#[test]
fn a_depth_for_which_the_true_rustfmt_takes_hours() {
    if Command::new("rustfmt").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rs");
    let closures = format!("{}1{}", "g(|aaaaaaaa| ".repeat(24), ")".repeat(24));
    fs::write(&path, format!("{SMALL}\nfn f() {{ {closures}; }}\n")).unwrap();
    let said = said(&["port", "--rustfmt-seconds", "1"], &[&path]);
    has(&said, "a.rs: not formatted: rustfmt was ended");
}

/// Whether this process, and so its children, ignores a signal.
#[cfg(target_os = "linux")]
fn is_ignored(signal: i32) -> bool {
    let status = read(Path::new("/proc/self/status"));
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() >> (signal - 1) & 1 == 1
}

#[cfg(target_os = "linux")]
#[test]
fn rustfmt_ends_with_the_command() {
    // A background job of a shell ignores some signals.
    let signals = [("TERM", 15), ("INT", 2), ("HUP", 1)].into_iter();
    for (name, number) in signals.filter(|(_, number)| !is_ignored(*number)) {
        let fake = Fake::new(ENDLESS);
        let (mut child, rustfmt) = fake.started();
        assert!(runs(&rustfmt));
        kill(name, &child.id().to_string());
        // Shells expect the child to end by the signal.
        assert_eq!(child.wait().unwrap().signal(), Some(number), "{name}");
        until("rustfmt is ended", || !runs(&rustfmt));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn signals_that_were_ignored_stay_ignored() {
    let fake = Fake::new(ENDLESS);
    let dynquant = fake.port(&["--rustfmt-seconds", "3600"]);
    // A shell ignores the signal, like nohup.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    shell.arg(dynquant.get_program()).args(dynquant.get_args());
    for (name, value) in dynquant.get_envs() {
        shell.env(name, value.unwrap());
    }
    let shell = shell.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = shell.spawn().unwrap();
    until("rustfmt is started", || fake.path("id").exists());
    let id = child.id().to_string();
    kill("HUP", &id);
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none());
    kill("TERM", &id);
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_is_killed_leaves_a_rustfmt_whose_time_is_limited() {
    let fake = Fake::new(ENDLESS);
    let (mut child, rustfmt) = fake.started();
    until("its time is limited", || {
        let limits = read(&Path::new("/proc").join(&rustfmt).join("limits"));
        let line = limits.lines().find(|line| line.starts_with("Max cpu time"));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        let is_limited = |word: &&str| word.parse().is_ok_and(|s: u64| s <= 3601);
        words[3..5].iter().all(is_limited)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(runs(&rustfmt), "there is no way for it to know");
    kill("KILL", &rustfmt);
}
