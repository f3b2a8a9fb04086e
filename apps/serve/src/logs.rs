//! Logs on stderr: text for people, JSON for collectors.

use std::io::{IsTerminal, stderr};

use crate::options::Options;

/// Starts logging this program's reports.
pub fn start(options: &Options) {
    let logs = tracing_subscriber::fmt()
        .with_writer(stderr)
        // Internal errors are printed by eprintln!, which panics if stderr is closed.
        .log_internal_errors(false)
        .with_max_level(options.log_level)
        .with_target(false);
    if options.log_json {
        logs.json().flatten_event(true).init()
    } else {
        logs.with_ansi(stderr().is_terminal()).init()
    }
}
