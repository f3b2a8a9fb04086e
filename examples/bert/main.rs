//! Runs a BERT in float and in int8, side by side: answers, accuracy, latency, bytes.
//!
//!     cargo run --release --example bert
//!     cargo run --release --example bert -- --embeddings
//!     cargo run --release --example bert -- --model-dir DIR --threads 2 --json
//!
//! `--embeddings` quantizes the tables too, which are left by default. The first prints, with the
//! times and the instruction set of your machine:
//!
//! ```text
//! assets/bert: 3201 texts in batches of 32
//! 26 of 29 layers swapped (int8)
//!
//! text                                                          float               quantized           label
//! "The Hammer of Thursagan" official campaign for Wesnoth (br…  games 0.93          games 0.93          games
//! ...
//!
//!                                    float     quantized
//! accuracy                         79.35 %       79.35 %
//! same class as float                            99.81 %
//! SQNR against float                            44.29 dB
//! ...
//! weights of swapped layers        3.23 MB       0.85 MB
//! whole model                      5.75 MB       3.37 MB
//! ```
//!
//! `config` and `checkpoint` read a folder with suspicion, `folder` puts it together, `model`
//! is the BERT, `texts` makes batches, `measure` runs them; the rest talks to the user.

mod args;
#[allow(dead_code)] // each example uses its part
#[path = "../support/checkpoint.rs"]
mod checkpoint;
mod config;
mod figures;
mod folder;
mod hub;
mod measure;
mod model;
mod show;
mod texts;
#[path = "../support/threads.rs"]
mod threads;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use candle_dynquant::{QConfigSpec, quantize_dynamic};
use clap::Parser;
use indicatif::ProgressBar;

use args::Args;
use figures::{Figures, Measured};
use folder::Folder;
use texts::Text;

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
    let spec = match args.embeddings {
        true => spec.embeddings(),
        false => spec,
    };
    let watched = std::io::stderr().is_terminal();

    let dir = match &args.hub {
        Some(id) => hub::fetch(id, watched)?,
        None => args.local_dir(),
    };
    let folder = Folder::read(&dir)?;
    let texts = read_texts(args, &folder)?;
    let batches = {
        let strings: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
        let tokens = texts::tokenize(&folder.tokenizer, &folder.config, &strings, args.seq_len)?;
        texts::batches(&tokens, args.batch, folder.config.pad_token_id)?
    };

    let float = folder.model;
    let mut quantized = float.clone();
    let report = quantize_dynamic(&mut quantized, &spec)?;

    let progress = if watched {
        ProgressBar::new(0)
    } else {
        ProgressBar::hidden()
    };
    let runs = measure::side_by_side(&float, &quantized, &batches, |to_come| {
        progress.set_length(progress.position() + 1 + to_come as u64);
        progress.inc(1);
    })?;
    progress.finish_and_clear();

    let measured = Measured {
        texts: &texts,
        runs: &runs,
        report: &report,
        float_bytes: folder.bytes,
        is_classifier: float.is_classifier(),
    };
    let figures = Figures::new(
        args.model_name(),
        args.preset.clone(),
        args.embeddings,
        candle_core::utils::get_num_threads(),
        &measured,
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
        let shown = show::show(&figures, &measured, &folder.config.labels);
        let head = show::head(&figures, &measured, args.batch);
        writeln!(stdout, "{head}\n\n{shown}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The file asked for, else the labelled texts beside a classifier, else example sentences.
fn read_texts(args: &Args, folder: &Folder) -> Result<Vec<Text>> {
    let known: &[String] = match folder.model.is_classifier() {
        true => &folder.config.labels,
        false => &[],
    };
    let read = |path: &Path, labelled| texts::read(path, known, labelled);
    let heldout = folder.path.join("heldout.tsv");
    match &args.texts {
        Some(path) => read(path, false),
        None if !known.is_empty() && heldout.exists() => read(&heldout, true),
        None => read(
            &args::repository().join("assets/reference/minilm_sentences.txt"),
            false,
        ),
    }
}
