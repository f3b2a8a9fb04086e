//! The models that an index may be of.

use std::fs;
use std::path::Path;

use candle_dynquant::checkpoint::{Plan, quantize};
use candle_dynquant::{Checkpoint, QConfigSpec};

use crate::process::{BERT, Folder, fault, numbers, run};

const FILES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];

fn copy_model(to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in FILES {
        fs::copy(format!("{BERT}/{file}"), to.join(file)).unwrap();
    }
}

#[test]
fn a_query_takes_the_model_of_the_index() {
    let models = Folder::new("models");
    copy_model(&models.path("float"));
    let source = Checkpoint::open(models.path("float")).unwrap();
    let plan = Plan::new(&source, &QConfigSpec::int8(), &[], &[]).unwrap();
    quantize(&source, &plan, models.path("int8"), |_| ()).unwrap();
    fs::copy(
        models.path("float/tokenizer.json"),
        models.path("int8/tokenizer.json"),
    )
    .unwrap();

    let embedded = Folder::with_texts("models-embedded", 3);
    embedded.index(&[]);
    for (model, options) in [("float", &["--preset", "int8"][..]), ("int8", &[])] {
        let folder = Folder::with_texts(&format!("models-{model}"), 3);
        let dir = models.path(model).display().to_string();
        let report = folder.index(&[&["--model", &dir], options].concat());
        assert!(report["model"].as_str().unwrap().contains(&dir), "{report}");
        // Equal weights give equal answers to the last bit; and no word about the model.
        assert_eq!(folder.answers(), embedded.answers());
        assert_eq!(numbers(&folder.index(&[]), ["read", "embedded"]), [0, 0]);

        // The model may be moved.
        let moved = models.path(format!("{model}-moved"));
        fs::rename(&dir, &moved).unwrap();
        let query = |options: &[&str]| {
            let arguments = [
                "query".as_ref(),
                "--json".as_ref(),
                "--index".as_ref(),
                folder.0.as_os_str(),
                "editor".as_ref(),
            ];
            run(arguments, options)
        };
        let gone = fault(&query(&[]));
        assert!(
            gone.contains(&dir) && gone.contains("got no such folder"),
            "{gone}"
        );
        let moved = moved.display().to_string();
        assert!(
            query(&[&["--model", &moved], options].concat())
                .status
                .success()
        );
    }
}

#[test]
fn an_index_of_another_model_is_refused() {
    let models = Folder::new("other-models");
    copy_model(&models.path("other"));
    let config = fs::read_to_string(models.path("other/config.json")).unwrap();
    fs::write(models.path("other/config.json"), format!("{config}\n")).unwrap();
    let other = models.path("other").display().to_string();

    let folder = Folder::with_texts("other-model", 2);
    folder.index(&[]);
    let before = folder.answers();
    for options in [&["--preset", "bfloat16"][..], &["--model", &other]] {
        let index = fault(&run(["index".as_ref(), folder.0.as_os_str()], options));
        let query = [
            "query".as_ref(),
            "--index".as_ref(),
            folder.0.as_os_str(),
            "editor".as_ref(),
        ];
        let query = fault(&run(query, options));
        for fault in [&index, &query] {
            assert!(fault.contains("got one of bert (int8, "), "{fault}");
            assert!(fault.contains("expected an index of the model "), "{fault}");
        }
        assert!(index.contains("--rebuild replaces it"), "{index}");
        assert_eq!(folder.answers(), before);
    }
    let report = folder.index(&["--preset", "bfloat16", "--rebuild"]);
    assert!(numbers(&report, ["embedded"])[0] > 0);
    assert_eq!(numbers(&folder.index(&[]), ["embedded"]), [0]);
}

/// With these weights the bits of an answer would depend on its batch.
#[test]
fn a_model_without_int8_answers() {
    let folder = Folder::with_texts("float-model", 1);
    folder.index(&["--preset", "none"]);
    let text = folder.query("anything", &["-k", "1"])[0]["text"].clone();
    let found = folder.query(text.as_str().unwrap(), &["-k", "1"]);
    assert_eq!(found[0]["text"], text);
}
