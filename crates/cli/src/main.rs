//! `dynquant`: ports candle models to candle-dynquant, and quantizes checkpoints.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod checkpoint;

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
    Port(candle_dynquant_port::Args),
    /// Quantizes a safetensors file or a Hugging Face folder, tensor by tensor.
    Quantize(Box<checkpoint::QuantizeArgs>),
    /// Lists the presets, or shows the rules of one.
    Presets {
        /// The preset whose rules are shown.
        name: Option<String>,
    },
    /// Writes a quantized checkpoint as floats.
    Dequantize(checkpoint::DequantizeArgs),
    /// Shows the tensors of a checkpoint: dtypes, shapes, sizes, scales.
    Inspect(checkpoint::InspectArgs),
    /// Compares two checkpoints tensor by tensor.
    Diff(checkpoint::DiffArgs),
}

impl Command {
    fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Port(args) => return candle_dynquant_port::run(args),
            Self::Quantize(args) => checkpoint::quantize(args)?,
            Self::Presets { name } => checkpoint::presets(name.as_deref())?,
            Self::Dequantize(args) => checkpoint::dequantize(args)?,
            Self::Inspect(args) => checkpoint::inspect(args)?,
            Self::Diff(args) => checkpoint::diff(args)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn main() -> ExitCode {
    let command = match Args::try_parse() {
        Ok(args) => args.command,
        Err(text) => return print::usage(text.render(), text.use_stderr().then_some(2)),
    };
    let run = move || command.run();
    let thread = std::thread::Builder::new().stack_size(candle_dynquant_port::STACK).spawn(run);
    let done = thread.map_err(anyhow::Error::from).and_then(|thread| {
        thread.join().unwrap_or_else(|_| {
            Err(anyhow::anyhow!("internal error; please report it with the file that caused it"))
        })
    });
    print::ended(done)
}
