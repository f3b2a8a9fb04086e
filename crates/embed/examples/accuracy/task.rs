//! A retrieval task in files: passages, queries, and judgements of which passage answers which
//! query.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_dynquant_io::input;
use serde::Deserialize;

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 4 << 30;
const HEADER: &str = "query-id\tcorpus-id\tscore";

/// The texts, and the grades of passages.
pub struct Task {
    pub passages: Vec<String>,
    /// The queries with a judgement.
    pub queries: Vec<String>,
    /// The passages of each query by index; a missing passage has the grade 0.
    pub grades: Vec<HashMap<usize, f64>>,
}

#[derive(Deserialize)]
struct Record {
    #[serde(rename = "_id")]
    id: String,
    #[serde(default)]
    title: String,
    text: String,
}

impl Task {
    /// Reads a folder.
    pub fn read(dir: &Path) -> Result<Self> {
        let passages = records(&dir.join("corpus.jsonl"))?;
        let queries = records(&dir.join("queries.jsonl"))?;
        let mut grades = grades(dir, &positions(&passages), &positions(&queries))?;
        let judged = queries.into_iter().enumerate().filter_map(|(index, query)| {
            let grades = grades.remove(&index)?;
            Some((query.text, grades))
        });
        let (queries, grades): (Vec<_>, Vec<_>) = judged.unzip();
        ensure!(!queries.is_empty(), "{}: expected judgements above 0, got none", dir.display());
        Ok(Self { passages: passages.into_iter().map(Record::passage).collect(), queries, grades })
    }
}

impl Record {
    fn passage(self) -> String {
        let text = format!("{} {}", self.title, self.text);
        text.trim().to_owned()
    }
}

fn positions(records: &[Record]) -> HashMap<&str, usize> {
    let ids = records.iter().map(|record| record.id.as_str());
    ids.zip(0..).collect()
}

fn text(path: &Path) -> Result<String> {
    input::read_text(path, MAX_FILE)
        .with_context(|| format!("{}: expected a readable file", path.display()))
}

fn records(path: &Path) -> Result<Vec<Record>> {
    let text = text(path)?;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let records = lines.map(|(index, line)| {
        serde_json::from_str(line).with_context(|| {
            let line = index + 1;
            format!("{}:{line}: expected _id and text as JSON", path.display())
        })
    });
    let records: Vec<Record> = records.collect::<Result<_>>()?;
    ensure!(
        positions(&records).len() == records.len(),
        "{}: expected different _id, got one twice",
        path.display()
    );
    Ok(records)
}

/// The grades of each query that has a judgement above 0.
fn grades(
    dir: &Path,
    passages: &HashMap<&str, usize>,
    queries: &HashMap<&str, usize>,
) -> Result<HashMap<usize, HashMap<usize, f64>>> {
    let path = qrels(dir);
    let text = text(&path)?;
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let path = path.display();
    ensure!(header == HEADER, "{path}:1: expected {HEADER:?}, got {header:?}");
    let mut grades: HashMap<usize, HashMap<usize, f64>> = HashMap::new();
    for (line, number) in lines.zip(2..) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [query, passage, grade] = fields[..] else {
            bail!("{path}:{number}: expected 3 fields between tabs, got {line:?}");
        };
        let index = |indices: &HashMap<&str, usize>, file: &str, id: &str| {
            let index = indices.get(id).copied();
            index.with_context(|| format!("{path}:{number}: expected an _id of {file}, got {id:?}"))
        };
        let query = index(queries, "queries.jsonl", query)?;
        let passage = index(passages, "corpus.jsonl", passage)?;
        let grade = grade.parse().ok().filter(|grade: &f64| grade.is_finite());
        let grade = grade.with_context(|| {
            format!("{path}:{number}: expected a number as score, got {line:?}")
        })?;
        if grade > 0. {
            grades.entry(query).or_default().insert(passage, grade);
        }
    }
    Ok(grades)
}

fn qrels(dir: &Path) -> PathBuf {
    let of_beir = dir.join("qrels/test.tsv");
    if of_beir.exists() { of_beir } else { dir.join("qrels.tsv") }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_task_of_the_repository_is_whole() -> Result<()> {
        let task = Task::read(Path::new(crate::TASK))?;
        assert_eq!((task.passages.len(), task.queries.len()), (84, 60));
        assert!(task.grades.iter().all(|it| it.values().any(|&x| x == 2.)));
        Ok(())
    }

    #[test]
    fn mistakes_name_their_line() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let message = |qrels: &str, corpus: &str| -> Result<String> {
            fs::write(dir.path().join("corpus.jsonl"), corpus)?;
            let queries = r#"{"_id": "q", "text": "a question"}"#;
            fs::write(dir.path().join("queries.jsonl"), queries)?;
            fs::write(dir.path().join("qrels.tsv"), qrels)?;
            let error = Task::read(dir.path()).err().context("a mistake")?;
            Ok(format!("{error:#}"))
        };
        let corpus = r#"{"_id": "p", "text": "an answer"}"#;
        let with = |line: &str| message(&format!("{HEADER}\n{line}\n"), corpus);
        assert!(
            with("q\tp")?.ends_with(r#"qrels.tsv:2: expected 3 fields between tabs, got "q\tp""#)
        );
        assert!(with("q\tx\t1")?.ends_with(r#":2: expected an _id of corpus.jsonl, got "x""#));
        assert!(with("x\tp\t1")?.ends_with(r#":2: expected an _id of queries.jsonl, got "x""#));
        assert!(with("q\tp\tnan")?.contains(":2: expected a number as score"));
        assert!(with("q\tp\t0")?.ends_with("expected judgements above 0, got none"));
        assert!(message("q\tp\t1", corpus)?.contains("qrels.tsv:1: expected \"query-id"));
        assert!(message(HEADER, "{}")?.contains("corpus.jsonl:1: expected _id and text as JSON"));
        let twice = format!("{corpus}\n{corpus}");
        assert!(message(HEADER, &twice)?.ends_with("expected different _id, got one twice"));
        Ok(())
    }
}
