//! Logs on stderr: text for people, JSON for collectors.

use std::io::{IsTerminal, stderr};

use crate::options::Options;

/// Starts to log what this program reports.
pub fn start(options: &Options) {
    let logs = tracing_subscriber::fmt()
        .with_writer(stderr)
        // By eprintln!, which panics where nobody reads stderr.
        .log_internal_errors(false)
        .with_max_level(options.log_level)
        .with_target(false);
    if options.log_json {
        logs.json().flatten_event(true).init()
    } else {
        logs.with_ansi(stderr().is_terminal()).init()
    }
}
