//! Logs on stderr, those of datafusion and Ballista among them.

use std::io::{IsTerminal, stderr};

use tracing::level_filters::LevelFilter;

use crate::options::{Command, Options};

/// Starts to log what this program reports.
pub fn start(options: &Options) {
    let default = match options.command {
        // Its errors are its last line.
        Command::Run(_) => LevelFilter::OFF,
        Command::Scheduler(_) | Command::Executor(_) => LevelFilter::INFO,
    };
    tracing_subscriber::fmt()
        .with_writer(stderr)
        // By eprintln!, which panics where nobody reads stderr.
        .log_internal_errors(false)
        .with_max_level(options.log_level.unwrap_or(default))
        .with_target(false)
        .with_ansi(stderr().is_terminal())
        .init();
}
