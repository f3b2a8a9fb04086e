//! Mistakes: a message that names the fault, and no panic.

use std::fs;

use dynquant_search::index::Index;

use crate::process::{BERT, Folder, command, fault, run};

#[test]
fn of_the_command_line_are_named() {
    let folder = Folder::with_texts("mistakes", 1);
    folder.index(&[]);
    let dir = folder.0.to_str().unwrap();
    let file = format!("{dir}/text-000.txt");
    let out = format!("{dir}/no/such/folder/index");
    let cases: [(&[&str], &str); 14] = [
        (&[], "Usage"),
        (&["index"], "<DIR>"),
        (
            &["index", "/no/such/folder"],
            "/no/such/folder: expected a folder, got no such folder",
        ),
        (&["index", &file], "expected a folder, got a file"),
        (
            &["index", dir, "--out", dir],
            "expected a file, got a folder",
        ),
        (
            &["index", dir, "--out", &out],
            "expected a place to write to",
        ),
        (
            &["index", dir, "--preset", "int5"],
            "expected one of int8, int8_reduce_range, int8_groups, int4, bfloat16, float16, none, got \"int5\"",
        ),
        (
            &["index", dir, "--rebuild", "--model", "/no/such/model"],
            "--model: /no/such/model: expected a folder with config.json",
        ),
        (
            &["query", "--index", "/no/such/index", "word"],
            "/no/such/index: expected a readable index",
        ),
        (
            &["query", "--index", &file, "word"],
            "expected an index of dynquant-search, got another file",
        ),
        (
            &["query", "--index", dir, "-k", "0", "word"],
            "expected a whole number from 1 to 10000",
        ),
        (
            &["query", "--index", dir, " "],
            "the query: expected words, got none",
        ),
        (
            &["query", "--index", dir, &"word ".repeat(100)],
            "the query: expected at most 64 tokens, got 102",
        ),
        (
            &["query", "--index", dir, "--color", "pink", "word"],
            "--color",
        ),
    ];
    for (options, expected) in cases {
        let fault = fault(&command().args(options).output().unwrap());
        assert!(fault.contains(expected), "{options:?}: {fault}");
    }
    let mut query = command();
    query.args(["query", "word"]).current_dir("/");
    let fault = fault(&query.output().unwrap());
    assert!(
        fault.contains("expected an index in / or a folder above it, got none"),
        "{fault}"
    );
}

#[test]
fn an_index_that_is_not_whole_is_refused() {
    let folder = Folder::with_texts("damaged", 2);
    folder.index(&[]);
    let path = folder.index_file();
    let whole = fs::read(&path).unwrap();
    let damaged = folder.path("damaged.index");
    let refused = |bytes: &[u8], expected: &str, what: &str| {
        fs::write(&damaged, bytes).unwrap();
        let error = Index::read(&damaged)
            .err()
            .map(|error| format!("{error:#}"));
        let error = error.unwrap_or_else(|| panic!("{what}: expected an error"));
        assert!(
            error.contains("damaged.index") && error.contains(expected),
            "{what}: {error}"
        );
    };
    let lengths = (0..60).chain((60..whole.len()).step_by(whole.len() / 50));
    for length in lengths {
        let expected = match length {
            0..16 => "got another file",
            16..18 => "got version",
            _ => "got a damaged one",
        };
        refused(&whole[..length], expected, &format!("{length} bytes"));
    }
    for at in (18..60).chain((60..whole.len()).step_by(whole.len() / 50)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        refused(&bytes, "got a damaged one", &format!("byte {at} changed"));
    }
    refused(
        &[&whole[..], b"more"].concat(),
        "got a damaged one",
        "bytes at the end",
    );
    let mut version = whole.clone();
    version[16] = b'1';
    refused(
        &version,
        "expected an index of version 3, got version \"1\"",
        "another version",
    );

    // As a user meets it.
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let query = [
        "query".as_ref(),
        "--index".as_ref(),
        folder.0.as_os_str(),
        "word".as_ref(),
    ];
    assert!(fault(&run(query, &[])).contains("expected a whole index, got a damaged one"));
    let index = ["index".as_ref(), folder.0.as_os_str()];
    let message = fault(&run(index, &[]));
    assert!(
        message.contains("--rebuild replaces it") && message.contains("got a damaged one"),
        "{message}"
    );
    let no_model = fault(&run(index, &["--rebuild"]));
    assert!(
        no_model.contains("expected a model of embeddings, got none"),
        "{no_model}"
    );
    assert!(run(index, &["--rebuild", "--model", BERT]).status.success());
    assert_eq!(fs::read(&path).unwrap().len(), whole.len());
}

/// Bytes with a right hash that say what cannot be.
#[test]
fn a_catalog_that_lies_is_no_panic() {
    let folder = Folder::with_texts("lies", 1);
    folder.index(&[]);
    let whole = fs::read(folder.index_file()).unwrap();
    let (head, body) = whole.split_at(18);
    let length = u64::from_le_bytes(body[..8].try_into().unwrap()) as usize;
    // The words and the vectors.
    let (catalog, rest) = body[8..body.len() - 32].split_at(length);
    let catalog = std::str::from_utf8(catalog).unwrap();
    let write = |length: u64, catalog: &str, rest: &[u8]| {
        let bytes = [head, &length.to_le_bytes(), catalog.as_bytes(), rest].concat();
        let hash = blake3::hash(&bytes);
        fs::write(folder.index_file(), [&bytes, &hash.as_bytes()[..]].concat()).unwrap();
    };
    let query = [
        "query".as_ref(),
        "--json".as_ref(),
        "--index".as_ref(),
        folder.0.as_os_str(),
        "word".as_ref(),
    ];
    for length in [0, 10, u64::MAX, 1 << 40] {
        write(length, catalog, rest);
        fault(&run(query, &[]));
    }
    for lie in [0, 7, u64::MAX, 1 << 40] {
        write(
            catalog.len() as u64,
            catalog,
            &[&lie.to_le_bytes(), &rest[8..]].concat(),
        );
        fault(&run(query, &[]));
    }
    for (from, to) in [
        ("\"dimensions\":128", "\"dimensions\":64"),
        ("\"files\"", "\"fils\""),
        ("int8", "int9"),
    ] {
        let catalog = catalog.replace(from, to);
        write(catalog.len() as u64, &catalog, rest);
        fault(&run(query, &[]));
    }
    write(length as u64, catalog, &rest[..rest.len() / 2]);
    fault(&run(query, &[]));
    // Passages at places that are not in the file are passages that have changed.
    let mut lies: serde_json::Value = serde_json::from_str(catalog).unwrap();
    let passages = lies["files"]["text-000.txt"]["passages"]
        .as_array_mut()
        .unwrap();
    for (index, passage) in passages.iter_mut().enumerate() {
        (passage[1], passage[2]) =
            [(9.into(), 2.into()), (1.into(), u64::MAX.into())][index % 2].clone();
    }
    let lies = lies.to_string();
    write(lies.len() as u64, &lies, rest);
    let output = run(query, &[]);
    let answer = crate::process::json_of(&output);
    assert_eq!(answer["results"][0]["places"][0]["changed"], true);
}
