//! Helpers that run the command.
#![allow(dead_code)] // No test uses all.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use candle_dynquant::candle_core::{Device, Tensor, safetensors};
use serde_json::Value;
use tempfile::TempDir;

pub const SMALL: &str = "use candle_nn::Linear;\n\npub struct A {\n    a: Linear,\n}\n";

/// The command with these arguments, outside of this repository, whose `rustfmt.toml` is not the
/// user's.
pub fn command(args: &[&str], paths: &[&Path]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dynquant"));
    command.args(args).args(paths).current_dir(std::env::temp_dir());
    command
}

/// [`command`] for checkpoints of small matrices, which it quantizes too.
pub fn command_for_small(args: &[&str], paths: &[&Path]) -> Command {
    match args {
        ["quantize", rest @ ..] => {
            command(&[&["quantize", "--min-params", "0"], rest].concat(), paths)
        }
        _ => command(args, paths),
    }
}

pub fn dynquant(args: &[&str], paths: &[&Path]) -> Output {
    command(args, paths).output().unwrap()
}

/// The stdout of the command, which must succeed.
#[track_caller]
pub fn printed(args: &[&str], paths: &[&Path]) -> String {
    let output = dynquant(args, paths);
    assert!(output.status.success(), "{output:?}");
    stdout(&output)
}

/// The stderr of the command, which must succeed.
#[track_caller]
pub fn said(args: &[&str], paths: &[&Path]) -> String {
    let output = dynquant(args, paths);
    assert!(output.status.success(), "{output:?}");
    stderr(&output)
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn json(args: &[&str], path: &Path) -> Value {
    let output = dynquant(args, &[path]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Asserts that a text contains a part.
#[track_caller]
pub fn has(text: &str, part: &str) {
    assert!(text.contains(part), "expected {part:?} in {text}");
}

pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

/// Writes random tensors to a file of a folder.
pub fn random(folder: &Path, name: &str, shapes: &[(&str, &[usize])]) -> PathBuf {
    let random = |shape: &[usize]| Tensor::randn(0f32, 1., shape, &Device::Cpu).unwrap();
    let tensors = shapes.iter().map(|(name, shape)| (*name, random(shape)));
    let path = folder.join(name);
    safetensors::save(&tensors.collect::<HashMap<_, _>>(), &path).unwrap();
    path
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Sends a signal to a process, which must exist.
#[track_caller]
pub fn kill(signal: &str, id: &str) {
    let sent = Command::new("kill").args(["-s", signal, id]).status();
    assert!(sent.unwrap().success());
}

#[cfg(unix)]
pub fn fifo(path: &Path) {
    let status = Command::new("mkfifo").arg(path).status();
    assert!(status.unwrap().success());
}
