//! Runs a BERT in float and in int8, side by side: answers, accuracy, latency, bytes.
//!
//!     cargo run --release --example bert
//!     cargo run --release --example bert -- --embeddings
//!     cargo run --release --example bert -- --model-dir DIR --threads 2 --json
//!
//! A folder that `dynquant quantize` wrote is answered by the quantized model alone:
//!
//!     cargo run --release --bin dynquant -- quantize assets/bert -o target/bert-int8
//!     cargo run --release --example bert -- --model-dir target/bert-int8
//!
//! `--embeddings` also quantizes the embedding tables, which are off by default; `--equalize` moves
//! range from the outputs of layer norms to the weights that multiply them, before they are
//! quantized; `--gptq` quantizes weights in groups for the inputs that layers have; `--attention
//! bfloat16` or `int8` has the attention of the quantized model multiply in that precision;
//! `--page` writes a page with pictures, and `--profile` prints the time of each stage. The first
//! command prints, with the times and the instruction set of your machine:
//!
//! ```text
//! assets/bert: 3201 texts in batches of 32
//! 26 of 33 layers swapped (int8)
//!
//! text                                                          float               quantized           label
//! "The Hammer of Thursagan" official campaign for Wesnoth (br…  games 0.93          games 0.93          games
//! ...
//!
//!                                        float     quantized
//! accuracy                             79.35 %       79.35 %
//! same class as float                                99.81 %
//! SQNR against float                                44.29 dB
//! ...
//! weights of swapped layers            3.23 MB       0.85 MB
//! whole model                          5.75 MB       3.37 MB
//! ```
//!
//! The model is `crates/support/src/bert/model.rs`, which tests, benchmarks and `apps` also use.
//! Beside it `folder` reads and checks files, `texts` makes batches, `measure` runs them. Here
//! `figures` prints the results; `hub` is for `--hub`, `probe` for `--equalize`, `--gptq` and
//! `--page`, `profile` for `--profile`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod figures;
mod hub;
mod probe;
mod profile;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use candle_dynquant::ops::Precision;
use candle_dynquant::{LayerKind, QConfigSpec, Report, quantize_dynamic, quantize_dynamic_with};
use candle_dynquant_io::print;
use candle_dynquant_support::bert::texts::{self, Text};
use candle_dynquant_support::bert::{Batch, Bert, Folder, measure};
use candle_dynquant_support::cli::{self, Arguments, Common, Progress, positive};
use clap::Parser;
use mimalloc::MiMalloc;

use figures::{Figures, LoadedFigures, Measured};

/// Keeps the memory of large results for the next call; glibc's returns 32 MiB and more to the
/// system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A BERT in float and in int8, side by side: answers, accuracy, latency, bytes.
///
/// Without arguments it runs the classifier in assets/bert on held-out texts.
#[derive(Parser, Debug)]
#[command(name = "bert", version)]
struct Args {
    /// A Hugging Face folder, float or quantized: config.json, tokenizer.json, model.safetensors
    /// (or its index and shards)
    #[arg(long, value_name = "DIR", conflicts_with = "hub")]
    model_dir: Option<PathBuf>,

    /// A model on the Hugging Face Hub, for example sentence-transformers/all-MiniLM-L6-v2; needs
    /// curl
    #[arg(long, value_name = "ID")]
    hub: Option<String>,

    /// One text per line, or `label<TAB>text` [default: heldout.tsv of the model, else example
    /// sentences]
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,

    /// Also quantize the tables of words, positions and token types
    #[arg(long)]
    embeddings: bool,

    /// Equalize layer norms and the layers that read them before quantizing: more accurate, as fast
    #[arg(long)]
    equalize: bool,

    /// Quantize weights in groups, as of --preset int4, for the inputs that layers have on a few
    /// sentences: more accurate, as fast
    #[arg(long)]
    gptq: bool,

    /// The sentences for --equalize and --gptq, one per line [default: 16 of many kinds]
    #[arg(long, value_name = "FILE")]
    sentences: Option<PathBuf>,

    /// Precision of the factors in the quantized model's attention, where the spec leaves float32:
    /// bfloat16 is faster with AVX512-BF16, int8 with VNNI
    #[arg(long, value_name = "NAME", default_value_t)]
    attention: Precision,

    /// Also write a page with pictures of what quantization did, measured on the first batch
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,

    /// Also write the quantized model as a folder, which --model-dir reads
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,

    /// Also print the time of each stage of both models
    #[arg(long)]
    profile: bool,

    /// Texts in a batch
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive)]
    batch: usize,

    /// Cut texts to this many tokens; without it a text that is too long is an error
    #[arg(long, value_name = "N", value_parser = positive)]
    seq_len: Option<usize>,

    /// Minimum number of batches that are timed; if there are fewer, they are repeated
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = positive)]
    timings: usize,

    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

