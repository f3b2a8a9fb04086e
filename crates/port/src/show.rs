//! Runs the command and shows the results.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow};
use candle_dynquant_io::print;
use serde::Serialize;
use similar::{Algorithm, ChangeTag, TextDiff};

use crate::draft::Todo;
use crate::releases::Other;
use crate::rounds::{Ported, port};
use crate::source::Fault;
use crate::world::World;
use crate::{files, format, needs, releases};

/// The chapter on releases of candle.
const GUIDE: &str = "candle-dynquant's docs/own-project.md#releases-of-candle";

/// Arguments of `port`.
#[derive(clap::Args)]
pub struct Args {
    /// Rust files, or folders to search for Rust files.
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Writes the files; without it nothing is changed.
    #[arg(long)]
    write: bool,
    /// Exits with 1 if something is left to port, and prints only that.
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Prints one JSON object: `{files: [{file, changed, lines_added, lines_removed, todo}], needs:
    /// [{manifest, lines}], candle: [{manifest, found, needed}]}`; a file may also have `error` and
    /// `note`.
    #[arg(long)]
    json: bool,
    /// The time limit of rustfmt for a file; a file that takes longer is left unformatted. With 0
    /// rustfmt is not run.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = seconds())]
    rustfmt_seconds: u64,
}

/// A number of seconds up to a day, so that no time overflows.
fn seconds() -> impl clap::builder::TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(..=86_400)
}

/// The result for one file.
#[derive(Default, Serialize)]
struct FileReport {
    file: String,
    changed: bool,
    lines_added: usize,
    lines_removed: usize,
    todo: Vec<Todo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Default, Serialize)]
struct Report {
    files: Vec<FileReport>,
    /// The lines that a Cargo.toml above the files lacks.
    needs: Vec<Needs>,
    /// The manifests with a release of candle other than the one needed.
    candle: Vec<Other>,
}

/// The lines that a Cargo.toml lacks for the files that changed.
#[derive(Serialize)]
struct Needs {
    manifest: String,
    lines: Vec<&'static str>,
}

/// The Cargo.toml above a file.
fn manifest_of(path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    let mut manifests = real.ancestors().skip(1).map(|folder| folder.join("Cargo.toml"));
    manifests.find(|manifest| manifest.is_file())
}

/// The manifests that have another release of candle, each once.
fn candles(paths: &[PathBuf]) -> Vec<Other> {
    let manifests: BTreeSet<_> = paths.iter().filter_map(|path| manifest_of(path)).collect();
    let others: BTreeMap<_, _> =
        manifests.iter().filter_map(|path| releases::other(path)).collect();
    others.into_values().collect()
}

/// Adds the lines that the Cargo.toml of a file lacks.
fn add_needs(needs: &mut Vec<Needs>, path: &Path, text: &str) {
    let Some(manifest) = manifest_of(path) else { return };
    let Ok(known) = files::read(&manifest) else { return };
    let manifest = manifest.display().to_string();
    let place = needs.iter().position(|one| one.manifest == manifest).unwrap_or_else(|| {
        needs.push(Needs { manifest, lines: Vec::new() });
        needs.len() - 1
    });
    for line in needs::lines(text, &known) {
        if !needs[place].lines.contains(&line) {
            needs[place].lines.push(line);
        }
    }
}

