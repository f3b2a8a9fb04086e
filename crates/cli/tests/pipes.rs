//! Where the command prints to: pipes that are closed, devices that are full, terminals that obey.
#![cfg(unix)]

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use candle_dynquant::candle_core::{Device, Tensor, safetensors};
use tempfile::TempDir;

fn dynquant(args: &[&str], paths: &[&Path]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dynquant"));
    // The matrices of these tests are small.
    if args.first() == Some(&"quantize") {
        command.args(["quantize", "--min-params", "0"]);
    }
    let args = args.strip_prefix(&["quantize"]).unwrap_or(args);
    command.args(args).args(paths);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A checkpoint with matrices of these names.
fn checkpoint(folder: &TempDir, names: &[&str]) -> PathBuf {
    let ones = Tensor::ones(
        (4, 4),
        candle_dynquant::candle_core::DType::F32,
        &Device::Cpu,
    )
    .unwrap();
    let tensors: HashMap<_, _> = names
        .iter()
        .map(|name| (format!("{name}.weight"), ones.clone()))
        .collect();
    let path = folder.path().join("float.safetensors");
    safetensors::save(&tensors, &path).unwrap();
    path
}

/// The commands that print, for inputs of which each of them prints something.
fn printing(folder: &TempDir) -> Vec<Command> {
    let float = checkpoint(folder, &["a", "b"]);
    let other = folder.path().join("other");
    let quantized = dynquant(&["quantize", "-o"], &[&other, &float]).output();
    assert!(quantized.unwrap().status.success());
    let source = folder.path().join("a.rs");
    fs::write(&source, "pub struct A(candle_nn::Linear);\n").unwrap();
    let third = folder.path().join("third");
    vec![
        dynquant(&["inspect"], &[&float]),
        dynquant(&["inspect", "--json"], &[&float]),
        dynquant(&["quantize", "--dry-run"], &[&float]),
        dynquant(&["quantize", "-o"], &[&third, &float]),
        dynquant(&["diff"], &[&float, &other]),
        dynquant(&["port"], &[&source]),
        dynquant(&["port", "--json"], &[&source]),
        dynquant(&["--help"], &[]),
        dynquant(&["quantize", "--help"], &[]),
        dynquant(&["--version"], &[]),
    ]
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn a_reader_that_has_seen_enough_is_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    for mut command in printing(&folder) {
        let output = command.stdout(closed()).stderr(Stdio::piped()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
        let said = stderr(&output);
        assert!(
            !said.contains("panicked") && !said.contains("error:"),
            "{command:?}: {said}"
        );
    }
    assert!(
        folder.path().join("third").exists(),
        "the work is done nevertheless"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_device_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for mut command in printing(&folder) {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {output:?}");
        let said = stderr(&output);
        assert!(
            said.contains("error: stdout: No space left on device"),
            "{command:?}: {said}"
        );
        assert!(!said.contains("panicked"), "{command:?}: {said}");
    }
}

#[test]
fn a_stderr_that_is_closed_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let missing = dynquant(&["inspect"], &[Path::new("missing")]);
    let cases = [(missing, 1), (dynquant(&["port"], &[]), 2)];
    let cases = cases.into_iter();
    for (mut command, status) in cases.chain(printing(&folder).into_iter().map(|it| (it, 0))) {
        let output = command.stderr(closed()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{command:?}");
        assert_eq!(output.stdout.is_empty(), status > 0, "{command:?}");
    }
}

#[test]
fn errors_of_files_show_in_the_status_though_nobody_reads_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.rs");
    let mut command = dynquant(&["port", "--write", "--json"], &[&missing]);
    assert_eq!(
        command.stdout(closed()).output().unwrap().status.code(),
        Some(1)
    );
}

#[test]
fn a_terminal_sees_no_name_that_it_would_obey() {
    let folder = tempfile::tempdir().unwrap();
    let name = "a\u{1b}[2J\u{202e}\r\nb";
    let float = checkpoint(&folder, &[name, "other"]);
    let shown = "a\\u{1b}[2J\\u{202e}\\r\\nb";
    let out = folder.path().join("out");
    let named = folder.path().join("\u{1b}[2J\n.rs");
    fs::write(&named, "pub struct A {\n").unwrap();
    let absent = folder.path().join("\u{1b}[2J.safetensors");
    let spec = folder.path().join("spec.yaml");
    fs::write(&spec, "exclude: [\"\\e[2J\"]\n").unwrap();
    let obeyed = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    let cases = [
        (dynquant(&["inspect"], &[&float]), Some(shown)),
        (dynquant(&["quantize", "--dry-run"], &[&float]), Some(shown)),
        (dynquant(&["quantize", "-o"], &[&out, &float]), None),
        (dynquant(&["diff"], &[&float, &out]), Some(shown)),
        (
            dynquant(&["port"], &[&named]),
            Some("\\u{1b}[2J\\n.rs:1: error:"),
        ),
        (dynquant(&["inspect"], &[&absent]), Some("\\u{1b}[2J")),
        (
            dynquant(
                &["quantize", "--dry-run", "--exclude", "\u{1b}[2J"],
                &[&float],
            ),
            Some("u{1b}[2J"),
        ),
        (
            dynquant(
                &["quantize", "--dry-run", "--linear", "a\u{1b}[2J"],
                &[&float],
            ),
            Some("u{1b}[2J"),
        ),
        (
            dynquant(&["quantize", "--dry-run", "--spec"], &[&spec, &float]),
            Some("[2J"),
        ),
        (dynquant(&["\u{1b}[2J"], &[]), Some("\\u{1b}[2J")),
    ];
    for (mut command, expected) in cases {
        let output = command.output().unwrap();
        let both = stdout(&output) + &stderr(&output);
        assert!(!both.contains(obeyed), "{command:?}: {both:?}");
        assert!(
            both.contains(expected.unwrap_or_default()),
            "{command:?}: {both:?}"
        );
    }
    // JSON has escapes of its own.
    let output = dynquant(&["inspect", "--json"], &[&float])
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["tensors"][0]["name"], format!("{name}.weight"));
}

#[test]
fn a_name_may_be_long() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(70_000);
    let float = checkpoint(&folder, &[&long, "other"]);
    let out = folder.path().join("out");
    let cases = [
        dynquant(&["inspect"], &[&float]),
        dynquant(&["quantize", "--dry-run"], &[&float]),
        dynquant(&["quantize", "-o"], &[&out, &float]),
        dynquant(&["diff"], &[&float, &out]),
    ];
    for mut command in cases {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", stderr(&output));
        let longest = stdout(&output).lines().map(str::len).max();
        assert!(longest < Some(400), "{command:?}: {longest:?}");
    }
    let output = dynquant(&["inspect", "--json"], &[&float])
        .output()
        .unwrap();
    assert!(stdout(&output).contains(&format!("{long}.weight\"")));
}
