//! The frame of a program: its options, its last line and its status.

#[cfg(feature = "hub")]
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
pub use candle_dynquant_io::print;
use candle_dynquant_support::decoder::isolate_templates;
use clap::Parser;

/// Runs a program with the options of its command line.
///
/// A mistake in those, and what `run` fails with, is printed on stderr, and the status is 1. Where
/// the reader of stdout has seen enough, as `head` has, the program has done its work.
pub fn main<O: Parser>(run: impl FnOnce(&O) -> Result<()>) -> ExitCode {
    isolate_templates();
    let options = match O::try_parse() {
        Ok(options) => options,
        Err(text) => return print::usage(text.render(), text.use_stderr().then_some(1)),
    };
    print::ended(run(&options).map(|()| ExitCode::SUCCESS))
}

/// As [`hub::fetch`](crate::hub::fetch), with a line on stderr that tells how far it is, if that
/// is a terminal.
///
/// # Errors
/// As `hub::fetch`.
#[cfg(feature = "hub")]
pub fn fetched(name: &str) -> Result<PathBuf> {
    use std::io::{IsTerminal, stderr};
    use std::time::{Duration, Instant};

    use crate::hub::{Progress, fetch_with};

    const CLEARED: &str = "\r\x1b[K";
    let shows = stderr().is_terminal();
    let mut shown = Instant::now();
    let folder = fetch_with(name, |Progress { file, bytes, of }| {
        if !shows || shown.elapsed() < Duration::from_millis(100) {
            return;
        }
        shown = Instant::now();
        let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        let of = of.map(|of| format!(" of {}", megabytes(of)));
        let of = of.unwrap_or_default();
        print::progress(format_args!(
            "{CLEARED}downloading {file}: {}{of} MB",
            megabytes(bytes)
        ));
    });
    if shows {
        print::progress(CLEARED);
    }
    folder
}
