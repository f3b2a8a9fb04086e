//! The cost of quantization for a model: its vectors against float, and its answers to a retrieval
//! task.
//!
//!     scripts/fetch_minilm.sh target/minilm
//!     cargo run --release --manifest-path apps/Cargo.toml --target-dir target \
//!         -p dynquant-embed --features program --example accuracy -- target/minilm
//!
//! The task is a folder as in BEIR: `corpus.jsonl`, `queries.jsonl`, and the judgements in
//! `qrels.tsv` or `qrels/test.tsv`. The default is `assets/retrieval`, 84 short passages and 60
//! queries. Cosine and SQNR compare the vectors of all texts, Spearman's correlation the scores of
//! a query's passages.

mod measure;
mod task;

use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use candle_dynquant::checkpoint::quantize;
use candle_dynquant::{Checkpoint, QConfigSpec};
use clap::Parser;
use dynquant_embed::program::{self, print};
use dynquant_embed::{Embedder, ModelOptions, Options, Preset};
use measure::{Figures, Vectors};
use task::Task;

/// Compare quantized vectors with float ones, by themselves and in a retrieval task
#[derive(Parser)]
struct Arguments {
    /// A folder of a float model that makes embeddings
    model: PathBuf,

    /// The retrieval task: corpus.jsonl, queries.jsonl and qrels.tsv
    #[arg(long, value_name = "DIR", default_value = TASK)]
    task: PathBuf,

    /// A preset, once or more
    #[arg(long, value_name = "NAME", default_values = PRESETS)]
    preset: Vec<String>,

    /// Also the preset int8 equalized by the texts of this file, one a line
    #[arg(long, value_name = "FILE")]
    equalize: Option<PathBuf>,

    /// A folder of the same model that is quantized already, once or more
    #[arg(long, value_name = "DIR")]
    quantized: Vec<PathBuf>,

    /// Fail where nDCG@10 is lower than float's by more than this
    #[arg(long, value_name = "NUMBER")]
    max_loss: Option<f64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const TASK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/retrieval");
const PRESETS: [&str; 5] = ["int8", "int8_groups", "int4", "float16", "bfloat16"];

fn main() -> ExitCode {
    program::main(run)
}

fn run(arguments: &Arguments) -> Result<()> {
    let task = Task::read(&arguments.task)?;
    let specs = arguments.preset.iter().map(|name| {
        let spec = QConfigSpec::preset(name).context("--preset")?;
        Ok((name.as_str(), spec))
    });
    let specs: Vec<(&str, QConfigSpec)> = specs.collect::<Result<_>>()?;
    let options = Options::new().preset(Preset::NONE);
    let float = vectors("float", &arguments.model, options, &task)?;
    let mut rows = vec![Figures::new("float", &float, &float, &task)];
    let work = tempfile::tempdir().context("expected a place for temporary files")?;
    for (name, spec) in &specs {
        let out = work.path().join(name);
        let source = Checkpoint::open(&arguments.model)?;
        quantize(&source, spec, &out, |_| ())?;
        let vectors = vectors(name, &out, Options::new(), &task)?;
        std::fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
        rows.push(Figures::new(name, &vectors, &float, &task));
    }
    if arguments.equalize.is_some() {
        let name = "int8, equalized";
        let options = ModelOptions {
            preset: Some(Preset::default()),
            equalize: arguments.equalize.clone(),
            ..ModelOptions::default()
        };
        let vectors = vectors(name, &arguments.model, options.options()?, &task)?;
        rows.push(Figures::new(name, &vectors, &float, &task));
    }
    for folder in &arguments.quantized {
        let name = folder.display().to_string();
        let vectors = vectors(&name, folder, Options::new(), &task)?;
        float.check_shape(&vectors).with_context(|| name.clone())?;
        rows.push(Figures::new(&name, &vectors, &float, &task));
    }
    show(arguments, &task, &rows)?;
    check(&rows, arguments.max_loss)
}

/// The vectors of all texts of the task.
fn vectors(name: &str, folder: &Path, options: Options, task: &Task) -> Result<Vectors> {
    let label = print::on_one_line(name).into_owned();
    let options = options.on_progress(move |done, all| progress(&label, done, all));
    let embedder = Embedder::open_with(folder, options)?;
    Ok(Vectors {
        passages: embedder.embed_documents(&task.passages)?,
        queries: embedder.embed_queries(&task.queries)?,
    })
}

/// Shows the progress; the last text clears the line.
fn progress(name: &str, done: usize, all: usize) {
    if !stderr().is_terminal() {
        return;
    }
    if done < all {
        print::progress(format_args!("\r{name}: {done} of {all} texts\x1b[K"));
    } else {
        print::progress("\r\x1b[K");
    }
}

fn show(arguments: &Arguments, task: &Task, rows: &[Figures]) -> Result<()> {
    let (passages, queries) = (task.passages.len(), task.queries.len());
    if arguments.json {
        let figures = serde_json::json!({
            "model": arguments.model,
            "passages": passages,
            "queries": queries,
            "rows": rows,
        });
        return Ok(print::data(figures)?);
    }
    let model = arguments.model.display();
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    print::line(format_args!(
        "{model}: {passages} passages, {queries} queries\n\n{:width$}  {}",
        "",
        Figures::HEADER
    ))?;
    for row in rows {
        print::line(format_args!("{:width$}  {row}", row.name))?;
    }
    Ok(())
}

fn check(rows: &[Figures], max_loss: Option<f64>) -> Result<()> {
    let (Some(max_loss), Some(float)) = (max_loss, rows.first()) else {
        return Ok(());
    };
    let least = float.ndcg_10 - max_loss;
    for row in rows {
        ensure!(
            row.ndcg_10 >= least,
            "{}: expected an nDCG@10 of at least {least:.4}, got {:.4}",
            row.name,
            row.ndcg_10
        );
    }
    Ok(())
}