impl Arguments for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        let spec = self.spec()?;
        let (path, name) = self.model()?;
        let mut folder = Folder::read(&path)?;
        let texts = folder.texts(self.texts.as_deref())?;
        let strings: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
        let batches = folder.batches(&strings, self.seq_len, self.batch)?;

        if folder.is_quantized {
            return self.answer(&mut folder, name, &texts, &batches);
        }
        let float = folder.model.clone();
        let (mut before, mut quantized, report) = self.quantized(&folder, spec)?;

        let mut progress = Progress::new("batches");
        let runs = measure::side_by_side(&float, &quantized, &batches, self.timings, |total| {
            progress.tick(total);
        })?;
        if let (Some(path), Some(batch)) = (&self.page, batches.first()) {
            let title = format!("{name}, {}", self.common.name());
            probe::write_page(path, &title, [&mut before, &mut quantized], batch)?;
        }
        if let Some(out) = &self.save {
            let source = candle_dynquant::Checkpoint::open(&folder.path)?;
            candle_dynquant::checkpoint::save(&quantized, &source, out)?;
        }
        let measured = Measured {
            texts: &texts,
            runs: &runs,
            report: &report,
            float_bytes: folder.bytes,
            is_classifier: float.is_classifier(),
        };
        let preset = self.common.name();
        let options = [self.embeddings, self.equalize];
        let mut figures = Figures::new(name, preset, options, self.attention, &measured);
        if self.profile {
            figures.stages = profile::stages(&float, &quantized, &batches)?;
        }
        self.common
            .print(&report, &figures, || figures.text(&measured, &folder.config.labels, self.batch))
    }
}

impl Args {
    /// The preset or the file as a spec, with the options of the command line.
    fn spec(&self) -> Result<QConfigSpec> {
        let mut spec = self.common.spec()?;
        if self.embeddings {
            spec = spec.embeddings();
        }
        if self.attention != Precision::Float32 {
            spec = spec.kind(LayerKind::Attention, self.attention);
        }
        Ok(spec)
    }

    /// The float model before quantizing, equalized or not; the quantized model; and the report.
    fn quantized(&self, folder: &Folder, spec: QConfigSpec) -> Result<(Bert, Bert, Report)> {
        let mut quantized = folder.model.clone();
        let sentences = match &self.sentences {
            Some(path) => texts::read(path, &[], false)?,
            None => Vec::new(),
        };
        let sentences: Vec<&str> = sentences.iter().map(|t| t.text.as_str()).collect();
        if self.equalize {
            let equalized = probe::equalized(&mut quantized, folder, &sentences)?;
            if self.common.report {
                print::note(equalized);
            }
        }
        let before = quantized.clone();
        let mut progress = Progress::new("layers quantized");
        let report = if self.gptq {
            probe::by_inputs(&mut quantized, folder, spec, &sentences)?
        } else {
            quantize_dynamic_with(&mut quantized, &spec, |now| {
                progress.tick(now.total_layers);
                ControlFlow::Continue(())
            })?
        };
        Ok((before, quantized, report))
    }

    /// Prints the answers of a model that was loaded from a quantized folder, without a float model
    /// beside it.
    fn answer(
        &self,
        folder: &mut Folder,
        model: String,
        texts: &[Text],
        batches: &[Batch],
    ) -> Result<()> {
        ensure!(
            !self.equalize
                && !self.gptq
                && !self.profile
                && self.page.is_none()
                && self.save.is_none(),
            "--equalize, --gptq, --page, --profile and --save need a float model"
        );
        if self.attention != Precision::Float32 {
            let spec = QConfigSpec::new().kind(LayerKind::Attention, self.attention);
            let report = quantize_dynamic(&mut folder.model, &spec)?;
            ensure!(
                report.swapped().count() > 0,
                "--attention {}: the folder's attention has fewer bits already",
                self.attention
            );
        }
        let answers = measure::answers(&folder.model, batches)?;
        let figures = LoadedFigures {
            model,
            accuracy: measure::accuracy(texts, &answers).filter(|_| folder.model.is_classifier()),
            total_bytes: folder.bytes,
            answers,
        };
        if self.common.json {
            return Ok(print::data(serde_json::to_string(&figures)?)?);
        }
        if folder.model.is_classifier() {
            for (text, answer) in texts.iter().zip(&figures.answers).take(12) {
                let (class, probability) = measure::class(answer);
                let label = &folder.config.labels[class];
                print::line(format_args!("{probability:.2} {label} {}", text.text))?;
            }
        }
        if let Some(accuracy) = figures.accuracy {
            print::line(format_args!("accuracy {:.2} %", 100. * accuracy))?;
        }
        Ok(print::line(format_args!(
            "{} texts, {:.2} MB of tensors",
            texts.len(),
            figures.total_bytes as f64 / 1e6
        ))?)
    }

    /// The folder of the model, downloaded if it is on the hub, and its name.
    fn model(&self) -> Result<(PathBuf, String)> {
        match &self.hub {
            Some(id) => Ok((hub::fetch(id)?, id.clone())),
            None => Ok(cli::model(self.model_dir.as_ref(), "assets/bert")),
        }
    }
}
