//! Text embeddings and classification over HTTP, in int8: see README.md.

mod batcher;
mod body;
mod connections;
mod error;
mod limits;
mod logs;
mod metrics;
mod options;
mod queue;
mod routes;
mod server;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

use options::Options;

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
    match server::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
