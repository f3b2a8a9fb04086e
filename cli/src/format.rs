//! rustfmt, for files that were formatted by it before.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The text as rustfmt writes it, if it wrote the file as it was; else the text as it is.
pub fn as_before(path: &Path, before: &str, text: String) -> String {
    if before == text {
        return text;
    }
    // The editions differ in the order of imports.
    for edition in ["2021", "2024"] {
        match rustfmt(path, before, edition) {
            Some(same) if same == before => return rustfmt(path, &text, edition).unwrap_or(text),
            Some(_) => {}
            None => break,
        }
    }
    text
}

/// `None` where there is no rustfmt, or it does not understand the text.
fn rustfmt(path: &Path, text: &str, edition: &str) -> Option<String> {
    let mut command = Command::new("rustfmt");
    command.args(["--edition", edition, "--emit", "stdout", "--quiet"]);
    let path = path.canonicalize().ok()?;
    let configs = path
        .ancestors()
        .flat_map(|folder| ["rustfmt.toml", ".rustfmt.toml"].map(|name| folder.join(name)));
    if let Some(config) = configs.into_iter().find(|config| config.is_file()) {
        command.arg("--config-path").arg(config);
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut input = child.stdin.take()?;
    let text = text.to_owned();
    // Beside the reading, since a pipe holds little.
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().ok()?;
    writer.join().ok()?.ok()?;
    let formatted = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !formatted.is_empty()).then_some(formatted)
}
