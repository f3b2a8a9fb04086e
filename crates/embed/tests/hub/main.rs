//! Models by name: a server that answers like the Hugging Face hub, and servers that do not.
//!
//! The environment of a process determines where a model comes from, so each is opened by a
//! separate process: this program, with [`CHILD`] set.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dynquant_embed::ModelOptions;
use dynquant_embed::program::print;
use serde_json::json;

use server::{CHILD, COMMIT, Hub, MODEL, NAME, Reply, SHA256, snapshot};

mod decoders;
mod server;

/// The test that a child runs.
const OPENS: &str = "a_model_is_opened";

/// Checks that a child has opened its model.
fn opened(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("opened as int8\n"), "{stdout}");
}

/// The message of a child that must fail.
fn fault(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

/// Opens the model that [`CHILD`] names; does nothing if it is not set.
#[test]
fn a_model_is_opened() {
    let Some(model) = std::env::var_os(CHILD) else {
        return;
    };
    let options = ModelOptions { model: Some(model.into()), ..ModelOptions::default() };
    match options.embedder() {
        Ok(embedder) => {
            print::data(format_args!("opened as {}", embedder.encoder().dtype)).unwrap()
        }
        Err(error) => {
            print::fault(error.as_ref());
            std::process::exit(1);
        }
    }
}

#[test]
fn a_model_by_name_is_downloaded_once() {
    let hub = Hub::start(MODEL, |_, usual| usual);
    opened(&hub.child(OPENS, NAME).env("HF_TOKEN", "hf_secret").output().unwrap());

    // Only files that are read.
    let kept = snapshot(&hub);
    let names: Vec<&str> = kept.keys().map(String::as_str).collect();
    let expected = [
        "1_Pooling/config.json",
        "2_Normalize/config.json",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names, expected);
    for (name, length) in &kept {
        assert_eq!(*length, fs::metadata(format!("{MODEL}/{name}")).unwrap().len(), "{name}");
    }
    assert_eq!(fs::read_to_string(hub.repo().join("refs/main")).unwrap(), COMMIT);
    let marks = hub.repo().join(".no_exist").join(COMMIT);
    assert!(marks.join("chat_template.jinja").exists());
    assert!(marks.join("sparse_linear.pt").exists());
    if cfg!(unix) {
        let link =
            fs::read_link(hub.repo().join("snapshots").join(COMMIT).join("1_Pooling/config.json"));
        assert!(link.unwrap().starts_with("../../../blobs"));
    }

    // The token is sent to the hub only.
    for (path, token) in hub.seen.lock().unwrap().drain(..) {
        let expected = if path.starts_with("/cdn/") { "" } else { "Bearer hf_secret" };
        assert_eq!(token, expected, "{path}");
    }
    // No further requests: not even for the commit of a name.
    for offline in ["0", "1"] {
        opened(&hub.child(OPENS, NAME).env("HF_HUB_OFFLINE", offline).output().unwrap());
        opened(&hub.child(OPENS, &format!("{NAME}@{COMMIT}")).output().unwrap());
    }
    assert_eq!(hub.paths(), [""; 0]);
    // A tag is requested once; its files are cached.
    opened(&hub.run(&format!("{NAME}@v1")));
    opened(&hub.run(&format!("{NAME}@v1")));
    assert_eq!(hub.paths(), [format!("/api/models/{NAME}/revision/v1")]);
}

/// The cases, each a wrong answer and the message about it. The next run gets the whole model.
#[test]
fn hostile_answers_are_errors_that_leave_nothing() {
    const WEIGHTS: &str = "/cdn/model.safetensors";
    const LIST: &str = "/api/models/";
    const TOKENIZER: &str = "/api/resolve-cache/tokenizer.json";
    type Case = (&'static str, fn(Reply) -> Reply, &'static str);
    fn moved(to: &str) -> Reply {
        Reply::new(302).with("location", to)
    }
    let cases: [Case; 20] = [
        (WEIGHTS, |it| Reply { status: 206, ..it }, "expected an answer with status 200, got 206"),
        (LIST, |it| Reply { status: 203, ..it }, "expected an answer with status 200, got 203"),
        (
            TOKENIZER,
            |it| Reply { is_unsized: true, cut: 100, ..it },
            "tokenizer.json: expected its length or its SHA-256, which tell",
        ),
        (
            TOKENIZER,
            |it| it.with("content-encoding", "gzip"),
            "tokenizer.json: expected no content-encoding, got \"gzip\"",
        ),
        (TOKENIZER, |it| it.body("<html>"), "tokenizer.json: expected JSON"),
        (
            TOKENIZER,
            |it| it.with("content-length", 1u64 << 40),
            "tokenizer.json: expected at most 67108864 bytes, got 1099511627776",
        ),
        (
            WEIGHTS,
            |it| Reply { cut: 100, ..it.clone() }.with("content-length", it.body.len()),
            "model.safetensors",
        ),
        (WEIGHTS, |it| it.clone().body(&it.body[1..]), "model.safetensors: expected .. bytes, got"),
        (WEIGHTS, |it| it.clone().body([&*it.body, &[0]].concat()), "bytes, got more"),
        (
            WEIGHTS,
            |mut it| {
                it.body[100] ^= 1;
                it
            },
            "expected the SHA-256 ",
        ),
        (WEIGHTS, |it| Reply { wait: Duration::from_secs(30), ..it }, "timeout"),
        (
            WEIGHTS,
            |_| Reply::new(404),
            "got 404 Not Found: there is no such model, revision or file",
        ),
        (WEIGHTS, |_| Reply::new(503), "expected an answer with status 200, got 503"),
        (LIST, |_| Reply::new(401), "got 401 Unauthorized .. HF_TOKEN"),
        (LIST, |_| Reply::new(403), "got 403 Forbidden .. consent"),
        (LIST, |_| moved("/api/models/x"), "expected at most 8 redirections, got more"),
        (LIST, |_| Reply::new(302), "expected the header `location`, got none"),
        (LIST, |_| moved("file:///etc/passwd"), "expected an address that begins with https://"),
        (LIST, |it| it.body("<html>"), "expected the files of a commit in JSON"),
        (
            LIST,
            |it| it.body(r#"{"sha": "../../..", "siblings": []}"#),
            "expected the hash of a commit, got \"../../..\"",
        ),
    ];
    for (place, change, expected) in cases {
        let hostile = Arc::new(Mutex::new(true));
        let is_hostile = Arc::clone(&hostile);
        let hub = Hub::start(MODEL, move |path, usual| {
            let is_changed = path.starts_with(place) && *is_hostile.lock().unwrap();
            if is_changed { change(usual) } else { usual }
        });
        let time = Instant::now();
        let message = fault(&hub.run(NAME));
        assert!(time.elapsed() < Duration::from_secs(20), "{expected}");
        let of_model = "--model: owner/small-bert: expected it in the cache ";
        for part in expected.split(" .. ").chain([of_model]) {
            assert!(message.contains(part), "{expected}: {message}");
        }
        assert!(!hub.repo().join("refs/main").exists(), "{expected}");
        assert!(!hub.repo().join("blobs").join(SHA256).exists(), "{expected}");
        *hostile.lock().unwrap() = false;
        opened(&hub.run(NAME));
    }
}

/// Other servers name files by their length and time, and hold the files of equal names together.
#[test]
fn files_with_equal_etags_are_not_one() {
    let hub = Hub::start(MODEL, |path, usual| {
        if path.starts_with("/api/resolve-cache/") {
            return Reply { headers: vec![("etag", "\"5f-aa\"".to_owned())], ..usual };
        }
        usual
    });
    opened(&hub.run(NAME));
    for (name, length) in snapshot(&hub) {
        let expected = fs::metadata(format!("{MODEL}/{name}")).unwrap().len();
        assert_eq!(length, expected, "{name}");
    }
}

#[test]
fn a_cache_that_lost_a_file_is_completed() {
    let hub = Hub::start(MODEL, |_, usual| usual);
    opened(&hub.run(NAME));
    let whole = snapshot(&hub);
    let folder = hub.repo().join("snapshots").join(COMMIT);
    let marks = hub.repo().join(".no_exist");
    for name in whole.keys() {
        let path = folder.join(name);
        fs::remove_file(fs::canonicalize(&path).unwrap()).unwrap();
        opened(&hub.run(NAME));
        assert_eq!(snapshot(&hub), whole, "{name}");
        // As other programs leave it that do not need the file.
        fs::remove_file(&path).unwrap();
        fs::remove_dir_all(&marks).unwrap();
        opened(&hub.run(NAME));
        assert_eq!(snapshot(&hub), whole, "{name}");
    }
}

#[test]
fn processes_download_a_model_at_once() {
    let hub = Hub::start(MODEL, |_, usual| usual);
    let start = |_| {
        let mut child = hub.child(OPENS, NAME);
        child.stdout(Stdio::piped()).stderr(Stdio::piped());
        child.spawn().unwrap()
    };
    let children: Vec<_> = (0..8).map(start).collect();
    for child in children {
        opened(&child.wait_with_output().unwrap());
    }
}

#[test]
fn a_commit_is_the_one_that_is_named() {
    let other = COMMIT.replace('0', "f");
    let listed = other.clone();
    let hub = Hub::start(MODEL, move |path, usual| {
        if path.ends_with(&listed) {
            return Reply::new(200).body(json!({"sha": COMMIT, "siblings": []}).to_string());
        }
        usual
    });
    let message = fault(&hub.run(&format!("{NAME}@{other}")));
    assert!(message.contains(&format!("expected the commit {other}, got {COMMIT}")), "{message}");
    opened(&hub.run(&format!("{NAME}@{}", COMMIT.to_uppercase())));
}

#[test]
fn files_of_a_model_that_lie_are_errors() {
    let lies: [(&str, &str, &str); 3] = [
        ("etag", "", "expected letters and digits, got \"../../x\""),
        (
            "modules.json",
            r#"[{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "../up"}]"#,
            "expected the name of a folder",
        ),
        (
            "modules.json",
            r#"[{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "a b"}]"#,
            "expected a name of letters",
        ),
    ];
    for (file, text, expected) in lies {
        let hub = Hub::start(MODEL, move |path, usual| {
            if file == "etag" && path == "/api/resolve-cache/config.json" {
                Reply { headers: vec![("etag", "\"../../x\"".to_owned())], ..usual }
            } else if path.ends_with(&format!("resolve-cache/{file}")) {
                usual.body(text)
            } else {
                usual
            }
        });
        let message = fault(&hub.run(NAME));
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn without_a_network_the_message_says_what_to_do() {
    let hub = Hub::start(MODEL, |_, usual| usual);
    let offline =
        |hub: &Hub| fault(&hub.child(OPENS, NAME).env("HF_HUB_OFFLINE", "1").output().unwrap());
    let message = offline(&hub);
    let cache = hub.cache.path().join("hub").display().to_string();
    assert!(
        message.contains(&format!(
            "--model: {NAME}: expected it in the cache {cache}, because HF_HUB_OFFLINE is set; \
             it knows no revision \"main\""
        )),
        "{message}"
    );
    assert_eq!(hub.paths(), [""; 0]);
    // The port is closed.
    let mut child = hub.child(OPENS, NAME);
    let message = fault(&child.env("HF_ENDPOINT", "http://127.0.0.1:9").output().unwrap());
    assert!(message.contains("or from http://127.0.0.1:9 (HF_ENDPOINT)"), "{message}");

    // A part of a model is unusable, since its pooling could differ.
    opened(&hub.run(NAME));
    let modules = hub.repo().join("snapshots").join(COMMIT).join("modules.json");
    fs::remove_file(&modules).unwrap();
    let message = offline(&hub);
    assert!(message.contains("it has no modules.json, and does not know whether"), "{message}");
    opened(&hub.run(NAME));
    assert!(modules.exists());
}

#[test]
fn what_is_no_name_is_named() {
    let hub = Hub::start(MODEL, |_, usual| usual);
    for (model, expected) in [
        (
            "all-MiniLM-L6-v2",
            "expected a folder, or a name on the hub such as sentence-transformers/",
        ),
        ("owner/other", "got 404 Not Found"),
        ("owner/small-bert@none", "got 404 Not Found"),
        ("../owner/small-bert", "expected a folder with config.json"),
    ] {
        let message = fault(&hub.run(model));
        assert!(message.contains(expected), "{model}: {message}");
    }
    for seconds in ["soon", "9223372036854775807"] {
        let mut child = hub.child(OPENS, NAME);
        let message = fault(&child.env("HF_HUB_DOWNLOAD_TIMEOUT", seconds).output().unwrap());
        let expected =
            format!("HF_HUB_DOWNLOAD_TIMEOUT: expected seconds, 1 to 86400, got {seconds:?}");
        assert!(message.contains(&expected), "{message}");
    }
    if cfg!(unix) {
        let mut child = hub.child(OPENS, NAME);
        let message = fault(&child.env("HF_TOKEN_PATH", "/dev/zero").output().unwrap());
        assert!(message.contains("HF_TOKEN_PATH"), "{message}");
    }
}
