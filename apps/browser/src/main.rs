//! Writes the model that the page loads, and answers as the page should: see README.md.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use candle_dynquant::checkpoint::{Plan, quantize};
use candle_dynquant::{Checkpoint, QConfigSpec};
use clap::Parser;
use dynquant_browser::Classifier;
use dynquant_encoder::program::{self, print};

/// The files of a model.
const FILES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];

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
        /// The file; of a line, what follows the last tab is the text.
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
        let (from, new, to) = (
            from.join(file),
            to.join(format!("{file}.new")),
            to.join(file),
        );
        fs::copy(&from, &new)
            .and_then(|_| fs::rename(&new, &to))
            .with_context(|| format!("{}: copying it to {}", from.display(), to.display()))?;
    }
    let source = Checkpoint::open(from.join(weights))?;
    let spec = QConfigSpec::int8().embeddings();
    let plan = Plan::new(&source, &spec, &[], &[])?;
    quantize(&source, &plan, to.join(weights), |_| ())?;
    // What a page could not open is found out here.
    open(to).map(|_| ())
}

fn open(model: &Path) -> Result<Classifier> {
    let read = |file: &str| {
        let path = model.join(file);
        fs::read(&path).with_context(|| format!("{}: expected a readable file", path.display()))
    };
    let [config, tokenizer, weights] = FILES;
    let config = String::from_utf8(read(config)?).context("config.json: expected UTF-8")?;
    Classifier::open(&config, &read(tokenizer)?, read(weights)?)
}

fn answers(model: &Path, texts: &Path) -> Result<()> {
    let classifier = open(model)?;
    let lines = fs::read_to_string(texts)
        .with_context(|| format!("{}: expected a readable text file", texts.display()))?;
    for line in lines.lines() {
        let text = line.rsplit('\t').next().unwrap_or(line);
        print::data(serde_json::to_string(&classifier.classify(text)?)?)?;
    }
    Ok(())
}
