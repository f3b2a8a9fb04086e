//! Mistakes of users: a message that names the fault, no panic and no file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::Int64Array;

use crate::data;
use crate::process::{error, free_ports, run};

fn check(words: &[&str], expected: &str) {
    let message = error(words);
    assert!(message.contains(expected), "{words:?}: {message}");
}

#[test]
fn on_the_command_line_are_named() {
    check(&[], "Usage");
    for (words, expected) in cases(COMMANDS) {
        check(&words.split(' ').collect::<Vec<_>>(), expected);
    }
}

/// The rows of a table: what is run, and a part of the message.
fn cases(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.trim().lines().map(|row| row.split_once(" | ").unwrap())
}

const COMMANDS: &str = r#"
run --input x | --output
run --input x --output y --preset int5 | expected one of int8, int8_reduce_range, int8_groups, int4, pytorch, per_channel, float16, bfloat16, onnxruntime, none, got "int5"
run --input x --output y --partitions 0 | expected a whole number from 1 to 1000000
run --input x --output y --scheduler localhost:50050 | expected df://HOST:PORT, got "localhost:50050"
executor --scheduler df://a:b | expected df://HOST:PORT
executor --port 0 | --port
executor --host localhost | --host
executor --host 0.0.0.0 | --advertise: expected the name under which others reach this machine
executor --model /no/such/folder | --model: /no/such/folder: expected a folder with config.json
scheduler --host 0.0.0.0 | --advertise: expected the name under which others reach this machine
scheduler --host 192.0.2.1 | --host, --port: expected an address to listen on, got 192.0.2.1:50050
"#;

#[test]
fn ports_in_use_are_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|it| (taken, it.port().to_string()));
    let (_taken, port) = taken.unwrap();
    let [free, _] = free_ports();
    let expected = |option| {
        format!("--host, {option}: expected an address to listen on, got 127.0.0.1:{port}")
    };
    check(&["scheduler", "--port", &port], &expected("--port"));
    check(&["executor", "--port", &port], &expected("--port"));
    let words = ["executor", "--port", &free, "--task-port", &port];
    check(&words, &expected("--task-port"));
}

#[test]
fn in_files_are_named() {
    let dir = data::folder("mistaken files");
    let (input, output) = (dir.join("input.parquet"), dir.join("output.parquet"));
    let check = |input: &Path, output: &Path, expected: &str| {
        check(&run(input, output, &[]), expected);
    };
    check(
        &input,
        &output,
        "input.parquet: expected a Parquet file or a folder of them: No such file",
    );
    fs::create_dir(dir.join("empty")).unwrap();
    check(
        &dir.join("empty"),
        &output,
        "expected a folder with files named *.parquet, got none of them",
    );
    fs::write(&input, "id,text\n1,not a Parquet file\n").unwrap();
    check(&input, &output, "input.parquet: expected a Parquet file or a folder of them");

    data::write(&input, &data::texts(20), 20);
    let whole = fs::read(&input).unwrap();
    check(&input, &dir, "expected a file, got a folder");
    check(&input, &dir.join("no/folder"), "expected a place to write to");
    check(&input, &input, "expected a file that is no part of --input");
    check(&dir, &dir.join("new.parquet"), "expected a file that is no part of --input");
    assert_eq!(fs::read(&input).unwrap(), whole);

    fs::write(&input, &whole[..whole.len() / 2]).unwrap();
    check(&input, &output, "input.parquet: expected a Parquet file or a folder of them");
    let mut damaged = whole.clone();
    damaged[4..40].fill(0xaa);
    fs::write(&input, damaged).unwrap();
    error(&run(&input, &output, &[]));
    assert!(!output.exists());
    let left = fs::read_dir(&dir).unwrap().count();
    assert_eq!(left, 2, "temporary files are removed");
}

#[test]
fn in_queries_are_named() {
    let dir = data::folder("mistaken queries");
    let (input, output) = (dir.join("input"), dir.join("output"));
    data::write(&input, &data::texts(20), 20);
    let create = format!("COPY data TO '{}.parquet'", output.display());
    let others = [
        ("SELECT", "--sql: "),
        ("SELECT 1; SELECT 2", "--sql: "),
        (&create, "--sql: Error during planning: DML not supported"),
    ];
    for (sql, expected) in cases(QUERIES).chain(others) {
        check(&run(&input, &output, &["--sql", sql]), expected);
        assert!(!output.exists(), "{sql}");
    }
    data::write_column(&input, Arc::new(Int64Array::from_iter(0..20)), 20);
    check(
        &run(&input, &output, &[]),
        "embed: expected a text (Utf8, LargeUtf8 or Utf8View), got Int64",
    );
}

const QUERIES: &str = "
SELECT embed(text) FROM texts | --sql: Error during planning: table 'datafusion.public.texts' not found
SELECT embed(id) FROM data | embed: expected a text (Utf8, LargeUtf8 or Utf8View), got Int64
SELECT embed() FROM data | embed: expected one text, got 0 arguments
SELECT embed(text, 'x') FROM data | embed: expected one text, got 2 arguments
SELECT classify(id) FROM data | classify: expected a text
CREATE TABLE x AS SELECT 1 | --sql: Error during planning: DDL not supported
SET datafusion.execution.batch_size = 1 | --sql: Error during planning: Statement not supported
";

#[test]
fn a_scheduler_that_is_not_there_is_named() {
    let dir = data::folder("no scheduler");
    let (input, output) = (dir.join("input"), dir.join("output"));
    data::write(&input, &data::texts(20), 20);
    let [port, _] = free_ports();
    let url = format!("df://127.0.0.1:{port}");
    check(&run(&input, &output, &["--scheduler", &url]), &url);
    assert!(!output.exists());
}
