//! The order of results by meaning, words or both; and the text of Markdown.

use std::fs;
use std::path::Path;

use dynquant_embed::Embedder;
use serde_json::Value;

use crate::process::{BERT, Folder, command, fault, json_of, run};

const WITH_PROMPTS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../assets/reference/encoders/modernbert"
);

fn texts(results: &Value) -> Vec<&str> {
    let results = results.as_array().unwrap().iter();
    results.map(|it| it["text"].as_str().unwrap()).collect()
}

#[test]
fn without_a_model_the_message_says_which_one() {
    let folder = Folder::with_texts("no-model", 1);
    for options in [&[][..], &["--preset", "int8"], &["--rebuild"]] {
        let message = fault(&run(["index".as_ref(), folder.0.as_os_str()], options));
        for part in [
            "expected a model of embeddings, got none",
            "`--model sentence-transformers/all-MiniLM-L6-v2` downloads one",
            "scripts/fetch_minilm.sh",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert!(!folder.index_file().exists());
    }
}

/// Names and codes are words that a model of meaning does not know.
#[test]
fn words_decide_where_meaning_does_not() {
    let folder = Folder::with_texts("words", 8);
    folder.write("code.txt", "The compiler stops with E0277 there.\n");
    folder.write("name.txt", "Call quantize_dynamic before saving.\n");
    folder.index(&[]);
    for (query, expected) in [
        ("e0277", "The compiler stops with E0277 there."),
        ("quantize_dynamic", "Call quantize_dynamic before saving."),
    ] {
        for rank in ["words", "both"] {
            let results = folder.query(query, &["--rank", rank, "-k", "3"]);
            assert_eq!(texts(&results)[0], expected, "{rank}");
        }
    }
    let found = |rank: &str| folder.query("e0277", &["--rank", rank, "-k", "3"]);
    let is_number = |results: &Value, key: &str| results[0][key].is_number();
    let numbers = |rank: &str| ["cosine", "bm25", "score"].map(|key| is_number(&found(rank), key));
    assert_eq!(numbers("meaning"), [true, false, true]);
    assert_eq!(numbers("words"), [false, true, true]);
    assert_eq!(numbers("both"), [true, true, true]);
    assert_eq!(found("words").as_array().unwrap().len(), 1);
    assert_eq!(found("meaning").as_array().unwrap().len(), 3);
    assert_eq!(
        folder.query("xyzzy", &["--rank", "words"]),
        Value::Array(Vec::new())
    );
}

#[test]
fn words_need_no_model() {
    let models = Folder::new("words-model");
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(Path::new(BERT).join(file), models.path(file)).unwrap();
    }
    let folder = Folder::with_texts("words-without-model", 3);
    folder.index(&["--model", models.0.to_str().unwrap()]);
    let before = folder.query("notes", &["--rank", "words"]);
    assert!(!before.as_array().unwrap().is_empty());
    fs::remove_dir_all(&models.0).unwrap();
    assert_eq!(folder.query("notes", &["--rank", "words"]), before);
    let query = ["query".as_ref(), "--index".as_ref(), folder.0.as_os_str()];
    assert!(fault(&run(query, &["music"])).contains("got no such folder"));
}

/// Indexes and answers, on one thread and on several.
#[test]
fn the_number_of_threads_changes_no_bit() {
    let answers = |threads: &str| {
        let folder = Folder::with_texts(&format!("threads-{threads}"), 6);
        let run = |arguments: &[&str]| {
            let mut run = command();
            run.args(arguments).arg("--json");
            for name in ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"] {
                run.env(name, threads);
            }
            json_of(&run.output().unwrap())
        };
        let dir = folder.0.to_str().unwrap();
        run(&["index", dir, "--model", BERT]);
        ["text editor", "a game with zebras"].map(|query| {
            let answer = run(&["query", "--index", dir, "-k", "20", query]);
            answer["results"].to_string().replace(dir, "DIR")
        })
    };
    assert_eq!(answers("1"), answers("3"));
}

