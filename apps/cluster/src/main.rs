//! Embeddings of a Parquet data set as an SQL function, on one machine or on a cluster: see README.md.

mod executor;
mod function;
mod identity;
mod input;
mod logs;
mod model;
mod options;
mod output;
mod query;
mod scheduler;
mod session;
mod signal;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use mimalloc::MiMalloc;

use options::{Command, Options};

/// Keeps the memory of large results for the next batch; glibc's returns 32 MiB and more to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Help and version are not failures. If printing fails there is nothing left to do.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    logs::start(&options);
    match run(&options.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
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
    // Partitions of a query that was interrupted may be in the middle of a batch.
    runtime.shutdown_background();
    ended
}
