//! The data set: a Parquet file or a folder of them, as the table `data`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use url::Url;

/// The name of the table.
pub const TABLE: &str = "data";
const EXTENSION: &str = "parquet";

/// The data set of a query.
pub struct Input {
    /// The absolute path: executors have other working directories.
    path: PathBuf,
}

impl Input {
    /// Checks that there are files.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let path = path.canonicalize().with_context(|| {
            format!("--input {shown}: expected a Parquet file or a folder of them")
        })?;
        // Reading a fifo or a device would never end.
        ensure!(
            path.is_dir() || path.is_file(),
            "--input {shown}: expected a Parquet file or a folder of them, got no regular file"
        );
        if path.is_dir() {
            let entries = fs::read_dir(&path).with_context(|| format!("--input {shown}"))?;
            let mut paths = entries.flatten().map(|entry| entry.path());
            ensure!(
                paths.any(|path| path.extension().is_some_and(|it| it == EXTENSION)),
                "--input {shown}: expected a folder with files named *.{EXTENSION}, got none of them"
            );
        }
        Ok(Self { path })
    }

    /// Whether the next query would read a file written to `output`.
    pub fn holds(&self, output: &Path) -> bool {
        let folder = output.parent().filter(|it| *it != Path::new(""));
        let folder = folder.unwrap_or(Path::new(".")).canonicalize();
        match (folder, output.file_name()) {
            (Ok(folder), Some(name)) => {
                folder.starts_with(&self.path) || folder.join(name) == self.path
            }
            _ => false,
        }
    }

    /// Registers the data set as the table [`TABLE`].
    pub async fn register(&self, context: &SessionContext) -> Result<()> {
        let shown = self.path.display();
        let is_dir = self.path.is_dir();
        // In a path, characters such as `*` would be a pattern.
        let url = if is_dir {
            Url::from_directory_path(&self.path)
        } else {
            Url::from_file_path(&self.path)
        };
        let url =
            url.map_err(|()| anyhow::anyhow!("--input {shown}: expected an absolute path"))?;
        // A single file may have any name.
        let extension = if is_dir { format!(".{EXTENSION}") } else { String::new() };
        let options = ParquetReadOptions::default();
        let options = ParquetReadOptions { file_extension: &extension, ..options };
        let registered = context.register_parquet(TABLE, url.as_str(), options).await;
        registered.with_context(|| {
            format!("--input {shown}: expected a Parquet file or a folder of them")
        })
    }
}
