//! Embeddings of a Parquet data set as an SQL function, on one machine or on a cluster: see
//! README.md.

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

use std::process::ExitCode;

use anyhow::{Context, Result};
use dynquant_embed::program;
use mimalloc::MiMalloc;

use options::{Command, Options};

/// An allocator that keeps the memory of large results for the next batch; glibc's returns 32 MiB
/// and more to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    program::main(|options: &Options| {
        logs::start(options);
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
