//! rustfmt, for files that it formatted before the port.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use candle_dynquant_io::child;

/// The text formatted by rustfmt if the original was formatted by it, else the text as it is. All
/// runs together end within the limit, since rustfmt's time is exponential in the depth of closures
/// and patterns; a note says if they did not.
pub fn as_before(
    path: &Path,
    before: &str,
    text: String,
    limit: Duration,
) -> (String, Option<String>) {
    if before == text || limit.is_zero() {
        return (text, None);
    }
    match formatted(path, before, &text, Instant::now() + limit) {
        Ok(formatted) => (formatted.unwrap_or(text), None),
        Err(_) => {
            let note = format!("not formatted: rustfmt was ended after {limit:?}");
            (text, Some(note))
        }
    }
}

/// The formatted text; `None` if rustfmt did not format the original.
///
/// # Errors
/// When the time is over.
fn formatted(path: &Path, before: &str, text: &str, end: Instant) -> io::Result<Option<String>> {
    // The editions differ in the order of imports.
    for edition in ["2021", "2024"] {
        match rustfmt(path, before, edition, end)? {
            Some(same) if same == before => return rustfmt(path, text, edition, end),
            Some(_) => {}
            None => break,
        }
    }
    Ok(None)
}

/// The text formatted by rustfmt; `None` if rustfmt is missing or rejects the text.
///
/// # Errors
/// When the time is over.
fn rustfmt(path: &Path, text: &str, edition: &str, end: Instant) -> io::Result<Option<String>> {
    let mut command = Command::new("rustfmt");
    command.args(["--edition", edition, "--emit", "stdout", "--quiet"]);
    let Ok(path) = path.canonicalize() else { return Ok(None) };
    let configs = path
        .ancestors()
        .flat_map(|folder| ["rustfmt.toml", ".rustfmt.toml"].map(|name| folder.join(name)));
    if let Some(config) = configs.into_iter().find(|config| config.is_file()) {
        command.arg("--config-path").arg(config);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let left = end.saturating_duration_since(Instant::now());
    let output = match child::run(&mut command, text.as_bytes(), left) {
        Ok(output) if output.status.success() => output,
        Err(error) if error.kind() == ErrorKind::TimedOut => return Err(error),
        _ => return Ok(None),
    };
    let formatted = String::from_utf8(output.stdout).ok();
    Ok(formatted.filter(|formatted| !formatted.is_empty()))
}
