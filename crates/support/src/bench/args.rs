//! The arguments that all benchmarks take.

use clap::{CommandFactory, FromArgMatches, Parser};

#[derive(Parser)]
pub struct Args {
    /// The number of threads, for every contender.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Runs fewer rounds and nothing large.
    #[arg(long)]
    pub quick: bool,
    /// Prints one JSON object instead of the table.
    #[arg(long)]
    pub json: bool,
    /// A flag that cargo passes.
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Args {
    /// Parses the command line; `about` is for `--help`.
    pub fn parse_about(about: &'static str) -> Self {
        let matches = Self::command().about(about).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    pub fn rounds(&self) -> usize {
        if self.quick { 9 } else { 41 }
    }

    /// The shapes `m, k, n` of products that are timed.
    pub fn shapes<const N: usize>(&self, all: [[usize; 3]; N]) -> impl Iterator<Item = [usize; 3]> {
        let quick = self.quick;
        all.into_iter().filter(move |[m, k, n]| !quick || m * k * n <= 1 << 30)
    }
}
