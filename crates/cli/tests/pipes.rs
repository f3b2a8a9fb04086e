//! Output to closed pipes, to full devices, and to terminals that obey escapes.
#![cfg(unix)]

mod common;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use candle_dynquant::candle_core::{DType, Device, Tensor, safetensors};
use common::{command_for_small as dynquant, folder, has, stderr, stdout};
use tempfile::TempDir;

/// A checkpoint with one matrix for each name.
fn checkpoint(folder: &TempDir, names: &[&str]) -> PathBuf {
    let ones = Tensor::ones((4, 4), DType::F32, &Device::Cpu).unwrap();
    let tensors = names.iter().map(|name| (format!("{name}.weight"), ones.clone()));
    let tensors: HashMap<_, _> = tensors.collect();
    let path = folder.path().join("float.safetensors");
    safetensors::save(&tensors, &path).unwrap();
    path
}

/// The commands that print, each with inputs that make it print something.
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

/// A pipe without a reader.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn a_reader_that_has_seen_enough_is_no_fault() {
    let folder = folder();
    for mut command in printing(&folder) {
        let output = command.stdout(closed()).stderr(Stdio::piped()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
        let said = stderr(&output);
        let is_faulty = said.contains("panicked") || said.contains("error:");
        assert!(!is_faulty, "{command:?}: {said}");
    }
    let third = folder.path().join("third");
    assert!(third.exists(), "the work is done nevertheless");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_device_is_an_error() {
    let folder = folder();
    for mut command in printing(&folder) {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command.stdout(full).stderr(Stdio::piped()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {output:?}");
        let said = stderr(&output);
        has(&said, "error: stdout: No space left on device");
        assert!(!said.contains("panicked"), "{command:?}: {said}");
    }
}

#[test]
fn a_stderr_that_is_closed_changes_nothing() {
    let folder = folder();
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
    let folder = folder();
    let missing = folder.path().join("missing.rs");
    let mut command = dynquant(&["port", "--write", "--json"], &[&missing]);
    let output = command.stdout(closed()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_terminal_sees_no_name_that_it_would_obey() {
    let folder = folder();
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
    let dry = ["quantize", "--dry-run"];
    let (other, layer) = (["--exclude", "\u{1b}[2J"], ["--linear", "a\u{1b}[2J"]);
    let cases: [(&[&str], &[&Path], &str); 10] = [
        (&["inspect"], &[&float], shown),
        (&dry, &[&float], shown),
        (&["quantize", "-o"], &[&out, &float], ""),
        (&["diff"], &[&float, &out], shown),
        (&["port"], &[&named], "\\u{1b}[2J\\n.rs:1: error:"),
        (&["inspect"], &[&absent], "\\u{1b}[2J"),
        (&[dry, other].concat(), &[&float], "u{1b}[2J"),
        (&[dry, layer].concat(), &[&float], "u{1b}[2J"),
        (&["quantize", "--dry-run", "--spec"], &[&spec, &float], "[2J"),
        (&["\u{1b}[2J"], &[], "\\u{1b}[2J"),
    ];
    for (args, paths, expected) in cases {
        let output = dynquant(args, paths).output().unwrap();
        let both = stdout(&output) + &stderr(&output);
        assert!(!both.contains(obeyed), "{args:?}: {both:?}");
        has(&both, expected);
    }
    // JSON has escapes for control characters.
    let output = dynquant(&["inspect", "--json"], &[&float]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["tensors"][0]["name"], format!("{name}.weight"));
}

#[test]
fn a_name_may_be_long() {
    let folder = folder();
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
    let output = dynquant(&["inspect", "--json"], &[&float]).output().unwrap();
    assert!(stdout(&output).contains(&format!("{long}.weight\"")));
}
