//! Text embeddings, classification and generated texts over HTTP, in int8: see README.md.

mod app;
mod batcher;
mod body;
mod connections;
mod error;
mod generate;
mod limits;
mod logs;
mod metrics;
mod options;
mod places;
mod queue;
mod routes;
mod server;
mod workers;

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
        logs::start(options);
        server::run(options)
    })
}
