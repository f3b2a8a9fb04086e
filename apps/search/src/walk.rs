//! The files of a folder, found as ripgrep finds them, and those that are left out, with the
//! reason.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use candle_dynquant_io::input;
use ignore::{DirEntry, Error, WalkBuilder};
use serde::{Serialize, Serializer};

use crate::place::{FOLDER, Place};

/// The most bytes of an ignore file.
const MAX_IGNORE: u64 = 4 << 20;

/// The files to take.
#[derive(Clone, Debug, clap::Args)]
pub struct WalkOptions {
    /// Take hidden files and folders, too
    #[arg(long)]
    pub hidden: bool,

    /// Take what .gitignore, .ignore and the like leave out
    #[arg(long)]
    pub no_ignore: bool,

    /// Follow symbolic links
    #[arg(long, short = 'L')]
    pub follow: bool,

    /// Leave out files of more mebibytes
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub max_file_mib: u32,
}

/// A file that is left out, though its name is not one to ignore.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// Its path, as far as it can be shown.
    pub path: String,
    /// Why.
    pub reason: Reason,
}

/// Why a file is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It has a zero byte.
    Binary,
    /// It is not UTF-8.
    NotUtf8,
    /// It has more mebibytes than the limit.
    TooLarge(u32),
    /// Its name is not UTF-8.
    Name,
    /// It could not be read.
    Unreadable(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Binary => f.write_str("binary"),
            Self::NotUtf8 => f.write_str("not UTF-8"),
            Self::TooLarge(limit) => write!(f, "more than {limit} MiB (--max-file-mib)"),
            Self::Name => f.write_str("a name that is not UTF-8"),
            Self::Unreadable(error) => f.write_str(error),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The files of a folder.
#[derive(Debug, Default)]
pub struct Found {
    /// Their names in the folder, with `/`, and their paths; by name.
    pub files: Vec<(String, PathBuf)>,
    /// Folders and files that could not be read.
    pub skipped: Vec<Skipped>,
}

/// The files in `root` that are not ignored; `each` is told after each.
///
/// # Errors
/// When an ignore file, there or in a folder above it, is no regular file.
pub fn walk(root: &Path, place: &Place, options: &WalkOptions, each: impl Fn()) -> Result<Found> {
    let mut found = Found::default();
    let faults = Arc::new(Mutex::new(Vec::new()));
    let mut builder = WalkBuilder::new(root);
    builder
        .standard_filters(!options.no_ignore)
        .hidden(!options.hidden)
        .follow_links(options.follow);
    if options.no_ignore {
        builder.filter_entry(|entry| entry.file_name() != FOLDER);
    } else {
        for dir in root.canonicalize()?.ancestors() {
            if let Err(Skipped { path, reason }) = check_ignore_files(dir) {
                bail!("{path}: {reason}; --no-ignore does not read it");
            }
        }
        let faults = Arc::clone(&faults);
        builder.filter_entry(move |entry| {
            let is_dir = entry.file_type().is_some_and(|kind| kind.is_dir());
            let fault = is_dir.then(|| check_ignore_files(entry.path()).err());
            let fault = fault.flatten();
            let taken = entry.file_name() != FOLDER && fault.is_none();
            let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
            faults.extend(fault);
            taken
        });
    }
    for entry in builder.build() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                found.skipped.push(unreadable(error));
                continue;
            }
        };
        if let Some(error) = entry.error() {
            // A line of an ignore file that is no pattern.
            found.skipped.push(unreadable(error.clone()));
        }
        if is_file(&entry) && !place.owns(entry.path()) {
            each();
            match name(root, entry.path()) {
                Some(name) => found.files.push((name, entry.into_path())),
                None => found.skipped.push(Skipped {
                    path: entry.path().display().to_string(),
                    reason: Reason::Name,
                }),
            }
        }
    }
    found.files.sort();
    let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
    found.skipped.append(&mut faults);
    Ok(found)
}

/// Looks at the ignore files of a folder: `ignore` would wait for a fifo
/// without end, and read a device to the end of the memory.
fn check_ignore_files(dir: &Path) -> Result<(), Skipped> {
    for path in ignore_files(dir) {
        let reason = match input::open(&path) {
            Err(error) if error.kind() == ErrorKind::InvalidInput && !path.is_dir() => {
                error.to_string()
            }
            Ok(file) if file.metadata().is_ok_and(|meta| meta.len() > MAX_IGNORE) => {
                format!("expected at most {MAX_IGNORE} bytes, got more")
            }
            _ => continue,
        };
        return Err(Skipped {
            path: path.display().to_string(),
            reason: Reason::Unreadable(reason),
        });
    }
    Ok(())
}

/// The files that `ignore` reads in a folder, and those that they name.
fn ignore_files(dir: &Path) -> Vec<PathBuf> {
    let git = dir.join(".git");
    let mut files = vec![dir.join(".ignore"), dir.join(".gitignore")];
    if git.is_dir() {
        files.push(git.join("info/exclude"));
        return files;
    }
    // In a worktree: a file that names a folder, in which a file names the repository.
    let first_line = |path: &Path| {
        let bytes = input::read(path, MAX_IGNORE).ok()?;
        let line = bytes.split(|byte| *byte == b'\n').next()?;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Some(String::from_utf8_lossy(line).into_owned())
    };
    files.push(git.clone());
    if let Some(line) = first_line(&git)
        && let Some(real) = line.strip_prefix("gitdir: ")
    {
        let named = Path::new(real).join("commondir");
        if let Some(line) = first_line(&named) {
            let common = if line.starts_with('.') {
                Path::new(real).join(line)
            } else {
                PathBuf::from(line)
            };
            files.push(common.join("info/exclude"));
        }
        files.push(named);
    }
    files
}

fn is_file(entry: &DirEntry) -> bool {
    entry.file_type().is_some_and(|kind| kind.is_file())
}

/// The path in the folder, the same on every system.
fn name(root: &Path, path: &Path) -> Option<String> {
    let parts = path.strip_prefix(root).ok()?.components();
    let parts: Option<Vec<&str>> = parts.map(|part| part.as_os_str().to_str()).collect();
    Some(parts?.join("/"))
}

fn unreadable(error: Error) -> Skipped {
    match error {
        Error::WithDepth { err, .. } => unreadable(*err),
        Error::WithPath { path, err } => Skipped {
            path: path.display().to_string(),
            ..unreadable(*err)
        },
        Error::Loop { ancestor, child } => Skipped {
            path: child.display().to_string(),
            reason: Reason::Unreadable(format!("a symbolic link to {}", ancestor.display())),
        },
        error => Skipped {
            path: String::new(),
            reason: Reason::Unreadable(error.to_string()),
        },
    }
}
