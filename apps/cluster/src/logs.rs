//! Logs on stderr, also from datafusion and Ballista.

use std::io::{IsTerminal, stderr};

use tracing::level_filters::LevelFilter;

use crate::options::{Command, Options};

/// Starts logging this program's reports.
pub fn start(options: &Options) {
    let default = match options.command {
        // The last line of `run` is its error.
        Command::Run(_) => LevelFilter::OFF,
        Command::Scheduler(_) | Command::Executor(_) => LevelFilter::INFO,
    };
    tracing_subscriber::fmt()
        .with_writer(stderr)
        // Internal errors are printed by eprintln!, which panics if stderr is closed.
        .log_internal_errors(false)
        .with_max_level(options.log_level.unwrap_or(default))
        .with_target(false)
        .with_ansi(stderr().is_terminal())
        .init();
}
