//! all-MiniLM-L6-v2 as an int8 checkpoint: its size, and the memory and time to load it, against
//! loading and quantizing the float checkpoint.
//!
//! ```text
//! scripts/fetch_minilm.sh target/minilm
//! cargo bench --bench checkpoint [-- --threads N] [--quick] [--json]
//! ```
//!
//! Each load runs in a separate process, in turns; the table gives medians. Memory is the peak of
//! resident memory (Linux), less the memory of a process that loads nothing. `DYNQUANT_MINILM`
//! names another folder.
#![allow(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device};
use candle_dynquant::{Checkpoint, QConfigSpec, checkpoint, quantize_dynamic};
use candle_dynquant_io::{child, print};
use candle_dynquant_support::bench::table::{self, Cell, cell, left};
use candle_dynquant_support::bench::{Args, median};
use candle_dynquant_support::bert::{Bert, Config};
use serde::Serialize;

/// The first argument of a process that loads a model and prints milliseconds and kilobytes.
const LOAD: &str = "load";
/// Far more than a load takes.
const LIMIT: Duration = Duration::from_secs(3600);
const FILE: &str = "model.safetensors";

#[derive(Serialize)]
struct Row {
    model: &'static str,
    /// The megabytes of the float file and of the int8 file.
    file_mb: [f64; 2],
    /// The milliseconds to load and quantize the float file, and to load the int8 file.
    load_ms: [f64; 2],
    peak_mb: [f64; 2],
}

impl table::Row for Row {
    fn cells(&self, _: &Args) -> Vec<Cell> {
        let pair = |[float, int8]: [f64; 2]| format!("{float:.1} -> {int8:.1}");
        let ratio = |a: f64, b: f64| format!("{:.2}", a / b);
        vec![
            left("model", 20, self.model),
            cell("file, MB", 13, pair(self.file_mb)),
            cell("load, ms", 15, pair(self.load_ms)),
            cell("ratio", 7, ratio(self.load_ms[1], self.load_ms[0])),
            cell("peak memory, MB", 21, pair(self.peak_mb)),
            cell("peak/file", 9, ratio(self.peak_mb[1], self.file_mb[1])),
        ]
    }
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, how, folder] = &arguments[..]
        && first == LOAD
    {
        return load(how, Path::new(folder));
    }
    table::run("Load MiniLM, int8 against float", "loading MiniLM", |args, show| {
        let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/minilm");
        let float = std::env::var_os("DYNQUANT_MINILM").map_or(default, PathBuf::from);
        let missing = "no model: run scripts/fetch_minilm.sh target/minilm";
        ensure!(float.join(FILE).exists(), missing);
        measure("int8", QConfigSpec::int8(), &float, args, show)?;
        let tables = QConfigSpec::int8().embeddings();
        measure("int8 with embeddings", tables, &float, args, show)
    })
}

fn measure(
    model: &'static str,
    spec: QConfigSpec,
    float: &Path,
    args: &Args,
    show: &mut dyn FnMut(Row),
) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let int8 = dir.path().join("int8");
    let source = Checkpoint::open(float)?;
    checkpoint::quantize(&source, &spec, &int8, |_| {})?;
    let how = match model {
        "int8" => "quantize",
        _ => "quantize with embeddings",
    };
    let mut runs = [("nothing", float), (how, float), ("int8", &int8)]
        .map(|(how, folder)| (how, folder, Vec::new(), Vec::new()));
    for _ in 0..args.rounds() {
        for (how, folder, ms, kilobytes) in &mut runs {
            let mut load = Command::new(std::env::current_exe()?);
            load.args([LOAD, how]).arg(folder);
            load.stdout(Stdio::piped()).stderr(Stdio::piped());
            let output = child::run(&mut load, b"", LIMIT)?;
            let text = String::from_utf8_lossy(&output.stdout);
            let error = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{how}: {error}");
            let (time, memory) = text.trim().split_once(' ').context("two numbers")?;
            ms.push(time.parse::<f64>()?);
            kilobytes.push(memory.parse::<f64>()?);
        }
    }
    let [empty, quantized, loaded] = runs.map(|(_, _, ms, kilobytes)| [ms, kilobytes].map(median));
    let bytes = |folder: &Path| -> Result<f64> { Ok(folder.join(FILE).metadata()?.len() as f64) };
    show(Row {
        model,
        file_mb: [bytes(float)? / 1e6, bytes(&int8)? / 1e6],
        load_ms: [quantized[0], loaded[0]],
        peak_mb: [quantized, loaded].map(|run| (run[1] - empty[1]) * 1024. / 1e6),
    });
    Ok(())
}

fn load(how: &str, folder: &Path) -> Result<ExitCode> {
    let config = Config::read(&folder.join("config.json"))?;
    let start = Instant::now();
    let open = || -> Result<Bert> {
        let vb = Checkpoint::open(folder)?.var_builder(DType::F32, &Device::Cpu);
        Ok(Bert::load(&config, false, vb)?)
    };
    let quantized = |spec| {
        let mut model = open()?;
        quantize_dynamic(&mut model, &spec)?;
        Ok::<_, anyhow::Error>(model)
    };
    let int8 = QConfigSpec::int8();
    let model = match how {
        "nothing" => None,
        "int8" => Some(open()?),
        "quantize" => Some(quantized(int8)?),
        _ => Some(quantized(int8.embeddings())?),
    };
    let ms = start.elapsed().as_secs_f64() * 1e3;
    print::line(format_args!("{ms:.3} {}", peak_kilobytes()?))?;
    drop(model);
    Ok(ExitCode::SUCCESS)
}

/// The peak of resident memory of this process.
fn peak_kilobytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("needs Linux")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let words = line.context("no VmHWM")?;
    Ok(words.trim_end_matches("kB").trim().parse()?)
}
