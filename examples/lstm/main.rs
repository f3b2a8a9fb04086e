//! Runs a character-level LSTM, or GRU, in float and in int8, side by side: perplexity on text
//! it never saw, text it writes, speed, bytes.
//!
//!     cargo run --release --example lstm
//!     cargo run --release --example lstm -- --gru --prompt "And he said" --threads 1
//!
//! The first prints, with the speeds and the instruction set of your machine:
//!
//! ```text
//! assets/lstm (lstm): 125344 characters of held-out text
//! 2 of 2 layers swapped (int8)
//!
//! float                                             quantized
//! In those days thou shalt not be ready to this     In those days thou shalt not be pure beast.
//! day.                                              And the priest shall be desolate, and the word
//! ...
//! (the same for 18 characters)
//!
//!                                        float     quantized
//! perplexity of a character             2.5494        2.5496
//! bits per character                    1.3502        1.3503
//! same best guess as float                           99.42 %
//! ...
//! weights of swapped layers            3.67 MB       0.95 MB
//! whole model                          3.69 MB       0.97 MB
//! ```
//!
//! `config` and `checkpoint` read a folder with suspicion, `folder` puts it together, `model`
//! is the network, `text` turns characters into numbers, `generate` writes, `measure` runs
//! both models; the rest talks to the user.

mod args;
#[allow(dead_code)] // each example uses its part
#[path = "../support/checkpoint.rs"]
mod checkpoint;
mod config;
mod figures;
mod folder;
mod generate;
mod measure;
mod model;
mod show;
mod text;
#[path = "../support/threads.rs"]
mod threads;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use candle_dynquant::{QConfigSpec, quantize_dynamic};
use clap::Parser;
use indicatif::ProgressBar;

use args::Args;
use figures::{Figures, Measured};
use folder::Folder;
use generate::Sampling;
use measure::Streams;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version are no failures. What cannot be printed has no reader.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    match run(&args) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    if let Some(count) = args.threads
        && let Some(code) = threads::respawn(count).context("--threads")?
    {
        return Ok(code);
    }
    let spec = QConfigSpec::preset(&args.preset).context("--preset")?;

    let folder = Folder::read(&args.dir(), args.gru)?;
    let prompt = folder.vocab.encode("--prompt", &args.prompt)?;
    ensure!(
        !prompt.is_empty(),
        "--prompt: expected at least one character, got none"
    );
    let heldout = folder.path.join("heldout.txt");
    let ids = text::read(args.text.as_ref().unwrap_or(&heldout), &folder.vocab)?;
    let streams = Streams::new(&ids, args.batch)?;

    let float = folder.model;
    let mut quantized = float.clone();
    let report = quantize_dynamic(&mut quantized, &spec)?;

    let progress = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(streams.calls() as u64),
        false => ProgressBar::hidden(),
    };
    let readings = measure::read(&float, &quantized, &streams, || progress.inc(1))?;
    progress.finish_and_clear();
    let sampling = Sampling {
        seed: args.seed,
        temperature: args.temperature,
    };
    let writings = measure::write(&float, &quantized, &prompt, args.length, sampling)?;

    let spell = |ids: &[u32]| ids.iter().map(|id| folder.vocab.character(*id)).collect();
    let figures = Figures::new(
        args.model_name(),
        if args.gru { "gru" } else { "lstm" },
        args.preset.clone(),
        candle_core::utils::get_num_threads(),
        Measured {
            readings: &readings,
            writings: &writings,
            texts: [&writings[0], &writings[1]].map(|writing| spell(&writing.text)),
            report: &report,
            float_bytes: folder.bytes,
        },
    );
    let (mut stdout, mut stderr) = (std::io::stdout(), std::io::stderr());
    if args.json {
        if args.report {
            writeln!(stderr, "{report:#}")?;
        }
        writeln!(stdout, "{}", serde_json::to_string(&figures)?)?;
    } else {
        if args.report {
            writeln!(stdout, "{report:#}")?;
        }
        let head = show::head(&figures, &report);
        let shown = show::show(&figures, &args.prompt);
        writeln!(stdout, "{head}\n\n{shown}")?;
    }
    Ok(ExitCode::SUCCESS)
}