#[test]
fn markup_is_no_text_and_lines_are_those_of_the_file() {
    let folder = Folder::new("markdown");
    let source = "---\ntitle: frontmatterword\n---\n\n\
                  [![badgeword](https://host/badgeurl)](https://host)\n\n\
                  <!-- commentword\n\nover lines -->\n\n## A heading\n\n\
                  Zebras cross [the street](https://host/targetword) here, see [it][1].\n\n\
                  ```rust\nlet codeword = 1; // https://host/incode\n```\n\n\
                  [1]: https://host/referenceword\n";
    folder.write("a.md", source);
    folder.write("plain.txt", "targetword in a text that is no Markdown\n");
    folder.index(&[]);
    let found = |query: &str| folder.query(query, &["--rank", "words"]);
    for word in [
        "frontmatterword",
        "badgeword",
        "badgeurl",
        "commentword",
        "referenceword",
    ] {
        assert_eq!(found(word), Value::Array(Vec::new()), "{word}");
    }
    assert_eq!(
        texts(&found("targetword")),
        ["targetword in a text that is no Markdown"]
    );
    for word in ["heading", "street", "codeword", "incode"] {
        let results = found(word);
        let place = &results[0]["places"][0];
        assert_eq!(
            (&place["first_line"], &place["changed"]),
            (&11.into(), &false.into()),
            "{word}"
        );
        assert_eq!(place["last_line"], 16, "{word}");
        // As the file has it.
        let shown = texts(&results)[0];
        assert!(
            shown.starts_with("## A heading\n\nZebras cross [the street](https://"),
            "{shown}"
        );
        assert!(
            shown.ends_with("let codeword = 1; // https://host/incode"),
            "{shown}"
        );
    }
    // Markup may change: the vectors stay, and the passage is as the file has it.
    folder.write("a.md", source.replace("targetword", "elsewhere"));
    assert_eq!(found("street")[0]["places"][0]["changed"], true);
    let report = folder.index(&[]);
    assert_eq!(
        (&report["read"], &report["embedded"]),
        (&1.into(), &0.into())
    );
    assert!(texts(&found("street"))[0].contains("elsewhere"));
}

#[test]
fn prompts_are_written_before_documents_and_queries() {
    let model = Folder::new("prompts-model");
    for entry in fs::read_dir(WITH_PROMPTS).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, model.path(path.file_name().unwrap())).unwrap();
        } else {
            let name = path.file_name().unwrap();
            fs::create_dir(model.path(name)).unwrap();
            for file in fs::read_dir(&path).unwrap() {
                let file = file.unwrap();
                fs::copy(file.path(), model.path(name).join(file.file_name())).unwrap();
            }
        }
    }
    let dir = model.0.to_str().unwrap();
    let folder = Folder::new("prompts");
    let (text, query) = ("the old city of snow and trees", "a river");
    folder.write("a.txt", text);
    folder.index(&["--model", dir]);
    let results = folder.query(query, &["--rank", "meaning"]);

    let embedder = Embedder::open(dir).unwrap();
    let of_model = &embedder.encoder().prompts;
    assert_ne!(of_model.document(), of_model.query());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let cosine = |documents: Vec<Vec<f32>>, queries: Vec<Vec<f32>>| {
        let (a, b) = (&documents[0], &queries[0]);
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    let with = cosine(
        embedder.embed_documents(&[text]).unwrap(),
        embedder.embed_queries(&[query]).unwrap(),
    );
    let without = cosine(
        embedder.embed(&[text]).unwrap(),
        embedder.embed(&[query]).unwrap(),
    );
    let got = results[0]["cosine"].as_f64().unwrap() as f32;
    assert!(
        (got - with).abs() < 1e-5 && (got - without).abs() > 1e-4,
        "{got} {with} {without}"
    );

    // A model with another prompt makes other vectors.
    let prompts = model.path("config_sentence_transformers.json");
    let changed = fs::read_to_string(&prompts).unwrap();
    for name in [of_model.document(), of_model.query()] {
        assert!(changed.contains(name));
        fs::write(&prompts, changed.replace(name, "other: ")).unwrap();
        let query = ["query".as_ref(), "--index".as_ref(), folder.0.as_os_str()];
        let message = fault(&run(query, &["river"]));
        assert!(
            message.contains("expected an index of the model "),
            "{message}"
        );
    }
}
