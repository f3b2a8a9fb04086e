//! `dynquant`: ports candle models to candle-dynquant, and quantizes checkpoints.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod checkpoint;
mod files;
mod format;
mod port;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use candle_dynquant_io::print;
use clap::{Parser, Subcommand};

/// Ports candle models to candle-dynquant, and quantizes checkpoints.
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
    /// Quantizes a safetensors file or a Hugging Face folder, tensor by tensor.
    Quantize(checkpoint::QuantizeArgs),
    /// Writes a quantized checkpoint as floats.
    Dequantize(checkpoint::DequantizeArgs),
    /// Shows the tensors of a checkpoint: dtypes, shapes, sizes, scales.
    Inspect(checkpoint::InspectArgs),
    /// Compares two checkpoints tensor by tensor.
    Diff(checkpoint::DiffArgs),
}

/// Arguments of `port`.
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
    /// Prints one JSON object: `{files: [{file, changed, lines_added, lines_removed, todo}], needs: [{manifest,
    /// lines}], candle: [{manifest, found, needed}]}`, with `error` and `note` where there is one.
    #[arg(long)]
    json: bool,
    /// Time of rustfmt for a file, after which it is ended and the file is not formatted; 0: rustfmt is
    /// not run.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = seconds())]
    rustfmt_seconds: u64,
}

/// Up to a day, so that no time overflows.
fn seconds() -> impl clap::builder::TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(..=86_400)
}

impl Command {
    fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Port(args) => return show::run(args),
            Self::Quantize(args) => checkpoint::quantize(args)?,
            Self::Dequantize(args) => checkpoint::dequantize(args)?,
            Self::Inspect(args) => checkpoint::inspect(args)?,
            Self::Diff(args) => checkpoint::diff(args)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The recursion over a syntax tree is as deep as an expression; see `port::MAX_DEPTH`.
const STACK: usize = 1 << 30;

fn main() -> ExitCode {
    let command = match Args::try_parse() {
        Ok(args) => args.command,
        Err(text) => return print::usage(text.render(), text.use_stderr().then_some(2)),
    };
    let run = move || command.run();
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(run);
    let done = thread.map_err(anyhow::Error::from).and_then(|thread| {
        thread
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("an error of dynquant's own")))
    });
    print::ended(done)
}
