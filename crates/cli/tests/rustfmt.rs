//! rustfmt that takes long, or never ends.
#![cfg(unix)]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const SMALL: &str = "use candle_nn::Linear;\n\npub struct A {\n    a: Linear,\n}\n";

/// Far more than any step takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with `a.rs` and a program `rustfmt` of this script.
struct Fake(TempDir);

impl Fake {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rustfmt = folder.path().join("rustfmt");
        // By another process: a child of another test would inherit the open file from this one,
        // and a program that is open for writing cannot be run.
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_dynquant"));
        command.arg("port").args(args).arg(self.path("a.rs"));
        command.env("PATH", format!("{}:{path}", self.0.path().display()));
        command
    }

    /// Starts the command, and waits until rustfmt runs; the ids of both.
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
    // A zombie, which nobody has waited for yet, has ended.
    let stat = fs::read_to_string(Path::new("/proc").join(id).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Writes its id, and does not end before the test.
const ENDLESS: &str =
    "cd \"$(dirname \"$0\")\"; echo $$ >id.new; mv id.new id; while [ -e id ]; do :; done";

#[test]
fn rustfmt_is_ended_at_its_limit_and_the_text_is_not_formatted() {
    for script in [
        ENDLESS,
        "sleep 1000",
        "sleep 1000 & exit 1",
        "cat; sleep 1000",
    ] {
        let fake = Fake::new(script);
        let output = fake
            .port(&["--write", "--rustfmt-seconds", "1"])
            .output()
            .unwrap();
        let said = stderr(&output);
        assert!(output.status.success(), "{script}: {said}");
        let note = format!(
            "{}: not formatted: rustfmt was ended after 1s\n",
            fake.path("a.rs").display()
        );
        assert!(said.contains(&note), "{script}: {said}");
        let ported = fs::read_to_string(fake.path("a.rs")).unwrap();
        assert!(
            ported.contains("#[derive(Quantizable)]\npub struct A"),
            "{ported}"
        );
    }
    let fake = Fake::new(ENDLESS);
    let output = fake
        .port(&["--json", "--rustfmt-seconds", "1"])
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        json["files"][0]["note"],
        "not formatted: rustfmt was ended after 1s"
    );
    assert!(!runs(fs::read_to_string(fake.path("id")).unwrap().trim()));
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
    // It knows the file as it is, and makes one line of the result.
    let fake =
        Fake::new("cat >in; if grep -q candle_nn in; then cat in; else tr '\\n' ' ' <in; fi");
    let fake_in = |args: &[&str]| fake.port(args).current_dir(fake.0.path()).output().unwrap();
    assert!(fake_in(&["--write"]).status.success());
    let ported = fs::read_to_string(fake.path("a.rs")).unwrap();
    assert!(
        ported.starts_with("use candle_dynquant::nn::Linear; "),
        "{ported}"
    );
    assert_eq!(ported.lines().count(), 1);
    // One that it had not formatted stays as it is.
    let fake = Fake::new("cat >in; tr '\\n' ' ' <in");
    let mut command = fake.port(&["--write"]);
    assert!(
        command
            .current_dir(fake.0.path())
            .output()
            .unwrap()
            .status
            .success()
    );
    assert!(
        fs::read_to_string(fake.path("a.rs"))
            .unwrap()
            .lines()
            .count()
            > 5
    );
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_dynquant"));
    command.args(["port", "--rustfmt-seconds", "1"]).arg(&path);
    let output = command.output().unwrap();
    assert!(output.status.success());
    assert!(
        stderr(&output).contains("a.rs: not formatted: rustfmt was ended"),
        "{output:?}"
    );
}

/// Whether this process, and so its children, ignore a signal.
#[cfg(target_os = "linux")]
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() >> (signal - 1) & 1 == 1
}

#[cfg(target_os = "linux")]
#[test]
fn rustfmt_ends_with_the_command() {
    let signals = [("TERM", 15), ("INT", 2), ("HUP", 1)];
    // In the background of a shell some are ignored.
    for (name, number) in signals
        .into_iter()
        .filter(|(_, number)| !is_ignored(*number))
    {
        let fake = Fake::new(ENDLESS);
        let (mut child, rustfmt) = fake.started();
        assert!(runs(&rustfmt));
        let id = child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &id])
                .status()
                .unwrap()
                .success()
        );
        // By the signal, as shells expect it.
        assert_eq!(child.wait().unwrap().signal(), Some(number), "{name}");
        until("rustfmt is ended", || !runs(&rustfmt));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn signals_that_were_ignored_stay_ignored() {
    let fake = Fake::new(ENDLESS);
    let dynquant = fake.port(&["--rustfmt-seconds", "3600"]);
    // As nohup does.
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
    let kill = |name: &str| Command::new("kill").args(["-s", name, &id]).status();
    assert!(kill("HUP").unwrap().success());
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none());
    assert!(kill("TERM").unwrap().success());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_is_killed_leaves_a_rustfmt_whose_time_is_limited() {
    let fake = Fake::new(ENDLESS);
    let (mut child, rustfmt) = fake.started();
    until("its time is limited", || {
        let limits = fs::read_to_string(format!("/proc/{rustfmt}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max cpu time"));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        let is_limited = |word: &&str| word.parse().is_ok_and(|s: u64| s <= 3601);
        words[3..5].iter().all(is_limited)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(runs(&rustfmt), "there is no way for it to know");
    assert!(
        Command::new("kill")
            .args(["-KILL", &rustfmt])
            .status()
            .unwrap()
            .success()
    );
}
