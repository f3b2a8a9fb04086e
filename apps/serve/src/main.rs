//! Text embeddings, classification and generated texts over HTTP, in int8: see README.md.

mod app;
mod body;
mod connections;
mod error;
mod generate;
mod limits;
mod metrics;
mod options;
mod places;
mod queue;
mod routes;
mod server;
mod workers;

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use dynquant_embed::program;
use mimalloc::MiMalloc;

use options::Options;

/// An allocator that keeps the memory of large results for the next batch; glibc's returns 32 MiB
/// and more to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    program::main(|options: &Options| {
        start_logs(options);
        server::run(options)
    })
}

/// Starts logging on stderr: text for people, JSON for collectors.
fn start_logs(options: &Options) {
    let logs = tracing_subscriber::fmt()
        .with_writer(stderr)
        // Internal errors are printed by eprintln!, which panics if stderr is closed.
        .log_internal_errors(false)
        .with_max_level(options.log_level)
        .with_target(false);
    if options.log_json {
        logs.json().flatten_event(true).init()
    } else {
        logs.with_ansi(stderr().is_terminal()).init()
    }
}
