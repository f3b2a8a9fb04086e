//! The printed answers.

use std::io::{Read, Write};
use std::process::Stdio;

use crate::process::{Folder, command, run};

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write(
        "zebra.txt",
        "One line.\n\nA Zebra crosses the street.\nZEBRAS do.\n",
    );
    folder.write("other.txt", "Terminal text editor\n");
    folder
}

fn shown(folder: &Folder, options: &[&str]) -> (String, String) {
    let output = run(
        ["query".as_ref(), "--index".as_ref(), folder.0.as_os_str()],
        options,
    );
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn passages_are_ranked_and_highlighted() {
    let folder = folder("highlighted");
    folder.index(&[]);
    let (plain, time) = shown(&folder, &["zebra", "street"]);
    let path = folder.path("zebra.txt").display().to_string();
    assert!(
        plain.starts_with(&format!("1. {path}:1-4  cosine 0.")),
        "{plain}"
    );
    assert!(plain.contains(", BM25 "), "{plain}");
    assert!(
        plain.contains("\n     3  A Zebra crosses the street.\n     4  ZEBRAS do.\n"),
        "{plain}"
    );
    assert!(
        plain.contains("\n2. ") && !plain.contains('\u{1b}'),
        "{plain}"
    );
    assert!(
        time.starts_with("2 of 2 passages in ") && time.ends_with(" ms\n"),
        "{time}"
    );

    let (colored, _) = shown(&folder, &["--color", "always", "zebra", "street"]);
    let red = |word: &str| format!("\u{1b}[1m\u{1b}[31m{word}\u{1b}[0m");
    for word in ["Zebra", "ZEBRAS", "street"] {
        assert!(colored.contains(&red(word)), "{word}: {colored:?}");
    }
    assert!(!colored.contains(&red("line")), "{colored:?}");

    let (one, _) = shown(&folder, &["-k", "1", "--lines", "1", "street"]);
    assert!(
        one.contains("     3  A Zebra crosses the street.\n        ... 1 of 4 lines\n"),
        "{one}"
    );
}

#[test]
fn a_text_of_the_folder_finds_itself() {
    let folder = Folder::with_texts("itself", 10);
    folder.index(&[]);
    let hits = folder.query("Notes 7", &["-k", "100"]);
    for hit in hits.as_array().unwrap().iter().take(8) {
        let text = hit["text"].as_str().unwrap();
        let found = folder.query(text, &["-k", "1"]);
        assert_eq!(found[0]["text"], text);
        assert!(found[0]["cosine"].as_f64().unwrap() > 0.9999, "{found}");
    }
}

#[test]
fn each_line_is_a_query() {
    let folder = folder("lines");
    folder.index(&[]);
    let mut query = command();
    query.args(["query", "--json", "--index"]).arg(&folder.0);
    let pipes = query
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = pipes.spawn().unwrap();
    let long = "word ".repeat(100);
    let lines = format!("zebra\n\n{long}\neditor\n");
    process
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success());
    let answers = String::from_utf8(output.stdout).unwrap();
    let queries: Vec<String> = answers
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["query"].to_string())
        .collect();
    assert_eq!(queries, ["\"zebra\"", "\"editor\""]);
    let faults = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        faults,
        "error: the query: expected at most 64 tokens, got 102\n"
    );
}

#[test]
fn a_reader_that_has_seen_enough_is_no_fault() {
    let folder = Folder::with_texts("pipe", 40);
    folder.index(&[]);
    for options in [&["--json"][..], &[]] {
        let mut query = command();
        query
            .args(["query", "-k", "10000", "--index"])
            .arg(&folder.0)
            .args(options);
        let pipes = query
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = pipes.spawn().unwrap();
        // More than a pipe holds.
        let lines = "zebra\n".repeat(200);
        let mut stdin = process.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            // It may be closed before it has taken all.
            let _ = stdin.write_all(lines.as_bytes());
        });
        let mut some = [0; 10];
        process
            .stdout
            .take()
            .unwrap()
            .read_exact(&mut some)
            .unwrap();
        let output = process.wait_with_output().unwrap();
        writer.join().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && !stderr.contains("panicked"),
            "{stderr}"
        );
        assert!(!stderr.contains("error"), "{stderr}");
    }
}

fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Commands that print something.
fn printing(folder: &Folder) -> [std::process::Command; 6] {
    let with = |args: &[&str], last: &[&std::ffi::OsStr]| {
        let mut command = command();
        command.args(args).args(last);
        command
    };
    let path = folder.0.as_os_str();
    [
        with(&["index"], &[path]),
        with(&["index", "--json"], &[path]),
        with(&["query", "zebra", "--index"], &[path]),
        with(&["query", "zebra", "--json", "--index"], &[path]),
        with(&["--help"], &[]),
        with(&["query", "--help"], &[]),
    ]
}

#[test]
fn a_stdout_that_is_closed_is_no_fault() {
    let folder = folder("closed-stdout");
    folder.index(&[]);
    for mut command in printing(&folder) {
        let output = command.stdout(closed()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command:?}: {stderr}");
        assert!(!stderr.contains("error"), "{command:?}: {stderr}");
    }
}

#[test]
fn a_stderr_that_is_closed_changes_nothing() {
    let folder = folder("closed-stderr");
    folder.write("left-out.txt", [0, 1, 2]);
    folder.index(&[]);
    for mut command in printing(&folder) {
        let output = command.stderr(closed()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(!output.stdout.is_empty(), "{command:?}");
    }
    let output = command()
        .arg("query")
        .arg("--wrong")
        .stderr(closed())
        .output();
    assert_eq!(output.unwrap().status.code(), Some(1));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_device_is_an_error() {
    let folder = folder("full");
    folder.index(&[]);
    for mut command in printing(&folder) {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let output = command.stdout(full.unwrap()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {stderr}");
        assert!(
            stderr.contains("error: stdout: No space left"),
            "{command:?}: {stderr}"
        );
    }
}
