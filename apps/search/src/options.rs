//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use dynquant_embed::ModelOptions;

use crate::rank::Rank;
use crate::walk::WalkOptions;

/// Search by meaning and by words in a folder of text files.
///
/// `index` needs a model of embeddings, which decides what "by meaning" finds. The first time:
///
///   dynquant-search index docs --model sentence-transformers/all-MiniLM-L6-v2
///
///   dynquant-search query --index docs how many CPU cores does a container use
///
/// The first command downloads the model, 91 MB; nothing is sent, and later ones need no network.
#[derive(Parser, Debug)]
#[command(name = "dynquant-search", version)]
pub struct Options {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Makes the index of a folder, or brings it up to date
    Index(IndexOptions),
    /// Shows the passages that answer a text best; without one, each line that is typed
    Query(QueryOptions),
}

/// Options of `index`.
#[derive(Args, Debug)]
pub struct IndexOptions {
    /// The folder
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// The file of the index [default: .dynquant-search/index in the folder]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Make the index anew, whatever is there
    #[arg(long)]
    pub rebuild: bool,

    /// Name the files that are left out
    #[arg(long, short)]
    pub verbose: bool,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub walk: WalkOptions,
}

/// Options of `query`.
#[derive(Args, Debug)]
pub struct QueryOptions {
    /// The text; lines of the standard input if there is none
    #[arg(value_name = "WORDS")]
    pub words: Vec<String>,

    /// An index, or a folder that has one [default: that of the working folder or of one above it]
    #[arg(long, value_name = "PATH")]
    pub index: Option<PathBuf>,

    /// The passages to show
    #[arg(short = 'k', long, value_name = "N", default_value_t = 5, value_parser = count)]
    pub count: usize,

    /// Rank by meaning, by words, which needs no model, or by both
    #[arg(long, value_name = "BY", default_value = "both")]
    pub rank: Rank,

    /// The lines to show of a passage
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = count)]
    pub lines: usize,

    /// When to use colours
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: Color,

    /// Print one JSON object for each query
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelOptions,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=10_000) => Ok(number),
        _ => Err("expected a whole number from 1 to 10000".to_owned()),
    }
}
