//! Tunes a BERT: the smallest mix of int8, float16 and float layers that meets a criterion.
//!
//!     cargo run --release --example tune
//!     cargo run --release --example tune -- --strategy basic --metric agreement
//!     cargo run --release --example tune -- --config FILE.yaml --json
//!
//! The criterion is by default an SQNR of 46 dB against the float model's answers, which int8
//! misses: 34.7 dB with a scale per tensor, 44.3 dB with one per row. `--config` reads Neural
//! Compressor's YAML, whose criterion is then about the accuracy on labelled texts.
//!
//! Each trial is a line of `target/tune/history.jsonl`; `--resume` continues a search that was
//! stopped, by ctrl-c for example, which ends it after the trial with the best model found.
//! `target/tune/page.html` shows the search and the tuned model, which is written to
//! `target/tune/checkpoint`, loaded again, and evaluated once more:
//!
//! ```text
//! |*******Mixed LayerPrecision Statistics*******|
//! +-----------+-------+------+------+------+
//! |  Op Type  | Total | INT8 | FP16 | FP32 |
//! +-----------+-------+------+------+------+
//! |   Linear  |   26  |  24  |   2  |   0  |
//! | Embedding |   3   |   0  |   0  |   3  |
//! ...
//! float16: pooler.dense, classifier
//! ...
//! criterion met: at least 46.000000
//! 6 trials, 7 evaluations; stopped because the criterion is met
//! target/tune/history.jsonl: every trial
//! target/tune/page.html: the search, and errors, sizes and distributions of each layer
//! target/tune/checkpoint: loads to the same sqnr, 47.34633
//! ```
//!
//! `metric` evaluates; it shares the model and the readers of `examples/bert`, in `crates/support`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod metric;

use std::collections::BTreeMap;
use std::fs;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use candle_dynquant::inspect;
use candle_dynquant::tune::{LayerPrecision, Stopped, Strategy, tune_with};
use candle_dynquant::{Checkpoint, TuningConfig, TuningOutcome};
use candle_dynquant_io::{output, print};
use candle_dynquant_support::bert::Folder;
use candle_dynquant_support::cli::{self, Arguments, Common, positive};
use candle_dynquant_support::repository;
use clap::Parser;
use mimalloc::MiMalloc;
use serde::Serialize;
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use metric::{Evaluation, Metric};

/// Keeps the memory of large results for the next call; glibc's returns 32 MiB and more to the
/// system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Finds the smallest mix of int8, float16 and float layers of a BERT that meets a criterion.
///
/// Without arguments it tunes the classifier in assets/bert on its held-out texts.
#[derive(Parser, Debug)]
#[command(name = "tune", version)]
struct Args {
    /// A Hugging Face folder: config.json, tokenizer.json, model.safetensors
    #[arg(long, value_name = "DIR", default_value_os_t = repository().join("assets/bert"))]
    model_dir: PathBuf,

    /// One text per line, or `label<TAB>text` [default: heldout.tsv of the model, else example
    /// sentences]
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,

    /// Criterion, strategy and limits in Neural Compressor's YAML
    #[arg(long, value_name = "FILE", conflicts_with = "goal")]
    config: Option<PathBuf>,

    /// Order of trials: basic, sensitivity or by_kind
    #[arg(long, value_name = "NAME")]
    strategy: Option<Strategy>,

    /// Evaluation: accuracy, agreement with float, or sqnr in dB [default: accuracy with --config,
    /// else sqnr]
    #[arg(long, value_name = "NAME")]
    metric: Option<Metric>,

    /// The value of the metric that the tuned model must have
    #[arg(long, value_name = "X")]
    goal: Option<f64>,

    /// Folder for the history, the page and the checkpoint
    #[arg(long, value_name = "DIR", default_value_os_t = repository().join("target/tune"))]
    out: PathBuf,

    /// Continue the search of the history in --out
    #[arg(long)]
    resume: bool,

    /// Texts in a batch
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive)]
    batch: usize,

    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

/// The JSON object.
#[derive(Serialize)]
struct Figures<'a> {
    met: bool,
    metric: String,
    baseline: f64,
    target: f64,
    best: f64,
    evals: usize,
    trials: usize,
    stopped: &'a Stopped,
    history: &'a Path,
    page: &'a Path,
    checkpoint: &'a Path,
    /// The number of layers by their final precision.
    layers: BTreeMap<LayerPrecision, usize>,
}

