//! Runs a character-level LSTM, or GRU, in float and in int8, side by side: perplexity on held-out
//! text, generated text, speed, bytes.
//!
//!     cargo run --release --example lstm
//!     cargo run --release --example lstm -- --gru --prompt "And he said" --threads 1
//!
//! A folder whose weights `dynquant quantize` wrote is run by the quantized model alone:
//!
//!     mkdir target/lstm-int8
//!     cp assets/lstm/{config.json,vocab.json,heldout.txt} target/lstm-int8
//!     cargo run --release --bin dynquant -- quantize assets/lstm/lstm.safetensors -o target/lstm-int8/lstm.safetensors
//!     cargo run --release --example lstm -- --model-dir target/lstm-int8
//!
//! The first command prints, with the speeds and the instruction set of your machine:
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
//! perplexity per character              2.5494        2.5496
//! bits per character                    1.3502        1.3503
//! same best guess as float                           99.42 %
//! ...
//! weights of swapped layers            3.67 MB       0.95 MB
//! whole model                          3.69 MB       0.97 MB
//! ```
//!
//! The model is `crates/support/src/lstm/model.rs`, which the fuzz targets also read; beside it
//! `folder` reads and checks files, and `text` turns characters into numbers. Here `generate`
//! writes text, `measure` runs both models, `figures` prints the results.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod figures;
mod generate;
mod measure;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use candle_dynquant::quantize_dynamic;
use candle_dynquant_io::print;
use candle_dynquant_support::cli::{self, Arguments, Common, Progress, positive};
use candle_dynquant_support::lstm::{Folder, text};
use clap::Parser;
use mimalloc::MiMalloc;

use figures::{Figures, Measured};
use generate::{Generator, Sampling};
use measure::Streams;

/// Keeps the memory of large results for the next call; glibc's returns 32 MiB and more to the
/// system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A character-level language model in float and in int8, side by side: perplexity, text, speed,
/// bytes.
///
/// Without arguments it runs the LSTM in assets/lstm on held-out chapters.
#[derive(Parser, Debug)]
#[command(name = "lstm", version, allow_negative_numbers = true)]
struct Args {
    /// A folder with config.json, vocab.json, lstm.safetensors or gru.safetensors, and heldout.txt
    #[arg(long, value_name = "DIR")]
    model_dir: Option<PathBuf>,

    /// Run the folder's GRU, not its LSTM
    #[arg(long)]
    gru: bool,

    /// The text to measure perplexity on [default: heldout.txt of the model]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// Number of parts of the text that are read as one batch, each with its own state
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = positive)]
    batch: usize,

    /// Start of the generated text
    #[arg(long, value_name = "TEXT", default_value = "In those days ")]
    prompt: String,

    /// Characters to generate
    #[arg(long, value_name = "N", default_value_t = 480, value_parser = positive)]
    length: usize,

    /// Seed of the generated text
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Sampling temperature: 1 draws from the model's distribution, 0 takes the most likely
    /// character
    #[arg(long, value_name = "T", default_value_t = 0.5, value_parser = temperature)]
    temperature: f64,

    #[command(flatten)]
    common: Common,
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0. ..=100.).contains(&number) => Ok(number),
        _ => Err("expected a number from 0 to 100".to_owned()),
    }
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

impl Arguments for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        let spec = self.common.spec()?;
        let (dir, model) = cli::model(self.model_dir.as_ref(), "assets/lstm");
        let folder = Folder::read(&dir, self.gru)?;
        let prompt = folder.vocab.encode("--prompt", &self.prompt)?;
        ensure!(!prompt.is_empty(), "--prompt: expected at least one character, got none");
        let heldout = folder.path.join("heldout.txt");
        let ids = text::read(self.text.as_ref().unwrap_or(&heldout), &folder.vocab)?;
        let streams = Streams::new(&ids, self.batch)?;

        let sampling = Sampling { seed: self.seed, temperature: self.temperature };
        if folder.is_quantized {
            return self.answer(&folder, &streams, &prompt, sampling);
        }
        let float = folder.model;
        let mut quantized = float.clone();
        let report = quantize_dynamic(&mut quantized, &spec)?;

        let mut progress = Progress::new("steps");
        let tick = || progress.tick(streams.calls());
        let readings = measure::read(&float, &quantized, &streams, tick)?;
        let writings = measure::write(&float, &quantized, &prompt, self.length, sampling)?;

        let spell = |ids: &[u32]| ids.iter().map(|id| folder.vocab.character(*id)).collect();
        let figures = Figures::new(
            model,
            if self.gru { "gru" } else { "lstm" },
            self.common.name(),
            Measured {
                readings: &readings,
                writings: &writings,
                texts: [&writings[0], &writings[1]].map(|writing| spell(&writing.text)),
                report: &report,
                float_bytes: folder.bytes,
            },
        );
        self.common.print(&report, &figures, || figures.text(&report, &self.prompt))
    }
}

impl Args {
    /// Prints the text and the perplexity of a model that was loaded quantized, without a float
    /// model beside it.
    fn answer(
        &self,
        folder: &Folder,
        streams: &Streams,
        prompt: &[u32],
        sampling: Sampling,
    ) -> Result<()> {
        let mut generator = Generator::new(&folder.model, prompt, sampling)?;
        let mut text = String::new();
        for _ in 0..self.length {
            text.push(folder.vocab.character(generator.step()?));
        }
        let [reading, _] = measure::read(&folder.model, &folder.model, streams, || {})?;
        let perplexity = reading.perplexity();
        if self.common.json {
            print::data(
                serde_json::json!({"perplexity": perplexity, "total_bytes": folder.bytes, "text": text}),
            )?;
        } else {
            print::line(format_args!(
                "{}{text}\nperplexity {perplexity:.4} per character, {:.2} MB of tensors",
                self.prompt,
                folder.bytes as f64 / 1e6
            ))?;
        }
        Ok(())
    }
}
