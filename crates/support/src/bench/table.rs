//! The framework of a benchmark: arguments, threads, a header and a line per row, or one JSON
//! object.

use std::process::ExitCode;

use anyhow::Result;
use candle_dynquant::Isa;
use candle_dynquant_io::print;
use serde::Serialize;

use super::args::Args;
use crate::threads;

/// A row of the table and of the JSON array.
pub trait Row: Serialize {
    /// The names of the columns, as wide as [`line`](Self::line).
    fn header(args: &Args) -> String;
    fn line(&self) -> String;
}

#[derive(Serialize)]
struct Results<R> {
    isa: String,
    threads: usize,
    rows: Vec<R>,
}

/// Runs a benchmark: `measure` passes each row to its second argument.
///
/// `about` is for `--help`; `title` precedes the instruction set in the first line. A reader that
/// closes stdout early is not an error.
pub fn run<R: Row>(
    about: &'static str,
    title: &str,
    measure: impl FnOnce(&Args, &mut dyn FnMut(R)) -> Result<()>,
) -> Result<ExitCode> {
    match print_rows(about, title, measure) {
        Err(error) if print::is_closed(error.as_ref()) => Ok(ExitCode::SUCCESS),
        ended => ended,
    }
}

fn print_rows<R: Row>(
    about: &'static str,
    title: &str,
    measure: impl FnOnce(&Args, &mut dyn FnMut(R)) -> Result<()>,
) -> Result<ExitCode> {
    let args = Args::parse_about(about);
    if let Some(status) = threads::respawn(args.threads)? {
        return Ok(status);
    }
    let mut results =
        Results { isa: Isa::active()?.to_string(), threads: args.threads, rows: Vec::new() };
    if !args.json {
        print::line(format_args!(
            "{title} on {}, {} threads, medians of {} rounds",
            results.isa,
            args.threads,
            args.rounds()
        ))?;
        print::line(R::header(&args))?;
    }
    let mut printed = Ok(());
    measure(&args, &mut |row: R| {
        if !args.json && printed.is_ok() {
            printed = print::line(row.line());
        }
        results.rows.push(row);
    })?;
    printed?;
    if args.json {
        print::data(serde_json::to_string(&results)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
