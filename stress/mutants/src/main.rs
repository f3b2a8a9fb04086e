//! Changes one expression of the library's code at a time and runs the tests that should notice.
//!
//! ```text
//! cargo run -p mutants -- [ROOM|FILE..] [--keep] [--sample K] [--jobs N] [-- ARGUMENTS OF CARGO TEST]
//! ```
//!
//! A build for each change would take a minute. So all of them are put into one build, of a copy of
//! the tree under target/mutants, each behind a switch: `a == b` becomes
//! `if on(17) { a != b } else { a == b }`, and the environment says which is on. A change that does
//! not compile is taken out again, by the places of the compiler's errors. Each test runs once to
//! tell which mutants it reaches, and for each mutant those tests run that do, until one fails.
//!
//! Ends with 1 if a mutant of the rooms or files (default: all) went unnoticed that
//! scripts/mutants_explained.txt does not list with a reason. `--keep` takes the last build with
//! its results so far, and builds tests that changed; `--sample K` tries every K-th mutant.

mod build;
mod render;
mod rooms;
mod sites;
mod trial;
mod values;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

struct Options {
    /// Rooms and files.
    wanted: Vec<String>,
    keep: bool,
    sample: usize,
    jobs: usize,
    cargo: Vec<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            wanted: Vec::new(),
            keep: false,
            sample: 1,
            jobs: 2,
            cargo: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            let mut number = || -> Result<usize> {
                let value = arguments.next().unwrap_or_default();
                value
                    .parse()
                    .with_context(|| format!("{argument}: expected a number, got {value:?}"))
            };
            match &*argument {
                "--keep" => options.keep = true,
                "--sample" => options.sample = number()?.max(1),
                "--jobs" => options.jobs = number()?.max(1),
                "--" => options.cargo = arguments.by_ref().collect(),
                room if rooms::ROOMS.iter().any(|(name, _)| *name == room) => {
                    options.wanted.push(argument)
                }
                file if rooms::of(file).is_some() => options.wanted.push(argument),
                file => bail!(
                    "expected --keep, --sample, --jobs, --, a file or a room, got {file:?}; the rooms are {}",
                    rooms::ROOMS.map(|(name, _)| name).join(", ")
                ),
            }
        }
        if options.wanted.is_empty() {
            options.wanted = rooms::ROOMS.map(|(name, _)| name.to_owned()).to_vec();
        }
        Ok(options)
    }

    /// The place of a mutant's file among what was asked for.
    fn place(&self, mutant: &build::Mutant) -> Option<usize> {
        let mut wanted = self.wanted.iter();
        wanted.position(|wanted| wanted == mutant.room || *wanted == mutant.file)
    }
}

fn main() -> Result<ExitCode> {
    let options = Options::parse(std::env::args().skip(1))?;
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let work = root.join("target/mutants");
    let built = build::build(&root, &work, &options)?;
    let missed = trial::run(&work, &built, &options)?;

    let explained = std::fs::read_to_string(root.join("scripts/mutants_explained.txt"))?;
    let explained: BTreeSet<&str> = explained
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split("  # ").next().unwrap_or(line))
        .collect();
    let missed = missed
        .iter()
        .filter(|mutant| !explained.contains(&*mutant.title()));
    let mut failed = false;
    for mutant in missed {
        println!(
            "unnoticed: {} (line {}, number {})",
            mutant.title(),
            mutant.line,
            mutant.number
        );
        failed = true;
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
