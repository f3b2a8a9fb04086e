//! Every architecture over HTTP has the bits of the crate.

use std::fs;
use std::path::{Path, PathBuf};

use dynquant_embed::{Classifier, Embedder, MultiVector, MultiVectorEmbedder, Options, Reranker};
use serde_json::{Value, json};

use crate::formats::floats;
use crate::process::{ASSETS, Server};

const QUERY: &str = "which city lies on the river";

pub fn folder(name: &str) -> PathBuf {
    Path::new(ASSETS).join("reference/encoders").join(name)
}

pub fn serve(name: &str, options: &[&str]) -> Server {
    let dir = folder(name).display().to_string();
    Server::start(&[&["--model", &dir], options].concat())
}

fn texts() -> Vec<String> {
    let text = fs::read_to_string(folder("bert/expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let texts = expected["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
    // An empty text is refused.
    texts.filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

pub fn vectors(value: &Value) -> Vec<Vec<f32>> {
    value.as_array().unwrap().iter().map(floats).collect()
}

/// Checks texts together and alone, with the folder's settings, after its prompts, and cut.
fn check_embedder(name: &str, server: &Server, texts: &[String]) {
    let embedder = Embedder::open(folder(name)).unwrap();
    let normalize = embedder.is_normalized();
    let embed = |mut body: Value| {
        body["truncate"] = json!(true);
        vectors(&server.ok("/embed", &body))
    };
    let whole = embedder.embed(texts).unwrap();
    let together = embed(json!({"inputs": texts, "normalize": normalize}));
    assert_eq!(together, whole, "{name}");
    for (text, vector) in texts.iter().zip(&whole) {
        let alone = embed(json!({"inputs": text, "normalize": normalize}));
        assert_eq!(alone, std::slice::from_ref(vector), "{name}: {text}");
    }
    for prompt in ["query", "document"] {
        let Ok(expected) = embedder.embed_as(prompt, texts) else {
            let is_bare = ["jina", "jina-v3-lora", "nomic-moe"].contains(&name)
                || name.starts_with("tokens-");
            assert!(is_bare, "{name} has no prompts");
            continue;
        };
        let body = json!({"inputs": texts, "normalize": normalize, "prompt_name": prompt});
        assert_eq!(embed(body), expected, "{name}, {prompt}");
        assert_ne!(expected, whole, "{name}, {prompt}");
    }
    let size = embedder.dimensions() - 5;
    let cut = embedder.cut_to(size).unwrap().embed(texts).unwrap();
    let body = json!({"inputs": texts, "dimensions": size});
    assert_eq!(embed(body.clone()), cut, "{name}, {size} numbers");
    let of_openai = json!({"input": texts[..3], "dimensions": size});
    let of_openai = server.ok("/v1/embeddings", &of_openai);
    for (datum, vector) in of_openai["data"].as_array().unwrap().iter().zip(&cut) {
        assert_eq!(&floats(&datum["embedding"]), vector, "{name}");
    }
}

/// Checks the vectors of tokens, of documents and of queries; there are no others.
fn check_late(name: &str, server: &Server, texts: &[String]) {
    let embedder = MultiVectorEmbedder::open(folder(name)).unwrap();
    let embed = |side: &str| -> Vec<Vec<f32>> {
        let body = json!({"inputs": texts, "prompt_name": side, "truncate": true});
        let answers = server.ok("/embed_all", &body);
        let answers = answers.as_array().unwrap().iter();
        answers.map(|rows| vectors(rows).concat()).collect()
    };
    let values = |all: Vec<MultiVector>| all.into_iter().map(|it| it.values).collect::<Vec<_>>();
    let [queries, documents] = ["query", "document"].map(embed);
    assert_eq!(queries, values(embedder.embed_queries(texts).unwrap()), "{name}");
    assert_eq!(documents, values(embedder.embed_documents(texts).unwrap()), "{name}");
    let reply = server.post("/embed", &json!({"inputs": "bread"}));
    reply.is(424, "the model has a vector of each token only: see /embed_all");
}

/// A field of each entry with its score.
fn pairs<T>(entries: &Value, field: &str, of: fn(&Value) -> T) -> Vec<(T, f32)> {
    let pair = |entry: &Value| (of(&entry[field]), entry["score"].as_f64().unwrap() as f32);
    entries.as_array().unwrap().iter().map(pair).collect()
}

fn check_classifier(name: &str, server: &Server, texts: &[String]) {
    let classifier = Classifier::open(folder(name)).unwrap();
    let batch: Vec<[&String; 1]> = texts.iter().map(|text| [text]).collect();
    let answers = server.ok("/predict", &json!({"inputs": batch, "truncate": true}));
    let expected = classifier.classify(texts).unwrap();
    for (answer, classes) in answers.as_array().unwrap().iter().zip(expected) {
        let answer = pairs(answer, "label", |label| label.as_str().unwrap().to_owned());
        assert_eq!(answer, classes, "{name}");
    }
}

fn check_reranker(name: &str, server: &Server, texts: &[String]) {
    let reranker = Reranker::open(folder(name)).unwrap();
    let rank = |texts: &[String], raw: bool| {
        let body = json!({"query": QUERY, "texts": texts, "truncate": true, "raw_scores": raw});
        pairs(&server.ok("/rerank", &body), "index", |index| index.as_u64().unwrap() as usize)
    };
    // Two folders request logits, the others the sigmoid, which is the API's default.
    let is_raw = ["reranker-xlm-roberta", "reranker-modules"].contains(&name);
    assert_eq!(rank(texts, is_raw), reranker.rank(QUERY, texts).unwrap(), "{name}");
    let indexes =
        |ranks: Vec<(usize, f32)>| ranks.into_iter().map(|rank| rank.0).collect::<Vec<_>>();
    assert_eq!(indexes(rank(texts, false)), indexes(rank(texts, true)), "{name}");
    for (text, score) in texts.iter().zip(reranker.scores(QUERY, texts).unwrap()) {
        assert_eq!(rank(std::slice::from_ref(text), is_raw), [(0, score)], "{name}: {text}");
    }
}

#[test]
fn every_folder_answers_with_the_bits_of_the_crate() {
    let texts = texts();
    let mut count = 0;
    for entry in fs::read_dir(folder("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let server = serve(&name, &[]);
        let info = server.get("/info").json();
        let kinds: Vec<&String> = info["model_type"].as_object().unwrap().keys().collect();
        match kinds[0].as_str() {
            "embedding" if info["model_type"]["embedding"]["pooling"] == "colbert" => {
                check_late(&name, &server, &texts);
            }
            "embedding" => check_embedder(&name, &server, &texts),
            "classifier" => check_classifier(&name, &server, &texts),
            "reranker" => check_reranker(&name, &server, &texts),
            other => panic!("{name}: {other}"),
        }
        count += 1;
    }
    assert_eq!(count, 50);
}

/// The adapters of a task are those of the crate.
#[test]
fn a_task_is_chosen_at_the_start() {
    const NAME: &str = "jina-v3-lora";
    let texts = texts();
    for task in ["retrieval.query", "text-matching"] {
        let server = serve(NAME, &["--task", task]);
        let options = Options::new().task(task);
        let embedder = Embedder::open_with(folder(NAME), options).unwrap();
        let body =
            json!({"inputs": texts, "normalize": embedder.is_normalized(), "truncate": true});
        let got = vectors(&server.ok("/embed", &body));
        assert_eq!(got, embedder.embed(&texts).unwrap(), "{task}");
    }
}
