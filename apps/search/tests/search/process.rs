//! The program as a process, and folders for it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

pub const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/bert");

/// A folder of the test's own, empty at first.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if path.exists() {
            fs::remove_dir_all(&path).unwrap();
        }
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// With `count` files of six paragraphs about different things, some 150 words each.
    pub fn with_texts(name: &str, count: usize) -> Self {
        let folder = Self::new(name);
        (0..count).for_each(|number| folder.write_text(number));
        folder
    }

    pub fn write_text(&self, number: usize) {
        self.write(format!("text-{number:03}.txt"), text(number));
    }

    pub fn write(&self, name: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    pub fn index_file(&self) -> PathBuf {
        self.path(".dynquant-search/index")
    }

    /// Makes the index, the first time of the model `BERT` if no other is named; its report.
    pub fn index(&self, options: &[&str]) -> Value {
        let is_named = options.contains(&"--model") || options.contains(&"--out");
        let model: &[&str] = if is_named || self.index_file().exists() {
            &[]
        } else {
            &["--model", BERT]
        };
        let output = run(
            ["index".as_ref(), self.0.as_os_str(), "--json".as_ref()],
            &[model, options].concat(),
        );
        json_of(&output)
    }

    /// The results of a query, without the times.
    pub fn query(&self, query: &str, options: &[&str]) -> Value {
        let index = self.0.as_os_str();
        let arguments = [
            "query".as_ref(),
            "--json".as_ref(),
            "--index".as_ref(),
            index,
        ];
        let output = run(arguments, &[options, &["--", query]].concat());
        json_of(&output)["results"].clone()
    }

    /// The answers to several queries, without the path of the folder.
    pub fn answers(&self) -> Value {
        let queries = [
            "A text editor for the terminal",
            "music player",
            "zebra crossing 17",
            "text-003",
        ];
        let answers = queries.map(|query| self.query(query, &["-k", "10"]));
        let text = json!(answers).to_string();
        let text = text.replace(self.0.to_str().unwrap(), "FOLDER");
        serde_json::from_str(&text).unwrap()
    }
}

/// Paragraphs that differ in every file; lines of assets/bert/heldout.tsv.
fn text(number: usize) -> String {
    let lines = fs::read_to_string(format!("{BERT}/heldout.tsv")).unwrap();
    let lines: Vec<&str> = lines
        .lines()
        .map(|line| line.split_once('\t').unwrap().1)
        .collect();
    let line = |index: usize| lines[(number * 101 + index * 31) % lines.len()];
    let paragraph = |index: usize| -> String {
        let lines: Vec<String> = (0..4)
            .map(|part| format!("{number}: {}.\n", line(4 * index + part)))
            .collect();
        lines.concat()
    };
    let paragraphs: Vec<String> = (0..6).map(paragraph).collect();
    format!("Notes {number}\n\n{}", paragraphs.join("\n"))
}

pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_dynquant-search"))
}

pub fn run<const N: usize>(arguments: [&OsStr; N], options: &[&str]) -> Output {
    command().args(arguments).args(options).output().unwrap()
}

/// The object that a successful run prints.
pub fn json_of(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).expect(&stderr)
}

/// The message of a run that fails as it should.
pub fn fault(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert!(output.stdout.is_empty(), "{stderr}");
    stderr
}

/// The numbers under these keys.
pub fn numbers<const N: usize>(report: &Value, keys: [&str; N]) -> [u64; N] {
    keys.map(|key| {
        report[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {report}"))
    })
}
