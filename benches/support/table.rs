//! The frame of a benchmark: arguments, threads, a header and a line per row, or one JSON object.

use std::process::ExitCode;

use anyhow::Result;
use candle_dynquant::kernels::Isa;
use serde::Serialize;

use crate::args::Args;
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
/// `about` is for `--help`; `title` precedes the instruction set in the first line.
pub fn run<R: Row>(
    about: &'static str,
    title: &str,
    measure: impl FnOnce(&Args, &mut dyn FnMut(R)) -> Result<()>,
) -> Result<ExitCode> {
    let args = Args::of(about);
    if let Some(status) = threads::respawn(args.threads)? {
        return Ok(status);
    }
    let mut results = Results {
        isa: Isa::active()?.to_string(),
        threads: args.threads,
        rows: Vec::new(),
    };
    if !args.json {
        println!(
            "{title} on {}, {} threads, medians of {} rounds",
            results.isa,
            args.threads,
            args.rounds()
        );
        println!("{}", R::header(&args));
    }
    measure(&args, &mut |row: R| {
        if !args.json {
            println!("{}", row.line());
        }
        results.rows.push(row);
    })?;
    if args.json {
        println!("{}", serde_json::to_string(&results)?);
    }
    Ok(ExitCode::SUCCESS)
}
