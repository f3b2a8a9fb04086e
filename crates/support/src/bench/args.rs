//! The arguments of every benchmark here.

use clap::{CommandFactory, FromArgMatches, Parser};

#[derive(Parser)]
pub struct Args {
    /// Threads of every contender.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Fewer rounds and nothing large.
    #[arg(long)]
    pub quick: bool,
    /// One JSON object instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Args {
    /// The arguments of the command line; `about` is for `--help`.
    pub fn of(about: &'static str) -> Self {
        let matches = Self::command().about(about).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    pub fn rounds(&self) -> usize {
        if self.quick { 9 } else { 41 }
    }
}
