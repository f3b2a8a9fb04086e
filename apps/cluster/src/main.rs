//! Embeddings of a Parquet data set as an SQL function, on one machine or on a cluster: see
//! README.md.

mod executor;
mod function;
mod identity;
mod input;
mod model;
mod options;
mod output;
mod query;
mod scheduler;
mod session;
mod signal;

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use anyhow::{Context, Result};
use dynquant_embed::program;
use mimalloc::MiMalloc;
use tracing::level_filters::LevelFilter;

use options::{Command, Options};

/// An allocator that keeps the memory of large results for the next batch; glibc's returns 32 MiB
/// and more to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    program::main(|options: &Options| {
        start_logs(options);
        run(&options.command)
    })
}

fn run(command: &Command) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the program")?;
    let ended = runtime.block_on(async {
        match command {
            Command::Run(options) => query::run(options).await,
            Command::Scheduler(options) => scheduler::run(options).await,
            Command::Executor(options) => executor::run(options).await,
        }
    });
    // Partitions of an interrupted query may be in the middle of a batch.
    runtime.shutdown_background();
    ended
}

/// Starts logging on stderr, also from datafusion and Ballista.
fn start_logs(options: &Options) {
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
