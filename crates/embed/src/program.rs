//! The framework of a program: its options, its last line and its status.

#[cfg(feature = "hub")]
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use candle_dynquant_decoder::isolate_templates;
pub use candle_dynquant_io::print;
use clap::Parser;

/// Runs a program with the options of its command line.
///
/// Errors in the options and of `run` are printed on stderr, and the status is 1. If the reader of
/// stdout closes it early, like `head`, the program ends successfully.
pub fn main<O: Parser>(run: impl FnOnce(&O) -> Result<()>) -> ExitCode {
    isolate_templates();
    let options = match O::try_parse() {
        Ok(options) => options,
        Err(text) => return print::usage(text.render(), text.use_stderr().then_some(1)),
    };
    print::ended(run(&options).map(|()| ExitCode::SUCCESS))
}

/// Fetches a model as [`hub::fetch`](crate::hub::fetch) does, with a progress line on stderr if
/// that is a terminal.
///
/// # Errors
/// The errors of `hub::fetch`.
#[cfg(feature = "hub")]
pub fn fetched(name: &str) -> Result<PathBuf> {
    use std::io::{IsTerminal, stderr};
    use std::time::{Duration, Instant};

    use crate::hub::{Progress, fetch_with};

    const CLEARED: &str = "\r\x1b[K";
    let shows = stderr().is_terminal();
    let mut shown = Instant::now();
    let folder = fetch_with(name, |Progress { file, bytes, of: total }| {
        if !shows || shown.elapsed() < Duration::from_millis(100) {
            return;
        }
        shown = Instant::now();
        let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        let total = total.map(|total| format!(" of {}", megabytes(total)));
        let total = total.unwrap_or_default();
        print::progress(format_args!(
            "{CLEARED}downloading {file}: {}{total} MB",
            megabytes(bytes)
        ));
    });
    if shows {
        print::progress(CLEARED);
    }
    folder
}
