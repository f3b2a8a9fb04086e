//! Writes the model that the page loads, and prints the answers that the page should show: see
//! README.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use candle_dynquant::checkpoint::quantize;
use candle_dynquant::{Checkpoint, QConfigSpec};
use candle_dynquant_io::{input, output};
use clap::Parser;
use dynquant_browser::Classifier;
use dynquant_embed::program::{self, print};

/// The files of a model, and the largest size of each in bytes: the encoder's limits.
const FILES: [(&str, u64); 3] =
    [("config.json", 4 << 20), ("tokenizer.json", 64 << 20), ("model.safetensors", u64::MAX)];

/// The largest file of texts, in bytes.
const MAX_TEXTS: u64 = 64 << 20;

/// Prepares the model of the page.
#[derive(Parser)]
enum Command {
    /// Quantizes a Hugging Face folder of a BERT to int8, embeddings included.
    Prepare {
        /// The float model.
        from: PathBuf,
        /// The folder that the files are written to.
        to: PathBuf,
    },
    /// Prints the answer to each line of a file as JSON.
    Answers {
        /// The folder of the model.
        model: PathBuf,
        /// The file, or a pipe; the text of a line is what follows the last tab.
        texts: PathBuf,
    },
}

fn main() -> ExitCode {
    program::main(|command: &Command| match command {
        Command::Prepare { from, to } => prepare(from, to),
        Command::Answers { model, texts } => answers(model, texts),
    })
}

fn prepare(from: &Path, to: &Path) -> Result<()> {
    let [config, tokenizer, weights] = FILES;
    fs::create_dir_all(to).with_context(|| format!("{}: expected a folder", to.display()))?;
    for file in [config, tokenizer] {
        let to = to.join(file.0);
        output::write(&to, read(from, file)?)
            .with_context(|| format!("{}: expected a file to write", to.display()))?;
    }
    let source = Checkpoint::open(from.join(weights.0))?;
    let spec = QConfigSpec::int8().embeddings();
    quantize(&source, &spec, to.join(weights.0), |_| ())?;
    // A file that a page could not open is reported here.
    open(to).map(|_| ())
}

fn open(model: &Path) -> Result<Classifier> {
    let [config, tokenizer, weights] = FILES;
    let config = String::from_utf8(read(model, config)?).context("config.json: expected UTF-8")?;
    Classifier::open(&config, &read(model, tokenizer)?, read(model, weights)?)
}

fn read(model: &Path, (file, max): (&str, u64)) -> Result<Vec<u8>> {
    let path = model.join(file);
    input::read(&path, max).with_context(|| format!("{}: expected a readable file", path.display()))
}

fn answers(model: &Path, texts: &Path) -> Result<()> {
    let classifier = open(model)?;
    let lines = input::read_stream(texts, MAX_TEXTS)
        .with_context(|| format!("{}: expected a readable text file", texts.display()))?;
    for line in lines.lines() {
        let text = line.rsplit('\t').next().unwrap_or(line);
        print::data(serde_json::to_string(&classifier.classify(text)?)?)?;
    }
    Ok(())
}
