//! The files to port: their search, reading and writing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use candle_dynquant_io::input;
pub use candle_dynquant_io::output::write;

/// The largest source file that is read, in bytes. Its syntax tree takes many times as much.
const MAX_BYTES: u64 = 16 << 20;

/// The Rust files that the paths name, each once, in order; and the paths that could not be read.
pub fn collect(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<(PathBuf, anyhow::Error)>) {
    let mut found = FoundFiles::default();
    for path in paths {
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => found.folder(path),
            Ok(_) => found.file(path),
            Err(error) => found.errors.push((path.clone(), error.into())),
        }
    }
    (found.files, found.errors)
}

#[derive(Default)]
struct FoundFiles {
    files: Vec<PathBuf>,
    seen: BTreeSet<PathBuf>,
    errors: Vec<(PathBuf, anyhow::Error)>,
}

impl FoundFiles {
    fn file(&mut self, path: &Path) {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        if self.seen.insert(real) {
            self.files.push(path.to_path_buf());
        }
    }

    /// Visits a folder. Links inside it are not followed: they may form a cycle.
    fn folder(&mut self, path: &Path) {
        let entries = match fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(error) => return self.errors.push((path.to_path_buf(), error.into())),
        };
        let mut paths: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
        paths.sort();
        for path in paths {
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if meta.is_dir() && !name.starts_with('.') && name != "target" {
                self.folder(&path);
            } else if meta.is_file() && path.extension().is_some_and(|ext| ext == "rs") {
                self.file(&path);
            }
        }
    }
}

/// Reads a source file.
///
/// # Errors
/// When the file cannot be read, is longer than [`MAX_BYTES`], or is not UTF-8; the message names
/// the line.
pub fn read(path: &Path) -> Result<String> {
    let bytes = input::read(path, MAX_BYTES)?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = error.as_bytes()[..valid].split(|byte| *byte == b'\n');
        anyhow!("line {}: not UTF-8", before.count())
    })
}
