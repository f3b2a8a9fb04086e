//! `dynquant port` as it is run.

mod crates;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn dynquant(args: &[&str], paths: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dynquant"));
    command.args(args).args(paths).output().unwrap()
}

fn json(args: &[&str], path: &Path) -> Value {
    let output = dynquant(&[&["port", "--json"], args].concat(), &[path]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

const SMALL: &str = "use candle_nn::Linear;\n\npub struct A {\n    a: Linear,\n}\n";
const PORTED: &str = "use candle_dynquant::nn::Linear;\nuse candle_dynquant::Quantizable;\n\n\
                      #[derive(Quantizable)]\npub struct A {\n    a: Linear,\n}\n";

/// Declares a type with a layer where the command cannot see it.
const MACRO: &str = "macro_rules! model {\n    ($($item:item)*) => { $($item)* };\n}\n\
                     model! {\n    pub struct B { b: candle_nn::Linear }\n}\n";

/// Each file of `golden` becomes what `golden/ported` has, and stays so. The places that are left
/// are at that file's end. `DYNQUANT_UPDATE=1` writes them.
#[test]
fn files_become_what_is_expected() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut names: Vec<_> = fs::read_dir(&golden)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.retain(|path| path.extension().is_some_and(|ext| ext == "rs"));
    names.sort();
    assert!(names.len() > 8);
    let mut wrong = Vec::new();
    for path in names {
        let name = path.file_name().unwrap().to_str().unwrap();
        let folder = folder();
        let before = fs::read_to_string(&path).unwrap();
        let copy = file(&folder, name, &before);
        let todo = &json(&[], &copy)["files"][0]["todo"];
        let report = json(&["--write"], &copy);
        assert_eq!(report["files"][0]["error"], Value::Null, "{name}");
        let ported = fs::read_to_string(&copy).unwrap();
        let again = json(&[], &copy);
        assert_eq!(again["files"][0]["changed"], false, "{name} changes again");
        assert_eq!(
            again["files"][0]["todo"], report["files"][0]["todo"],
            "{name}"
        );
        let mut expected = ported;
        for todo in todo.as_array().unwrap() {
            expected += &format!(
                "// left: line {}: {}\n",
                todo["line"],
                todo["what"].as_str().unwrap()
            );
        }
        let wanted = golden.join("ported").join(name);
        if std::env::var_os("DYNQUANT_UPDATE").is_some() {
            fs::create_dir_all(wanted.parent().unwrap()).unwrap();
            fs::write(&wanted, &expected).unwrap();
        } else if fs::read_to_string(&wanted).unwrap() != expected {
            wrong.push(format!("{name}:\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_diff_is_printed_and_nothing_is_written() {
    let folder = folder();
    let path = file(&folder, "a.rs", SMALL);
    let output = dynquant(&["port"], &[&path]);
    assert!(output.status.success());
    let diff = text(&output.stdout);
    assert!(
        diff.contains("-use candle_nn::Linear;\n") && diff.contains("+#[derive(Quantizable)]\n")
    );
    assert!(!diff.contains('\u{1b}'), "no colours to a pipe");
    assert_eq!(fs::read_to_string(&path).unwrap(), SMALL);
}

#[test]
fn check_tells_by_its_status() {
    let folder = folder();
    let path = file(&folder, "a.rs", SMALL);
    let status = |path: &Path| dynquant(&["port", "--check"], &[path]).status.code();
    assert_eq!(status(&path), Some(1));
    assert_eq!(fs::read_to_string(&path).unwrap(), SMALL);
    assert!(dynquant(&["port", "--write"], &[&path]).status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), PORTED);
    assert_eq!(status(&path), Some(0));
    assert_eq!(dynquant(&["port"], &[&path]).stdout, b"");
    let left = file(
        &folder,
        "b.rs",
        "pub struct B {\n    b: Box<dyn Module>,\n}\n",
    );
    assert_eq!(status(&left), Some(1));
}

#[test]
fn line_ends_marks_and_attributes_stay() {
    let folder = folder();
    let text = format!("\u{feff}#![allow(unused)]\n//! ü\n{SMALL}").replace('\n', "\r\n");
    let path = file(&folder, "a.rs", &text);
    assert!(dynquant(&["port", "--write"], &[&path]).status.success());
    let ported = fs::read_to_string(&path).unwrap();
    assert_eq!(ported.matches('\n').count(), ported.matches("\r\n").count());
    assert!(
        ported.starts_with("\u{feff}#![allow(unused)]\r\n//! ü\r\n"),
        "{ported:?}"
    );
    assert!(
        ported.contains("#[derive(Quantizable)]\r\npub struct A"),
        "{ported:?}"
    );
}

#[test]
fn bad_input_is_an_error_with_its_line_and_the_others_are_done() {
    let folder = folder();
    let deep = format!("fn f() {{ {} }}", "(".repeat(100_000));
    let long = format!("fn f() {{ {}1 }}", "1+".repeat(200_000));
    let many = (0..=100_000).map(|i| format!("struct A{i};")).collect();
    let cases = [
        ("no_rust.rs", "fn f() {}\n\nstruct {\n".to_owned(), 3),
        ("open.rs", "fn f() {\n".to_owned(), 1),
        ("deep.rs", deep, 1),
        ("long.rs", long, 1),
        ("types.rs", many, 1),
        (
            "twice.rs",
            "struct A(candle_nn::Linear);\nstruct A {}\n".to_owned(),
            2,
        ),
        ("macro.rs", format!("{SMALL}\n{MACRO}"), 10),
    ];
    for (name, text, line) in cases {
        let path = file(&folder, name, &text);
        let output = dynquant(&["port", "--write"], &[&path]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let message = self::text(&output.stderr);
        assert!(
            message.contains(&format!("{}:{line}: error: ", path.display())),
            "{name}: {message}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    // The author has seen it, or has derived it there.
    for text in [
        MACRO.replace("model! {", "// dynquant: keep\nmodel! {"),
        MACRO.replace("pub struct", "#[derive(Quantizable)] pub struct"),
    ] {
        let path = file(&folder, "macro.rs", &text);
        assert!(dynquant(&["port"], &[&path]).status.success(), "{text}");
    }
    let path = folder.path().join("bytes.rs");
    fs::write(&path, b"// a\n// \xff\n").unwrap();
    let good = file(&folder, "good.rs", SMALL);
    let absent = folder.path().join("absent.rs");
    let output = dynquant(&["port", "--write"], &[&path, &absent, &good]);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(
        message.contains("bytes.rs:2: error: not UTF-8"),
        "{message}"
    );
    assert!(message.contains("absent.rs: error: "), "{message}");
    assert_eq!(fs::read_to_string(&good).unwrap(), PORTED);
}

#[test]
fn odd_files_are_no_trouble() {
    let folder = folder();
    let cases = [
        "",
        "\n",
        "//",
        "/* */",
        "#!/bin/sh\n",
        "use;",
        "use candle_nn::{};\n",
        "fn f(){r#fn()}",
        "use candle_nn::{{Linear}};",
        "struct A(candle_nn::Linear)",
        "mod a { struct B(candle_nn::Linear); }",
        "union U { a: candle_nn::Linear }",
        "use {candle_nn::{self as x, Linear}, std};struct A(Linear);",
        "struct r#Type { r#fn: candle_nn::Linear }",
        "fn f() { x.silu().silu()?.silu() }",
        "trait T { fn f(x: &Tensor) { x.gelu()?; } }",
        "use ::candle_nn::Linear as L; struct A(L);",
        "fn f() { struct A(candle_nn::Linear); } fn g() { struct A; }",
        "struct A; struct A {}",
    ];
    for text in cases {
        let path = file(&folder, "a.rs", text);
        let first = dynquant(&["port", "--write"], &[&path]);
        assert!(
            first.status.code().is_some_and(|code| code < 2),
            "{text:?}: {first:?}"
        );
        let ported = fs::read_to_string(&path).unwrap();
        dynquant(&["port", "--write"], &[&path]);
        assert_eq!(fs::read_to_string(&path).unwrap(), ported, "{text:?}");
    }
    // Every beginning of a file.
    let whole = include_str!("../golden/decoder.rs");
    for end in (0..whole.len()).step_by(97) {
        let path = file(&folder, "a.rs", &whole[..end]);
        let code = dynquant(&["port"], &[&path]).status.code();
        assert!(code.is_some_and(|code| code < 2), "{end}");
    }
}

#[cfg(unix)]
#[test]
fn folders_links_and_rights() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = folder();
    assert!(
        dynquant(&["port"], &[folder.path()]).status.success(),
        "an empty folder"
    );
    let one = file(&folder, "src/one.rs", SMALL);
    file(&folder, "src/inner/two.rs", SMALL);
    file(&folder, "src/notes.txt", "candle_nn");
    symlink(folder.path(), folder.path().join("src/round")).unwrap();
    symlink(&one, folder.path().join("link.rs")).unwrap();
    let report = json(&[], &folder.path().join("src"));
    assert_eq!(report["files"].as_array().unwrap().len(), 2);

    fs::set_permissions(&one, fs::Permissions::from_mode(0o640)).unwrap();
    let link = folder.path().join("link.rs");
    assert!(dynquant(&["port", "--write"], &[&link]).status.success());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&one).unwrap(), PORTED);
    assert_eq!(
        fs::metadata(&one).unwrap().permissions().mode() & 0o777,
        0o640
    );

    let closed = file(&folder, "closed.rs", SMALL);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o440)).unwrap();
    let output = dynquant(&["port", "--write"], &[&closed]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("read-only"));
    let fifo = folder.path().join("fifo.rs");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    for arg in ["--check", "--write"] {
        let output = dynquant(&["port", arg], &[&fifo]);
        assert_eq!(output.status.code(), Some(1));
        let message = text(&output.stderr);
        assert!(
            message.contains("expected a regular file, got a fifo"),
            "{message}"
        );
    }
    fs::remove_file(&fifo).unwrap();
    assert_eq!(fs::read_to_string(&closed).unwrap(), SMALL);
    let left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 3, "nothing is left beside: {left:?}");
}

#[test]
fn usage_errors_have_a_status_of_their_own() {
    for args in [
        &["port"][..],
        &["port", "--wrong", "a.rs"],
        &["port", "--check", "--write", "a.rs"],
        &[],
    ] {
        assert_eq!(dynquant(args, &[]).status.code(), Some(2), "{args:?}");
    }
    assert_eq!(dynquant(&["port", "--help"], &[]).status.code(), Some(0));
}

/// Every model of candle-transformers that is in the cargo registry: no error, and a second run
/// changes nothing. `DYNQUANT_LONG=1 cargo test -p dynquant -- --nocapture` shows the figures.
#[test]
fn the_models_of_candle_transformers() {
    if std::env::var_os("DYNQUANT_LONG").is_none() {
        return eprintln!("skipped: DYNQUANT_LONG is not set");
    }
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home =
        home.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cargo"));
    let sources = fs::read_dir(home.join("registry/src")).unwrap();
    let models = sources.map(|entry| entry.unwrap().path().join("candle-transformers-0.11.1/src"));
    let models = models.into_iter().find(|path| path.is_dir());
    let Some(models) = models else {
        return eprintln!("skipped: no candle-transformers 0.11.1");
    };
    let folder = folder();
    copy(&models, folder.path());
    let first = json(&["--write"], folder.path());
    let files = first["files"].as_array().unwrap();
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    for file in files {
        assert_eq!(file["error"], Value::Null, "{file}");
        for todo in file["todo"].as_array().unwrap() {
            *kinds
                .entry(todo["what"].as_str().unwrap().to_owned())
                .or_default() += 1;
        }
    }
    let changed = files.iter().filter(|file| file["changed"] == true).count();
    eprintln!("{} files, {changed} changed, left: {kinds:#?}", files.len());
    assert!(files.len() > 100 && changed > 100);
    let second = json(&[], folder.path());
    for file in second["files"].as_array().unwrap() {
        assert_eq!(file["changed"], false, "{file}");
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy(&path, &target);
        } else {
            fs::write(target, fs::read(&path).unwrap()).unwrap();
        }
    }
}
