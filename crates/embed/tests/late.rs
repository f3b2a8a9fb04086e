//! Late interaction against PyLate and sentence-transformers, with the folders that
//! `assets/reference/late.py` writes.

use anyhow::{Context, Result, ensure};
use dynquant_embed::{
    Embedder, Encoder, Head, Input, MultiVector, MultiVectorEmbedder, Options, Task,
};
use serde::Deserialize;

use crate::common::{check, edited, float, folder, quantized, read, refused};

mod common;

const FOLDERS: [&str; 4] = ["late-bert", "late-modernbert", "late-native", "late-stanford"];

#[derive(Deserialize)]
struct Expected {
    texts: Vec<String>,
    questions: Vec<String>,
    queries: Vec<Vec<Vec<f32>>>,
    documents: Vec<Vec<Vec<f32>>>,
    /// The similarity of each document to the first question.
    scores: Vec<f32>,
}

fn check_all(name: &str, got: &[MultiVector], expected: &[Vec<Vec<f32>>]) -> Result<()> {
    ensure!(got.len() == expected.len(), "{name}: {} answers", got.len());
    for (got, expected) in got.iter().zip(expected) {
        let got: Vec<Vec<f32>> = got.vectors().map(<[f32]>::to_vec).collect();
        check(name, &got, expected)?;
    }
    Ok(())
}

#[test]
fn vectors_of_tokens_equal_those_of_the_tools() -> Result<()> {
    for name in FOLDERS {
        let expected: Expected = read(name, "expected.json")?;
        let embedder = MultiVectorEmbedder::open_with(folder(name), float()).context(name)?;
        assert_eq!(embedder.encoder().config.notes, [""; 0], "{name}");
        assert_eq!(embedder.dimensions(), expected.queries[0][0].len(), "{name}");
        let queries = embedder.embed_queries(&expected.questions)?;
        check_all(name, &queries, &expected.queries)?;
        let documents = embedder.embed_documents(&expected.texts)?;
        check_all(name, &documents, &expected.documents)?;
        let scores =
            documents.iter().map(|it| queries[0].max_sim(it)).collect::<Result<Vec<_>>>()?;
        check(name, &[scores], &[expected.scores])?;
    }
    Ok(())
}

/// The bits of int8 are equal together, in other batches, alone, and from a folder that was quantized
/// before.
#[test]
fn bits_of_tokens_do_not_depend_on_the_batch() -> Result<()> {
    for name in FOLDERS {
        let Expected { texts, questions, .. } = read(name, "expected.json")?;
        let embed = |size| -> Result<[Vec<MultiVector>; 2]> {
            let options = Options::new().batch_size(size);
            let embedder = MultiVectorEmbedder::open_with(folder(name), options)?;
            assert!(!embedder.encoder().model.is_one_by_one(), "{name}");
            Ok([embedder.embed_queries(&questions)?, embedder.embed_documents(&texts)?])
        };
        let together = embed(32)?;
        for size in [1, 2] {
            assert_eq!(embed(size)?, together, "{name}, batches of {size}");
        }
        let (_dir, out) = quantized(name)?;
        let quantized = MultiVectorEmbedder::open(&out).context(name)?;
        let answers = [quantized.embed_queries(&questions)?, quantized.embed_documents(&texts)?];
        assert_eq!(answers, together, "{name}, quantized before");
    }
    Ok(())
}

#[test]
#[rustfmt::skip]
fn mistakes_in_folders_of_late_interaction_are_named() -> Result<()> {
    let (settings, metadata) = ("config_sentence_transformers.json", "artifact.metadata");
    let (sentence, mask) = ("sentence_bert_config.json", "2_MultiVectorMask/config.json");
    for (name, file, from, to, expected) in [
        ("late-bert", settings, "[Q] ", "[R] ", "expected a token, got \"[R] \""),
        ("late-bert", settings, "\"query_length\": 12", "\"query_length\": 2", "expected at most 1 tokens"),
        ("late-bert", settings, "\"document_length\": 20", "\"document_length\": 50", "expected 1 to 40"),
        ("late-bert", settings, "\"ColBERT\"", "\"SentenceTransformer\"", "that modules.json makes"),
        ("late-bert", "modules.json", "pylate.models.Dense.Dense", "sentence_transformers.models.Pooling", "1_Dense"),
        ("late-bert", "modules.json", "2_Dense\", \"type\": \"pylate.models.Dense.Dense", "2_Dense\", \"type\": \"sentence_transformers.models.Normalize", "expected Dense or"),
        ("late-bert", "1_Dense/config.json", "\"use_residual\": true", "\"use_residual\": false", "residual"),
        ("late-modernbert", settings, "\"attend_to_expansion_tokens\": true", "\"attend_to_expansion_tokens\": false", "at most 6 tokens"),
        ("late-modernbert", settings, "\"query_length\": 16", "\"query_length\": 2000000000", "at most 65536 tokens"),
        ("late-native", sentence, "\"min\"", "\"most\"", "expected fixed or min"),
        ("late-native", sentence, "\"length\": 12", "\"length\": 0", "query_expansion.length"),
        ("late-native", sentence, "\"token\": null", "\"token\": \"[QUERY]\"", "got \"[QUERY]\""),
        ("late-native", mask, "null", "[4]", "keep_only_token_ids"),
        ("late-native", "modules.json", "MultiVectorMask\"}", "HierarchicalTokenPooling\"}", "Hierarchical"),
        ("late-stanford", metadata, "\"dim\": 32", "\"dim\": 8", "linear"),
        ("late-stanford", metadata, "\"cosine\"", "\"l2\"", "similarity"),
        ("late-stanford", metadata, "[unused0]", "[unused9]", "got \"[unused9]\""),
    ] {
        let dir = edited(name, file, [from, to])?;
        refused(MultiVectorEmbedder::open(dir.path()), expected);
    }
    refused(Embedder::open(folder("late-bert")), "MultiVectorEmbedder");
    assert!(MultiVectorEmbedder::open(folder("bert")).is_err());
    let encoder = Encoder::open(&folder("late-bert"), None)?;
    let tokens = encoder.tokenizer.encode(Input::Text("bread"), None)?;
    let head = Head::Embedding;
    assert!(encoder.model.answer(&[Task { tokens: &tokens, head }]).is_err());
    Ok(())
}