impl Arguments for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        let mut folder = Folder::read(&self.model_dir)?;
        ensure!(
            !folder.is_quantized,
            "{}: expected a float model, got a quantized one",
            self.model_dir.display()
        );
        let metric = self.metric(&folder);
        let evaluation = Evaluation::new(metric, &folder, self.texts.as_deref(), self.batch)?;
        fs::create_dir_all(&self.out)
            .with_context(|| format!("{}: expected a folder", self.out.display()))?;
        let [history, page, out] =
            ["history.jsonl", "page.html", "checkpoint"].map(|name| self.out.join(name));
        let config = self.tuning_config(metric, &history)?;

        let mut float = folder.model.clone();
        let interrupted = interruption()?;
        let on_terminal = std::io::stderr().is_terminal();
        let outcome = tune_with(
            &mut folder.model,
            &config,
            |model| evaluation.evaluate(model),
            |progress| {
                if on_terminal {
                    let progress = progress.to_string();
                    print::progress(format_args!("\r\x1b[K{}", print::on_one_line(&progress)));
                } else {
                    print::note(progress);
                }
                if interrupted.load(Ordering::Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        )?;
        if on_terminal {
            print::progress("\n");
        }
        let best = outcome.best().map_or(outcome.baseline, |trial| trial.value);
        if let Some(sample) = evaluation.sample() {
            let title = format!("{}, tuned", self.model_dir.display());
            let inspection =
                inspect::inspect(&mut float, &mut folder.model, |model| model.forward(sample))?;
            output::write(&page, inspection.page(&title, &outcome.curve()))
                .with_context(|| format!("cannot write {}", page.display()))?;
        }
        self.save(&folder, &out, &evaluation, best)?;
        self.print(&outcome, metric, best, [&history, &page, &out])
    }
}

/// Whether ctrl-c was pressed; a second ctrl-c ends the process.
fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    // The order matters: the first handler must find the flag unset.
    flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&interrupted))?;
    flag::register(SIGINT, Arc::clone(&interrupted))?;
    Ok(interrupted)
}

impl Args {
    fn metric(&self, folder: &Folder) -> Metric {
        match (self.metric, folder.model.is_classifier()) {
            (Some(metric), _) => metric,
            (None, true) if self.config.is_some() => Metric::Accuracy,
            (None, _) => Metric::Sqnr,
        }
    }

    fn tuning_config(&self, metric: Metric, history: &Path) -> Result<TuningConfig> {
        let config = match &self.config {
            Some(path) => TuningConfig::from_file(path)?,
            None => {
                let goal = self.goal.unwrap_or(metric.default_goal());
                let config = TuningConfig::default().spec(self.common.spec()?);
                match metric.of_float() {
                    Some(float) => config.absolute(float - goal),
                    // The permitted loss of accuracy is the default of Neural Compressor.
                    None => config,
                }
            }
        };
        let config = match self.strategy {
            Some(strategy) => config.strategy(strategy),
            None => config,
        };
        Ok(if self.resume { config.resume(history) } else { config.history(history) })
    }

    /// Writes the model, loads it again, and checks that both are equal.
    fn save(&self, tuned: &Folder, out: &Path, evaluation: &Evaluation, best: f64) -> Result<()> {
        let source = Checkpoint::open(&self.model_dir)?;
        candle_dynquant::checkpoint::save(&tuned.model, &source, out)?;
        let again = evaluation.evaluate(&Folder::read(out)?.model)?;
        ensure!(
            again == best,
            "{}: expected {best}, as the tuned model has, got {again}",
            out.display()
        );
        Ok(())
    }

    fn print(
        &self,
        outcome: &TuningOutcome,
        metric: Metric,
        best: f64,
        [history, page, checkpoint]: [&Path; 3],
    ) -> Result<()> {
        if !self.common.json {
            let [history, page, name] = [history, page, checkpoint].map(Path::display);
            let of_page = "the search, and errors, sizes and distributions of each layer";
            return Ok(print::line(format_args!(
                "{outcome}\n{history}: every trial\n{page}: {of_page}\n\
                 {name}: loads to the same {metric}, {best:.5}"
            ))?);
        }
        let mut layers = BTreeMap::new();
        for layer in &outcome.layers {
            *layers.entry(layer.precision).or_default() += 1;
        }
        let figures = Figures {
            met: outcome.met,
            metric: metric.to_string(),
            baseline: outcome.baseline,
            target: outcome.target,
            best,
            evals: outcome.evals,
            trials: outcome.trials.len(),
            stopped: &outcome.stopped,
            history,
            page,
            checkpoint,
            layers,
        };
        Ok(print::data(serde_json::to_string(&figures)?)?)
    }
}
