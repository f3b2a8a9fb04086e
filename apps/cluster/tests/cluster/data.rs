//! Data sets of real short texts, and the bits of results.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Int64Array, RecordBatch, StringArray,
};
use datafusion::arrow::datatypes::{Float32Type, Int64Type};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::parquet::file::properties::WriterProperties;

pub const ASSETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/bert");

/// The bits of an embedding by the id of its row.
pub type Bits = BTreeMap<i64, Option<Vec<u32>>>;

/// An empty folder for a test.
pub fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).unwrap();
    }
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Texts of the first words of two of Debian's descriptions; some are empty, some are missing.
pub fn texts(count: usize) -> Vec<Option<String>> {
    let lines = fs::read_to_string(Path::new(ASSETS).join("heldout.tsv")).unwrap();
    let lines: Vec<&str> = lines.lines().map(|line| line.split_once('\t').unwrap().1).collect();
    let words = |index: usize| lines[index % lines.len()].split(' ').take(4);
    let text = |row: usize| match row % 1000 {
        13 => None,
        14 => Some(String::new()),
        _ => {
            let other = row * 7919 + row / lines.len() + 1;
            let words: Vec<&str> = words(row).chain(words(other)).collect();
            Some(words.join(" "))
        }
    };
    (0..count).map(text).collect()
}

/// The columns `id` and `text` as a Parquet file.
pub fn write(path: &Path, texts: &[Option<String>], group_rows: usize) {
    let texts: StringArray = texts.iter().map(Option::as_deref).collect();
    write_column(path, Arc::new(texts), group_rows);
}

/// The columns `id` and `text`, with a text column of any type.
pub fn write_column(path: &Path, texts: ArrayRef, group_rows: usize) {
    let ids: Int64Array = (0..texts.len() as i64).collect();
    let columns: [(&str, ArrayRef); 2] = [("id", Arc::new(ids)), ("text", texts)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows));
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

pub fn read(path: &Path) -> Vec<RecordBatch> {
    let file = File::open(path).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    reader.build().unwrap().map(Result::unwrap).collect()
}

/// The columns `id` and `embedding` of a result.
pub fn bits(path: &Path) -> Bits {
    let mut all = Bits::new();
    for batch in read(path) {
        let ids = batch.column_by_name("id").unwrap();
        let ids = ids.as_primitive::<Int64Type>();
        let embeddings = batch.column_by_name("embedding").unwrap();
        for (row, id) in ids.values().iter().enumerate() {
            let before = all.insert(*id, bits_of(embeddings.as_fixed_size_list(), row));
            assert!(before.is_none(), "row {id} comes twice");
        }
    }
    all
}

fn bits_of(embeddings: &FixedSizeListArray, row: usize) -> Option<Vec<u32>> {
    let values = embeddings.is_valid(row).then(|| embeddings.value(row))?;
    let values = values.as_primitive::<Float32Type>().values();
    Some(values.iter().map(|x| x.to_bits()).collect())
}

/// All values of a small result, as text.
pub fn rows(path: &Path) -> String {
    let batches = read(path);
    datafusion::arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string()
}
