//! Measures an index of a folder: the time to make it, to bring it up to date and to answer a
//! query. `run.sh` calls it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use dynquant_embed::ModelOptions;
use dynquant_embed::program::{self, print};
use dynquant_search::place::Place;
use dynquant_search::progress::Progress;
use dynquant_search::rank::Rank;
use dynquant_search::search::Searcher;
use dynquant_search::update::{Outcome, Update};
use dynquant_search::walk::WalkOptions;
use mimalloc::MiMalloc;
use serde::Serialize;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The results of a query.
const COUNT: usize = 10;
/// Queries before the first that is measured.
const WARM_UP: usize = 50;
const MOST_MILLISECONDS: f64 = 10.;

#[derive(Parser)]
struct Options {
    /// A folder of texts; one of its files is changed, and put back
    #[arg(long)]
    corpus: PathBuf,
    /// A file with a query a line
    #[arg(long)]
    queries: PathBuf,
    /// The least number of passages that differ
    #[arg(long, default_value_t = 20_000)]
    passages: usize,
    /// Bring an index that is there up to date, instead of making it anew; then its time means
    /// nothing
    #[arg(long)]
    keep: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
    /// `cargo bench` says so
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Serialize)]
struct Figures {
    model: String,
    files: usize,
    passages: usize,
    megabytes: f64,
    index_seconds: f64,
    passages_per_second: f64,
    update_seconds: f64,
    updated_passages: usize,
    nothing_new_seconds: f64,
    start_seconds: f64,
    queries: usize,
    query_ms: Spread,
    embedding_ms: Spread,
    search_ms: Spread,
}

#[derive(Serialize)]
struct Spread {
    median: f64,
    p99: f64,
}

fn main() -> ExitCode {
    program::main(|options: &Options| {
        let figures = measure(options)?;
        let text = if options.json {
            serde_json::to_string(&figures)?
        } else {
            table(&figures)
        };
        print::data(text)?;
        check(&figures, options)
    })
}

fn measure(options: &Options) -> Result<Figures> {
    let place = Place::inside(&options.corpus);
    let first = update(options, &place, !options.keep)?;
    let nothing_new = update(options, &place, false)?;
    ensure!(
        nothing_new.embedded == 0,
        "nothing is new: expected no texts to embed"
    );

    let start = Instant::now();
    let searcher = Searcher::open(&place, &options.model, Rank::Both)?;
    let start_seconds = start.elapsed().as_secs_f64();
    let queries = fs::read_to_string(&options.queries)?;
    let queries: Vec<&str> = queries.lines().collect();
    for query in queries.iter().take(WARM_UP) {
        searcher.answer(query, COUNT)?;
    }
    let answers: Vec<_> = queries
        .iter()
        .map(|query| searcher.answer(query, COUNT))
        .collect::<Result<_>>()?;
    let spread = |of: fn(&dynquant_search::search::Answer) -> f64| spread(answers.iter().map(of));
    let changed = with_a_changed_file(options, &place)?;
    Ok(Figures {
        model: first.model,
        files: first.files,
        passages: searcher.len(),
        megabytes: first.bytes as f64 / 1e6,
        index_seconds: first.seconds,
        passages_per_second: first.embedded as f64 / first.seconds,
        update_seconds: changed.seconds,
        updated_passages: changed.embedded,
        nothing_new_seconds: nothing_new.seconds,
        start_seconds,
        queries: queries.len(),
        query_ms: spread(|answer| answer.milliseconds),
        embedding_ms: spread(|answer| answer.embedding_milliseconds),
        search_ms: spread(|answer| answer.search_milliseconds),
    })
}

fn update(options: &Options, place: &Place, rebuild: bool) -> Result<Outcome> {
    let walk = WalkOptions {
        hidden: false,
        no_ignore: true,
        follow: false,
        max_file_mib: 16,
    };
    let update = Update {
        dir: &options.corpus,
        place,
        model: &options.model,
        walk: &walk,
        rebuild,
    };
    update.run(&Progress::new(Arc::new(AtomicBool::new(false))))
}

/// The update after a sentence is appended to a file.
fn with_a_changed_file(options: &Options, place: &Place) -> Result<Outcome> {
    let files = fs::read_dir(&options.corpus)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut files: Vec<PathBuf> = files
        .into_iter()
        .map(|it| it.path())
        .filter(|it| it.is_file())
        .collect();
    files.sort();
    let file: &Path = files
        .first()
        .context("expected a file in the corpus, got none")?;
    let before = fs::read(file)?;
    let mut end = OpenOptions::new().append(true).open(file)?;
    writeln!(
        end,
        "\n\nA sentence that was not there at {:?}.",
        std::time::SystemTime::now()
    )?;
    let outcome = update(options, place, false);
    fs::write(file, before)?;
    outcome
}

fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| values[((values.len() - 1) as f64 * part).round() as usize];
    Spread {
        median: at(0.5),
        p99: at(0.99),
    }
}

fn table(it: &Figures) -> String {
    let mut lines = vec![
        format!("model               {}", it.model),
        format!(
            "passages            {} in {} files, index {:.1} MB",
            it.passages, it.files, it.megabytes
        ),
        format!(
            "made in             {:.1} s, {:.0} passages/s",
            it.index_seconds, it.passages_per_second
        ),
        format!(
            "a file changed      {:.2} s, {} passages embedded",
            it.update_seconds, it.updated_passages
        ),
        format!("nothing changed     {:.2} s", it.nothing_new_seconds),
        format!("start of a query    {:.2} s", it.start_seconds),
    ];
    for (name, spread) in [
        ("query", &it.query_ms),
        ("  embedding", &it.embedding_ms),
        ("  search", &it.search_ms),
    ] {
        lines.push(format!(
            "{name:<20}{:.2} ms median, {:.2} ms p99",
            spread.median, spread.p99
        ));
    }
    lines.join("\n")
}

fn check(it: &Figures, options: &Options) -> Result<()> {
    let least = options.passages;
    ensure!(
        it.passages >= least,
        "expected {least} passages or more, got {}",
        it.passages
    );
    ensure!(
        it.query_ms.p99 < MOST_MILLISECONDS,
        "expected answers in {MOST_MILLISECONDS} ms, got {:.1}",
        it.query_ms.p99
    );
    Ok(())
}