/// Ports the files and prints the results.
///
/// # Errors
/// When the results cannot be printed; a file's error is part of the results.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (paths, errors) = files::collect(&args.paths);
    let world = World::new(paths.iter().map(AsRef::as_ref));
    let is_terminal = io::stdout().is_terminal();
    let color = is_terminal && std::env::var_os("NO_COLOR").is_none();
    let mut report = Report { candle: candles(&paths), ..Report::default() };
    let errors = errors.iter().map(|(path, error)| failed(path, error));
    report.files.extend(errors);
    for path in &paths {
        let file = match one(path, args, &world) {
            Ok((before, ported, note)) => {
                // Myers' algorithm takes time proportional to changes times lines.
                let mut diff = TextDiff::configure();
                diff.algorithm(Algorithm::Patience);
                let diff = diff.diff_lines(&before, &ported.text);
                if !args.json && !args.check && !args.write {
                    let name = path.display().to_string();
                    let text = diff.unified_diff().header(&name, &name).to_string();
                    if is_terminal {
                        print::data(on_terminal(&text, color))?;
                    } else if !text.is_empty() {
                        // A patch is printed unescaped.
                        print::data(text.strip_suffix('\n').unwrap_or(&text))?;
                    }
                }
                if before != ported.text {
                    add_needs(&mut report.needs, path, &ported.text);
                }
                let count = |tag| diff.iter_all_changes().filter(|c| c.tag() == tag).count();
                FileReport {
                    file: path.display().to_string(),
                    changed: before != ported.text,
                    lines_added: count(ChangeTag::Insert),
                    lines_removed: count(ChangeTag::Delete),
                    todo: ported.todos,
                    error: None,
                    note,
                }
            }
            Err(error) => failed(path, &error),
        };
        report.files.push(file);
    }
    report.needs.retain(|one| !one.lines.is_empty());
    if args.json {
        match print::data(serde_json::to_string_pretty(&report)?) {
            // The files are written; their errors remain errors.
            Err(error) if !print::is_closed(&error) => return Err(error.into()),
            _ => {}
        }
    } else {
        print_summary(&report, args);
    }
    let error = report.files.iter().any(|file| file.error.is_some());
    let left = report.files.iter().any(|file| file.changed || !file.todo.is_empty());
    Ok(if error || args.check && left { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn failed(path: &Path, error: &anyhow::Error) -> FileReport {
    FileReport {
        file: path.display().to_string(),
        error: Some(format!("{error:#}")),
        ..FileReport::default()
    }
}

/// The text of a file, its port, and a note; writes the file if requested.
fn one(path: &Path, args: &Args, world: &World) -> Result<(String, Ported, Option<String>)> {
    let before = files::read(path)?;
    let fault = |fault: Fault| anyhow!("line {}: {}", fault.line, fault.message);
    let mut ported = port(path, &before, world).map_err(fault)?;
    let limit = Duration::from_secs(args.rustfmt_seconds);
    let note;
    (ported.text, note) = format::as_before(path, &before, ported.text, limit);
    if args.write && before != ported.text {
        files::write(path, &ported.text)?;
        // The line numbers refer to the file after the write.
        ported.todos = port(path, &ported.text, world).map_err(fault)?.todos;
    }
    Ok((before, ported, note))
}

/// A diff for a terminal, with the source's control characters escaped.
fn on_terminal(diff: &str, color: bool) -> String {
    let line = |line: &str| {
        let text = print::escaped(line);
        let paint = match line.as_bytes().first() {
            _ if !color => None,
            Some(b'+') => Some("32"),
            Some(b'-') => Some("31"),
            Some(b'@') => Some("36"),
            _ => None,
        };
        match paint {
            Some(paint) => format!("\u{1b}[{paint}m{text}\u{1b}[0m"),
            None => text.into_owned(),
        }
    };
    diff.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The number of places left for objects of a trait, in all files.
fn objects(report: &Report, name: &String) -> usize {
    let todos = report.files.iter().flat_map(|file| &file.todo);
    let all = todos.filter(|todo| todo.of_trait.as_ref() == Some(name));
    all.count()
}

/// Prints errors and remaining places on stderr, so that a diff can go to a file.
fn print_summary(report: &Report, args: &Args) {
    let (mut said, mut left) = (BTreeSet::new(), 0);
    for file in &report.files {
        let name = print::on_one_line(&file.file);
        if let Some(error) = &file.error {
            // The form `FILE:LINE: message`, if the message begins with its line.
            let rest = error.strip_prefix("line ");
            match rest.and_then(|rest| rest.split_once(": ")) {
                Some((line, message)) => {
                    print::note(format_args!("{name}:{line}: error: {message}"));
                }
                None => print::note(format_args!("{name}: error: {error}")),
            }
        }
        for todo in &file.todo {
            let Todo { line, what, advice, of_trait } = todo;
            let times = match of_trait {
                // The trait was already reported.
                Some(name) if !said.insert(name) => continue,
                Some(name) => objects(report, name),
                None => 1,
            };
            let times = match times {
                1 => String::new(),
                times => format!(" ({times} places, this is the first)"),
            };
            left += 1;
            print::note(format_args!("{name}:{line}: {what}{times}\n    {advice}"));
        }
        if let Some(note) = &file.note {
            print::note(format_args!("{name}: {note}"));
        }
        if args.check && file.changed {
            print::note(format_args!("{name}: not ported"));
        }
    }
    for Needs { manifest, lines } in &report.needs {
        print::note(format_args!(
            "{} needs in its dependencies:\n    {}",
            print::on_one_line(manifest),
            lines.join("\n    ")
        ));
    }
    for one in &report.candle {
        print::note(format_args!(
            "{}: {}; candle-dynquant needs {} or a later 0.11 of crates.io: see {GUIDE}",
            print::on_one_line(&one.manifest),
            print::on_one_line(&one.found),
            one.needed,
        ));
    }
    let changed = report.files.iter().filter(|file| file.changed).count();
    let sum = |count: fn(&FileReport) -> usize| report.files.iter().map(count).sum::<usize>();
    let verb = if args.write { "changed" } else { "to change" };
    print::note(format_args!(
        "{changed} of {} files {verb} (+{} -{}), {left} places left to you, {} errors",
        report.files.len(),
        sum(|file| file.lines_added),
        sum(|file| file.lines_removed),
        sum(|file| usize::from(file.error.is_some())),
    ));
}

#[cfg(test)]
mod tests {
    use super::on_terminal;

    #[test]
    fn a_diff_on_a_terminal_is_coloured_and_escaped() {
        let diff = "--- a\n+++ a\n@@ -1 +1 @@\n-\u{1b}[2J\r\n+b\n c\n";
        let plain = "--- a\n+++ a\n@@ -1 +1 @@\n-\\u{1b}[2J\n+b\n c";
        assert_eq!(on_terminal(diff, false), plain);
        let colored = on_terminal(diff, true);
        let lines: Vec<_> = colored.lines().collect();
        assert_eq!(lines[2], "\u{1b}[36m@@ -1 +1 @@\u{1b}[0m");
        assert_eq!(lines[3], "\u{1b}[31m-\\u{1b}[2J\u{1b}[0m");
        assert_eq!(lines[4..], ["\u{1b}[32m+b\u{1b}[0m", " c"]);
    }
}
