//! Runs the command and shows what it did.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use serde::Serialize;
use similar::{ChangeTag, TextDiff};

use crate::port::{self, Ported, Todo, World};
use crate::{PortArgs, files, format};

/// The outcome of one file.
#[derive(Serialize)]
struct FileReport {
    file: String,
    changed: bool,
    lines_added: usize,
    lines_removed: usize,
    todo: Vec<Todo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Report {
    files: Vec<FileReport>,
}

/// Ports the files and prints the result.
///
/// # Errors
/// When the result cannot be printed; a file's own error is part of the result.
pub fn run(args: &PortArgs) -> Result<ExitCode> {
    let (paths, errors) = files::collect(&args.paths);
    let world = World::new(paths.iter().map(AsRef::as_ref));
    let mut out = std::io::stdout().lock();
    let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let mut report = Report { files: Vec::new() };
    for (path, error) in errors {
        report.files.push(failed(&path, &error));
    }
    for path in &paths {
        let file = match one(path, args, &world) {
            Ok((before, ported)) => {
                let diff = TextDiff::from_lines(&before, &ported.text);
                if !args.json && !args.check && !args.write {
                    let name = path.display().to_string();
                    let text = diff.unified_diff().header(&name, &name).to_string();
                    print_diff(&mut out, &text, color)?;
                }
                let count = |tag| diff.iter_all_changes().filter(|c| c.tag() == tag).count();
                FileReport {
                    file: path.display().to_string(),
                    changed: before != ported.text,
                    lines_added: count(ChangeTag::Insert),
                    lines_removed: count(ChangeTag::Delete),
                    todo: ported.todos,
                    error: None,
                }
            }
            Err(error) => failed(path, &error),
        };
        report.files.push(file);
    }
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        out.flush()?;
        print_summary(&report, args)?;
    }
    let error = report.files.iter().any(|file| file.error.is_some());
    let left = report
        .files
        .iter()
        .any(|file| file.changed || !file.todo.is_empty());
    Ok(if error || args.check && left {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn failed(path: &Path, error: &anyhow::Error) -> FileReport {
    FileReport {
        file: path.display().to_string(),
        changed: false,
        lines_added: 0,
        lines_removed: 0,
        todo: Vec::new(),
        error: Some(format!("{error:#}")),
    }
}

/// The text of a file and what it becomes; written where that is asked for.
fn one(path: &Path, args: &PortArgs, world: &World) -> Result<(String, Ported)> {
    let before = files::read(path)?;
    let fault = |fault: port::Fault| anyhow!("line {}: {}", fault.line, fault.message);
    let mut ported = port::port(path, &before, world).map_err(fault)?;
    ported.text = format::as_before(path, &before, ported.text);
    if args.write && before != ported.text {
        files::write(path, &ported.text)?;
        // Lines of the file as it is now.
        ported.todos = port::port(path, &ported.text, world).map_err(fault)?.todos;
    }
    Ok((before, ported))
}

fn print_diff(out: &mut impl Write, text: &str, color: bool) -> Result<()> {
    for line in text.split_inclusive('\n') {
        let paint = match line.as_bytes().first() {
            _ if !color => None,
            Some(b'+') => Some("32"),
            Some(b'-') => Some("31"),
            Some(b'@') => Some("36"),
            _ => None,
        };
        match paint {
            Some(paint) => writeln!(
                out,
                "\u{1b}[{paint}m{}\u{1b}[0m",
                line.trim_end_matches('\n')
            )?,
            None => write!(out, "{line}")?,
        }
    }
    Ok(())
}

/// Errors and what is left, on stderr, so that a diff can go to a file.
fn print_summary(report: &Report, args: &PortArgs) -> Result<()> {
    let mut err = std::io::stderr().lock();
    for file in &report.files {
        if let Some(error) = &file.error {
            // "FILE:LINE: message", where the message begins with its line.
            let place = error
                .strip_prefix("line ")
                .and_then(|rest| rest.split_once(": "));
            match place {
                Some((line, message)) => writeln!(err, "{}:{line}: error: {message}", file.file)?,
                None => writeln!(err, "{}: error: {error}", file.file)?,
            }
        }
        for todo in &file.todo {
            writeln!(
                err,
                "{}:{}: {}\n    {}",
                file.file, todo.line, todo.what, todo.advice
            )?;
        }
        if args.check && file.changed {
            writeln!(err, "{}: not ported", file.file)?;
        }
    }
    let changed = report.files.iter().filter(|file| file.changed).count();
    let sum = |count: fn(&FileReport) -> usize| report.files.iter().map(count).sum::<usize>();
    let verb = if args.write { "changed" } else { "to change" };
    writeln!(
        err,
        "{changed} of {} files {verb} (+{} -{}), {} places left to you, {} errors",
        report.files.len(),
        sum(|file| file.lines_added),
        sum(|file| file.lines_removed),
        sum(|file| file.todo.len()),
        sum(|file| usize::from(file.error.is_some())),
    )?;
    Ok(())
}
