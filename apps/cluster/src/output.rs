//! The result: a Parquet file that is written beside the one it replaces.

use std::fs::{self, File, Permissions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use tempfile::{Builder, NamedTempFile};

/// The end of the names of temporary files.
const SUFFIX: &str = ".part";
/// The age from which a temporary file without a lock is stale: its writer locks it long before.
const GRACE: Duration = Duration::from_secs(60);

/// A file that is being written.
pub struct Output {
    path: PathBuf,
    writer: ArrowWriter<NamedTempFile>,
}

impl Output {
    /// Checks that a file can be written to `path`, before anything is computed for it.
    ///
    /// # Errors
    /// When `path` is a folder, or its folder cannot be written to.
    pub fn check(path: &Path) -> Result<()> {
        ensure!(
            !path.is_dir(),
            "--output {}: expected a file, got a folder",
            path.display()
        );
        ensure!(
            path.file_name().is_some(),
            "--output {}: expected the name of a file",
            path.display()
        );
        temporary(path).map(drop)
    }

    /// Begins a temporary file beside `path`, which is removed when it is not committed.
    ///
    /// # Errors
    /// When it cannot be made, or a column has no type of Parquet.
    pub fn create(path: &Path, schema: SchemaRef) -> Result<Self> {
        // What a link leads to is replaced, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        remove_stale(&path);
        let file = temporary(&path)?;
        // Where files cannot be locked, none is removed.
        let _ = file.as_file().lock();
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .build();
        let writer = ArrowWriter::try_new(file, schema, Some(properties)).with_context(|| {
            format!(
                "--output {}: expected columns that Parquet has",
                path.display()
            )
        })?;
        Ok(Self { path, writer })
    }

    /// Adds rows.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let written = self.writer.write(rows);
        written.with_context(|| format!("--output {}", self.path.display()))
    }

    /// Ends the file and gives it its name.
    ///
    /// # Errors
    /// When the rest cannot be written; then what was there is left.
    pub fn commit(self) -> Result<()> {
        let Self { path, writer } = self;
        let commit = || -> Result<()> {
            let file = writer.into_inner()?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            // A rename is on the disk when its folder is.
            match cfg!(unix) {
                true => Ok(File::open(folder_of(&path))?.sync_all()?),
                false => Ok(()),
            }
        };
        commit().with_context(|| format!("--output {}", path.display()))
    }
}

/// A new file beside `path`, with the permissions that one of the user's own would have.
fn temporary(path: &Path) -> Result<NamedTempFile> {
    let prefix = prefix(path);
    let mut builder = Builder::new();
    builder.prefix(&prefix).suffix(SUFFIX);
    #[cfg(unix)]
    builder.permissions(<Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666));
    let file = builder.tempfile_in(folder_of(path));
    file.with_context(|| {
        format!(
            "--output {}: expected a folder that can be written to",
            path.display()
        )
    })
}

/// The beginning of the names of the temporary files for `path`.
fn prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    format!(".{}.", name.to_string_lossy())
}

/// Removes what runs for the same file left that were killed: those that live hold locks.
fn remove_stale(path: &Path) {
    let prefix = prefix(path);
    let entries = fs::read_dir(folder_of(path))
        .into_iter()
        .flatten()
        .flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_ours = name.starts_with(&prefix) && name.ends_with(SUFFIX);
        let age = entry.metadata().ok().filter(|it| it.is_file());
        let age = age.and_then(|it| it.modified().ok()?.elapsed().ok());
        if !is_ours || age.is_none_or(|age| age < GRACE) {
            continue;
        }
        if File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            // If it cannot be removed, it stays as it would have.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
