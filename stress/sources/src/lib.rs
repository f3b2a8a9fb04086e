//! The library's own sources and tests, as far as they need no candle.
#![allow(dead_code, unused_imports, unused_macros)]

#[path = "../../../src/document/mod.rs"]
mod document;
#[path = "../../../src/error.rs"]
mod error;
#[path = "../../../src/kernels/mod.rs"]
mod kernels;
#[path = "../../../src/name_regex.rs"]
mod name_regex;
#[path = "../../../src/qparams/mod.rs"]
mod qparams;
#[path = "../../../src/nn/recurrent/schedule.rs"]
mod schedule;
#[path = "../../../src/sizes.rs"]
mod sizes;
#[path = "../../../src/words.rs"]
mod words;

mod others;

pub use others::*;

extern crate self as candle_core;
extern crate self as gemm;

#[test]
fn documents_are_read_or_refused() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/spec");
    let entries = std::fs::read_dir(corpus).expect("the corpus");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    // Miri is a thousand times as slow; among those that it reads are both kinds.
    let step = if cfg!(miri) { 4 } else { 1 };
    let mut read = [0, 0];
    for path in paths.iter().skip(step / 4).step_by(step) {
        let text = std::fs::read_to_string(path).expect("a text");
        let documents = [document::Node::from_yaml, document::Node::from_json];
        for (read, document) in read.iter_mut().zip(documents.map(|from| from(&text))) {
            *read += usize::from(document.is_ok());
        }
    }
    assert!(read.iter().all(|read| *read > 0), "{read:?} of {paths:?}");
}
