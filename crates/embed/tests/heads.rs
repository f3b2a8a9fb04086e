//! Heads beside those of classes, against the tools that have them, with the folders that
//! `assets/reference/encoders.py` writes.

use std::fs;

use anyhow::{Context, Result};
use dynquant_embed::{Embedder, Options, SparseEmbedder, SparseVector};

use crate::common::{check, edited, float, folder};

mod common;

const TEXTS: [&str; 3] = [
    "bread",
    "snow falls on the old city in winter",
    "the river runs to the harbour",
];

/// The head of bge-m3: float, alone and in batches, and mistakes in its files.
#[test]
fn weights_of_tokens_are_those_of_bge_m3() -> Result<()> {
    let name = "xlm-roberta";
    let rows = fs::read_to_string(folder(name).join("lexical.json"))?;
    let rows: Vec<Vec<f32>> = serde_json::from_str(&rows)?;
    let texts = serde_json::from_str::<serde_json::Value>(&fs::read_to_string(
        folder(name).join("expected.json"),
    )?)?;
    let texts: Vec<String> = serde_json::from_value(texts["texts"].clone())?;
    let embedder = SparseEmbedder::open_with(folder(name), float())?;
    for (got, row) in embedder.embed(&texts)?.iter().zip(&rows) {
        let expected = SparseVector::from_dense(row);
        assert_eq!(got.ids, expected.ids);
        check(
            name,
            std::slice::from_ref(&got.weights),
            &[expected.weights],
        )?;
    }
    let together = SparseEmbedder::open(folder(name))?.embed(&TEXTS)?;
    let alone = SparseEmbedder::open_with(folder(name), Options::new().batch_size(1))?;
    assert_eq!(alone.embed(&TEXTS)?, together);

    let head = "sparse_linear.safetensors";
    for (from, to, expected) in [
        ("\"bias\"", "\"basi\"", "cannot find tensor bias"),
        ("[1,32]", "[32,1]", "expected a product"),
    ] {
        let dir = edited(name, "1_Pooling/config.json", ["{", "{"])?;
        let path = dir.path().join(head);
        let mut bytes = fs::read(&path)?;
        let at = bytes
            .windows(from.len())
            .position(|it| it == from.as_bytes());
        let at = at.context(from)?;
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        fs::write(path, bytes)?;
        let error = SparseEmbedder::open(dir.path())
            .err()
            .map(|e| format!("{e:#}"));
        let error = error.unwrap_or_default();
        assert!(error.contains(expected) && error.contains(head), "{error}");
        Embedder::open(dir.path())?;
    }
    let dir = edited(name, "1_Pooling/config.json", ["{", "{"])?;
    fs::rename(dir.path().join(head), dir.path().join("sparse_linear.pt"))?;
    let error = SparseEmbedder::open(dir.path())
        .err()
        .map(|e| format!("{e:#}"));
    assert!(error.is_some_and(|it| it.contains("scripts/convert_pytorch.py sparse_linear.pt")));
    Ok(())
}
