//! Search by meaning and by words in a folder of text files, from the terminal: see README.md.

use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use dynquant_embed::program::{self, INTERRUPTED, print};
use dynquant_search::options::{Color, Command, IndexOptions, Options, QueryOptions};
use dynquant_search::place::Place;
use dynquant_search::progress::Progress;
use dynquant_search::search::{Answer, Searcher};
use dynquant_search::show::Show;
use dynquant_search::update::{Outcome, Update};
use dynquant_search::walk::{Reason, Skipped};
use mimalloc::MiMalloc;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Keeps the memory of large results for the next batch; glibc's returns 32 MiB and more to the
/// system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    program::main(|options: &Options| match &options.command {
        Command::Index(options) => index(options),
        Command::Query(options) => query(options),
    })
}

fn index(options: &IndexOptions) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the process at once; the files are whole at any time.
        flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("cannot listen for signals")?;
    }
    let place = match &options.out {
        Some(file) => Place::at(file),
        None => Place::inside(&options.dir),
    };
    let update = Update {
        dir: &options.dir,
        place: &place,
        model: &options.model,
        walk: &options.walk,
        rebuild: options.rebuild,
    };
    let outcome = update.run(&Progress::new(stop))?;
    report(&outcome.skipped, options.verbose);
    if options.json {
        print::data(serde_json::to_string(&outcome)?)?;
    } else {
        summary(&outcome)?;
    }
    Ok(())
}

fn summary(outcome: &Outcome) -> io::Result<()> {
    print::line(format_args!(
        "{} files ({} read, {} removed), {} passages ({} embedded) in {:.1} s",
        outcome.files,
        outcome.read,
        outcome.removed,
        outcome.passages,
        outcome.embedded,
        outcome.seconds,
    ))?;
    let index = print::on_one_line(&outcome.index);
    let megabytes = outcome.bytes as f64 / 1e6;
    print::line(format_args!(
        "{index}: {megabytes:.1} MB, model {}",
        outcome.model
    ))
}

/// Names the files that could not be read; others that are left out are counted, and named if
/// `all`.
fn report(skipped: &[Skipped], all: bool) {
    let mut others = 0;
    for Skipped { path, reason } in skipped {
        if all || matches!(reason, Reason::Unreadable(_)) {
            let line = format!("left out: {path}: {reason}");
            print::note(print::on_one_line(&line));
        } else {
            others += 1;
        }
    }
    if others > 0 {
        print::note(format_args!(
            "left out: {others} files that are not text or too large; --verbose names them"
        ));
    }
}

fn query(options: &QueryOptions) -> Result<()> {
    let place = match &options.index {
        Some(path) => Place::named(path),
        None => Place::find()?,
    };
    let searcher = Searcher::open(&place, &options.model, options.rank)?;
    let color = match options.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            io::stdout().is_terminal() && !unwanted
        }
    };
    let show = Show {
        lines: options.lines,
        color,
    };
    let answer = |query: &str| -> Result<()> {
        let answer = searcher.answer(query, options.count)?;
        print_answer(&answer, options.json, show, searcher.len())
    };
    if !options.words.is_empty() {
        return answer(&options.words.join(" "));
    }
    interactive(answer)
}

/// Answers each line of the standard input.
fn interactive(answer: impl Fn(&str) -> Result<()>) -> Result<()> {
    let stdin = io::stdin();
    let prompt = || {
        if stdin.is_terminal() {
            print::progress("> ");
        }
    };
    prompt();
    for line in stdin.lock().lines() {
        let line = line.context("the standard input")?;
        if !line.trim().is_empty()
            && let Err(error) = answer(&line)
        {
            if error.is::<io::Error>() {
                return Err(error);
            }
            // The next question may well be answered.
            print::fault(error.as_ref());
        }
        prompt();
    }
    Ok(())
}

fn print_answer(answer: &Answer, json: bool, show: Show, passages: usize) -> Result<()> {
    if json {
        return Ok(print::data(serde_json::to_string(answer)?)?);
    }
    let text = show.answer(answer);
    if let Some(text) = text.strip_suffix('\n') {
        // Escaped, and in colours.
        print::data(text)?;
    }
    print::note(format_args!(
        "{} of {passages} passages in {:.1} ms",
        answer.results.len(),
        answer.milliseconds
    ));
    Ok(())
}
