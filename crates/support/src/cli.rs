//! The command line that the examples share: common options, exit codes, progress, output.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use candle_dynquant::{QConfigSpec, Report};
use candle_dynquant_io::print;
use clap::Parser;
use serde::Serialize;

use crate::{repository, threads};

/// The options of every example.
#[derive(clap::Args, Debug)]
pub struct Common {
    #[arg(long, value_name = "NAME", default_value = "int8", help = presets())]
    pub preset: String,

    /// Rules in YAML or JSON in place of a preset
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub spec: Option<PathBuf>,

    /// Threads of this run [default: set by the environment, else all cores]
    #[arg(long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<usize>,

    /// Print the outcome of every layer, in groups
    #[arg(long)]
    pub report: bool,

    /// Print one JSON object instead of text; the report then goes to stderr
    #[arg(long)]
    pub json: bool,
}

/// The path given, or an asset of this repository, and its name in figures.
pub fn model(given: Option<&PathBuf>, asset: &str) -> (PathBuf, String) {
    match given {
        Some(path) => (path.clone(), path.display().to_string()),
        None => (repository().join(asset), asset.to_owned()),
    }
}

/// The help on `--preset`.
fn presets() -> String {
    format!("Preset: {}", QConfigSpec::PRESETS.join(", "))
}

/// The arguments of one example.
pub trait Arguments: Parser {
    fn common(&self) -> &Common;
    fn run(&self) -> Result<()>;
}

/// Parses the arguments, sets the number of threads, runs the example and prints its error.
pub fn main<A: Arguments>() -> ExitCode {
    let arguments = match A::try_parse() {
        Ok(arguments) => arguments,
        Err(text) => return print::usage(text.render(), text.use_stderr().then_some(1)),
    };
    print::ended(start(&arguments))
}

fn start(arguments: &impl Arguments) -> Result<ExitCode> {
    if let Some(count) = arguments.common().threads
        && let Some(code) = threads::respawn(count).context("--threads")?
    {
        return Ok(code);
    }
    arguments.run()?;
    Ok(ExitCode::SUCCESS)
}

impl Common {
    /// The preset, or the file, as a spec.
    pub fn spec(&self) -> Result<QConfigSpec> {
        match &self.spec {
            Some(file) => QConfigSpec::from_file(file).context("--spec"),
            None => QConfigSpec::preset(&self.preset).context("--preset"),
        }
    }

    /// The name of the preset or of the file.
    pub fn name(&self) -> String {
        match &self.spec {
            Some(file) => file.display().to_string(),
            None => self.preset.clone(),
        }
    }

    /// Prints the figures as JSON or as `text`, and the report if it was requested.
    pub fn print(
        &self,
        report: &Report,
        figures: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        match (self.report, self.json) {
            (true, true) => print::note(report),
            (true, false) => print::line(report)?,
            (false, _) => {}
        }
        if self.json {
            print::data(serde_json::to_string(figures)?)?;
        } else {
            print::line(text())?;
        }
        Ok(())
    }
}

/// A count of completed steps, on stderr if it is a terminal.
pub struct Progress {
    what: &'static str,
    done: usize,
}

impl Progress {
    /// A count of 0 steps, called `what`, such as `batches`.
    pub fn new(what: &'static str) -> Self {
        Self { what, done: 0 }
    }

    /// Counts a step, of `total`.
    pub fn tick(&mut self, total: usize) {
        self.done += 1;
        if std::io::stderr().is_terminal() {
            if self.done < total {
                print::progress(format_args!("\r{}/{total} {}", self.done, self.what));
            } else {
                // The last step clears the line.
                print::progress("\r\x1b[K");
            }
        }
    }
}

/// Parses a number of 1 or more.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        // The limit is above any text's length, and products with a size do not overflow.
        Ok(number @ 1..=0x7fff_ffff) => Ok(number),
        _ => Err("expected a whole number from 1 to 2147483647".to_owned()),
    }
}

fn thread_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("expected a whole number from 1 to 1024".to_owned()),
    }
}
