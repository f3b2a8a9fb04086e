//! The frame of a program: its options, its last line and its status.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// The status after SIGINT, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// The work was to end before it was done; the text is what to tell about it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Interrupted(pub &'static str);

/// Runs a program with the options of its command line.
///
/// A mistake in those, and what `run` fails with, is printed on stderr. The status is then 1, or
/// [`INTERRUPTED`]. Where the reader of stdout has seen enough, as `head` has, the program has done its work.
pub fn main<O: Parser>(run: impl FnOnce(&O) -> Result<()>) -> ExitCode {
    let options = match O::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Help and version are not failures. If printing fails there is nothing left to do.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    let Err(error) = run(&options) else {
        return ExitCode::SUCCESS;
    };
    let is_closed = |error: &io::Error| error.kind() == ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(is_closed) {
        return ExitCode::SUCCESS;
    }
    let _ = complain(&error);
    match error.is::<Interrupted>() {
        true => ExitCode::from(INTERRUPTED),
        false => ExitCode::FAILURE,
    }
}

/// Prints an error with all that led to it on one line of stderr.
///
/// # Errors
/// When stderr cannot be written.
pub fn complain(error: &anyhow::Error) -> io::Result<()> {
    writeln!(io::stderr(), "error: {}", printable(&format!("{error:#}")))
}

/// Without characters that a terminal would obey: files and their names may come from anywhere.
pub fn printable(text: &str) -> String {
    let replace = |c: char| match c {
        '\t' => c,
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(replace).collect()
}
