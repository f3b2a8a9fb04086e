//! The framework of a benchmark: arguments, threads, a header and a line per row, or one JSON
//! object.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::Result;
use candle_dynquant::Isa;
use candle_dynquant_io::print;
use serde::Serialize;

use super::args::Args;
use crate::threads;

/// A row of the JSON array, and its cells in the table, with the names of their columns.
pub trait Row: Serialize {
    fn cells(&self, args: &Args) -> Vec<Cell>;
}

/// A cell with the name of its column, both padded to the same width.
pub struct Cell([String; 2]);

/// A cell whose text ends with its column.
pub fn cell(name: impl Display, width: usize, text: impl Display) -> Cell {
    Cell([format!("{name:>width$}"), format!("{:>width$}", text.to_string())])
}

/// A cell whose text begins with its column.
pub fn left(name: impl Display, width: usize, text: impl Display) -> Cell {
    Cell([format!("{name:<width$}"), format!("{:<width$}", text.to_string())])
}

/// The names of columns (0), or their texts (1), on a line.
fn line(cells: &[Cell], part: usize) -> String {
    cells.iter().map(|Cell(parts)| &*parts[part]).collect::<Vec<_>>().join(" ")
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
    }
    let mut printed = Ok(());
    measure(&args, &mut |row: R| {
        if !args.json && printed.is_ok() {
            let cells = row.cells(&args);
            let header =
                if results.rows.is_empty() { line(&cells, 0) + "\n" } else { String::new() };
            printed = print::line(header + &line(&cells, 1));
        }
        results.rows.push(row);
    })?;
    printed?;
    if args.json {
        print::data(serde_json::to_string(&results)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
