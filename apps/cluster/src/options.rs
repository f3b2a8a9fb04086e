//! The command line.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use dynquant_embed::ModelOptions;
use tracing::level_filters::LevelFilter;

/// Embeddings of a Parquet data set as an SQL function, on one machine or on a Ballista cluster.
#[derive(Parser, Debug)]
#[command(name = "dynquant-cluster", version)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,

    /// Least level to log: error, warn, info, debug or off [default: info, for `run` off]
    #[arg(long, value_name = "LEVEL", global = true)]
    pub log_level: Option<LevelFilter>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a query and write its result, on this machine or, with --scheduler, on a cluster
    Run(RunOptions),
    /// Plan queries and hand their parts to executors
    Scheduler(SchedulerOptions),
    /// Compute parts of queries for a scheduler
    Executor(ExecutorOptions),
}

#[derive(Args, Debug)]
pub struct RunOptions {
    /// A Parquet file, or a folder of them: the table `data`. Executors read it under the same path
    #[arg(long, value_name = "PATH")]
    pub input: PathBuf,

    /// The Parquet file to write; it is replaced when the result is whole
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,

    /// The query. embed(text) is an embedding, classify(text) the label of a class
    #[arg(
        long,
        value_name = "SQL",
        default_value = "SELECT *, embed(text) AS embedding FROM data"
    )]
    pub sql: String,

    /// The scheduler of a cluster [default: run on this machine]
    #[arg(long, value_name = "df://HOST:PORT")]
    pub scheduler: Option<SchedulerUrl>,

    /// Parts of the query; a part has at least a row group of the input [default: one a core, on a
    /// cluster 64]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub partitions: Option<usize>,

    /// Cut texts that are too long for the model, instead of ending with an error
    #[arg(long)]
    pub truncate: bool,

    /// Print a JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub model: ModelOptions,
}

#[derive(Args, Debug)]
pub struct SchedulerOptions {
    /// Address to listen on
    #[arg(long, value_name = "IPv4", default_value_t = Ipv4Addr::LOCALHOST)]
    pub host: Ipv4Addr,

    /// Port to listen on; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub port: u16,

    /// The name under which executors reach this machine [default: --host]
    #[arg(long, value_name = "HOST")]
    pub advertise: Option<String>,

    /// Seconds without a sign of life after which an executor is lost and its parts are computed by
    /// others
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
    pub executor_timeout: usize,
}

#[derive(Args, Debug)]
pub struct ExecutorOptions {
    /// The scheduler
    #[arg(long, value_name = "df://HOST:PORT", default_value = "df://127.0.0.1:50050")]
    pub scheduler: SchedulerUrl,

    /// Address to listen on
    #[arg(long, value_name = "IPv4", default_value_t = Ipv4Addr::LOCALHOST)]
    pub host: Ipv4Addr,

    /// Port for results
    #[arg(long, value_name = "PORT", default_value_t = 50051, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Port for tasks
    #[arg(long, value_name = "PORT", default_value_t = 50052, value_parser = clap::value_parser!(u16).range(1..))]
    pub task_port: u16,

    /// The name under which others reach this machine [default: --host]
    #[arg(long, value_name = "HOST")]
    pub advertise: Option<String>,

    /// Parts of queries that are computed at a time [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub cores: Option<usize>,

    /// Folder for results until they are fetched; an executor that is killed leaves its own there
    /// [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,

    #[command(flatten)]
    pub model: ModelOptions,
}

const DEFAULT_PORT: u16 = 50050;

/// The address of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerUrl {
    pub host: String,
    pub port: u16,
}

impl FromStr for SchedulerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (host, port) = match text.strip_prefix("df://")?.split_once(':') {
                Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0)?),
                None => (text.strip_prefix("df://")?, DEFAULT_PORT),
            };
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            let host = Some(host).filter(|host| !host.is_empty() && host.chars().all(is_name))?;
            Some(Self { host: host.to_owned(), port })
        };
        parse().ok_or_else(|| format!("expected df://HOST:PORT, got {text:?}"))
    }
}

impl fmt::Display for SchedulerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "df://{}:{}", self.host, self.port)
    }
}

/// The name under which others reach a process that listens on `host`.
pub fn advertised(host: Ipv4Addr, name: Option<&String>) -> anyhow::Result<String> {
    match name {
        Some(name) => Ok(name.clone()),
        None if host.is_unspecified() => anyhow::bail!(
            "--advertise: expected the name under which others reach this machine, as it listens on {host}, got none"
        ),
        None => Ok(host.to_string()),
    }
}

/// Parses a number from 1 to a million.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1_000_000) => Ok(number),
        _ => Err("expected a whole number from 1 to 1000000".to_owned()),
    }
}
