//! The result: a Parquet file that is written beside the file that it replaces.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::output::NewFile;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;

/// A file that is being written.
pub struct Output {
    path: PathBuf,
    writer: ArrowWriter<NewFile>,
}

impl Output {
    /// Checks that a file can be written to `path`, before the query is computed.
    pub fn check(path: &Path) -> Result<()> {
        ensure!(
            path.file_name().is_some(),
            "--output {}: expected the name of a file",
            path.display()
        );
        begin(path).map(drop)
    }

    /// Begins a temporary file beside `path`, which is removed unless it is committed.
    pub fn create(path: &Path, schema: SchemaRef) -> Result<Self> {
        let file = begin(path)?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let writer = ArrowWriter::try_new(file, schema, Some(properties)).with_context(|| {
            format!("--output {}: expected columns that Parquet has", path.display())
        })?;
        Ok(Self { path: path.to_owned(), writer })
    }

    /// Adds rows.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let written = self.writer.write(rows);
        written.with_context(|| format!("--output {}", self.path.display()))
    }

    /// Completes the file and moves it to its path.
    pub fn commit(self) -> Result<()> {
        let Self { path, writer } = self;
        let commit = || -> Result<()> { Ok(writer.into_inner()?.put()?) };
        commit().with_context(|| format!("--output {}", path.display()))
    }
}

/// A new file beside `path`.
fn begin(path: &Path) -> Result<NewFile> {
    NewFile::beside(path)
        .with_context(|| format!("--output {}: expected a place to write to", path.display()))
}
