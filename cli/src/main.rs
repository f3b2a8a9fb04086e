//! `dynquant`: ports candle models to candle-dynquant.

mod files;
mod format;
mod port;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Ports candle models to candle-dynquant.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Rewrites model files: imports, derives, heads and attention. Prints the changes.
    Port(PortArgs),
}

/// What is ported and how it is shown.
#[derive(clap::Args)]
pub struct PortArgs {
    /// Rust files, or folders, of which all Rust files are taken.
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Writes the files; otherwise nothing is changed.
    #[arg(long)]
    write: bool,
    /// Exits with 1 where something is left to port, and prints only what.
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Prints one JSON object: `{files: [{file, changed, lines_added, lines_removed, todo}]}`.
    #[arg(long)]
    json: bool,
}

/// The recursion over a syntax tree is as deep as an expression; see `port::MAX_DEPTH`.
const STACK: usize = 1 << 30;

fn main() -> ExitCode {
    let Command::Port(args) = Args::parse().command;
    let run = move || show::run(&args);
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(run);
    let done = thread.map_err(anyhow::Error::from).and_then(|thread| {
        thread
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("an error of dynquant's own")))
    });
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
