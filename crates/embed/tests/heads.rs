//! Heads beside those of classes, against the tools that have them, with the folders that
//! `assets/reference/encoders.py` writes.

use std::fs;

use anyhow::{Context, Result, ensure};
use dynquant_embed::{
    ClassifiedToken, Embedder, Options, SparseEmbedder, SparseVector, TokenClassifier,
};
use serde::Deserialize;

use crate::common::{check, edited, float, folder, quantized, read, refused};

mod common;

#[derive(Deserialize)]
struct Texts {
    texts: Vec<String>,
}

/// The head of bge-m3: float, alone and in batches, and mistakes in its file.
#[test]
fn weights_of_tokens_are_those_of_bge_m3() -> Result<()> {
    let (name, head) = ("xlm-roberta", "sparse_linear.safetensors");
    let rows: Vec<Vec<f32>> = read(name, "lexical.json")?;
    let Texts { texts } = read(name, "expected.json")?;
    let embedder = SparseEmbedder::open_with(folder(name), float())?;
    for (got, row) in embedder.embed(&texts)?.into_iter().zip(&rows) {
        let expected = SparseVector::from_dense(row);
        assert_eq!(got.ids, expected.ids);
        check(name, &[got.weights], &[expected.weights])?;
    }
    let together = SparseEmbedder::open(folder(name))?.embed(&texts)?;
    let alone = SparseEmbedder::open_with(folder(name), Options::new().batch_size(1))?;
    assert_eq!(alone.embed(&texts)?, together);
    let (_dir, out) = quantized(name)?;
    assert_eq!(SparseEmbedder::open(&out)?.embed(&texts)?, together);
    // PyTorch's file alone, as published.
    fs::remove_file(out.join(head))?;
    assert_eq!(SparseEmbedder::open(&out)?.embed(&texts)?, together);
    let mut bytes = fs::read(folder(name).join(head))?;
    let last = bytes.len() - 2;
    bytes[last..].copy_from_slice(&[0, 0x7e]);
    fs::write(out.join(head), bytes)?;
    refused(SparseEmbedder::open(&out), "expected finite answers, got NaN");
    for (from, to, expected) in [
        ("\"bias\"", "\"basi\"", "cannot find tensor bias"),
        ("[1,32]", "[32,1]", "expected a product"),
    ] {
        let dir = edited(name, head, [from, to])?;
        assert!(refused(SparseEmbedder::open(dir.path()), expected).contains(head));
        Embedder::open(dir.path())?;
        fs::rename(dir.path().join(head), dir.path().join("sparse_linear.pt"))?;
        let expected = "sparse_linear.pt: expected a state dict of PyTorch";
        refused(SparseEmbedder::open(dir.path()), expected);
    }
    Ok(())
}

/// The beginning and the end of a token or an entity in characters, its label and the score of it.
type Piece = (usize, usize, String, f32);

#[derive(Deserialize)]
struct Named {
    texts: Vec<String>,
    tokens: Vec<Vec<Piece>>,
    entities: Vec<Vec<Piece>>,
}

#[rustfmt::skip]
const NAMERS: [&str; 5] = ["tokens-bert", "tokens-distilbert", "tokens-deberta", "tokens-modernbert", "tokens-qwen3"];

/// Checks spans in bytes against characters, labels and scores.
fn check_pieces(
    text: &str,
    got: impl ExactSizeIterator<Item = Piece>,
    expected: &[Piece],
) -> Result<()> {
    ensure!(got.len() == expected.len(), "{text}: {} pieces", got.len());
    let byte = |place| text.char_indices().nth(place).map_or(text.len(), |it| it.0);
    for ((start, end, label, score), expected) in got.zip(expected) {
        let got = (&label, start..end);
        ensure!(got == (&expected.2, byte(expected.0)..byte(expected.1)), "{got:?} {expected:?}");
        ensure!((score - expected.3).abs() < 1e-5, "{score} {expected:?}");
    }
    Ok(())
}

#[test]
fn classes_of_tokens_are_those_of_the_pipeline_of_transformers() -> Result<()> {
    for name in NAMERS {
        let expected: Named = read(name, "expected.json")?;
        let classifier = TokenClassifier::open_with(folder(name), float()).context(name)?;
        let tokens = classifier.classify(&expected.texts)?;
        let entities = classifier.entities(&expected.texts)?;
        for (index, text) in expected.texts.iter().enumerate() {
            let piece = |it: ClassifiedToken| {
                let score = it.scores.iter().copied().fold(0., f32::max);
                (it.span.start, it.span.end, it.label, score)
            };
            let got = tokens[index].clone().into_iter().map(piece);
            check_pieces(text, got, &expected.tokens[index])?;
            let got = entities[index].clone().into_iter();
            let got = got.map(|it| (it.span.start, it.span.end, it.label, it.score));
            check_pieces(text, got, &expected.entities[index])?;
        }
    }
    Ok(())
}

/// The bits of int8 are equal together, alone, and from a folder that was quantized before.
#[test]
#[rustfmt::skip]
fn bits_of_classes_do_not_depend_on_the_batch() -> Result<()> {
    for name in NAMERS {
        let Texts { texts } = read(name, "expected.json")?;
        let classifier = TokenClassifier::open(folder(name))?;
        assert!(!classifier.encoder().model.is_one_by_one(), "{name}");
        let together = classifier.classify(&texts)?;
        let alone = TokenClassifier::open_with(folder(name), Options::new().batch_size(1))?;
        assert_eq!(alone.classify(&texts)?, together, "{name}");
        let (_dir, out) = quantized(name)?;
        assert_eq!(TokenClassifier::open(&out)?.classify(&texts)?, together, "{name}");
    }
    for (name, file, from, to, expected) in [
        ("tokens-bert", "config.json", "\"3\": \"LOC\"", "\"4\": \"LOC\"", "id2label"),
        ("tokens-bert", "config.json", ", \"3\": \"LOC\"", "", "a head of 3 classes"),
        ("t5", "config.json", "T5EncoderModel", "T5ForTokenClassification", "classifier"),
        ("bert", "config.json", "BertModel", "BertModel", "ForTokenClassification, got another"),
    ] {
        let dir = edited(name, file, [from, to])?;
        refused(TokenClassifier::open(dir.path()), expected);
    }
    Ok(())
}
