//! `dynquant port` as it is run.

#[path = "../common/mod.rs"]
mod common;
mod crates;

use std::fs;
use std::path::{Path, PathBuf};

use common::{SMALL, dynquant, file, folder, has, printed, read, said, stderr};
use serde_json::Value;

fn json(args: &[&str], path: &Path) -> Value {
    common::json(&[&["port", "--json"], args].concat(), path)
}

/// The status of the command.
fn status(args: &[&str], path: &Path) -> Option<i32> {
    dynquant(&[&["port"], args].concat(), &[path]).status.code()
}

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
    let entries = fs::read_dir(&golden).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|ext| ext == "rs"));
    names.sort();
    assert!(names.len() > 8);
    let mut wrong = Vec::new();
    for path in names {
        let name = path.file_name().unwrap().to_str().unwrap();
        let folder = folder();
        let copy = file(&folder, name, &read(&path));
        let todo = &json(&[], &copy)["files"][0]["todo"];
        let report = json(&["--write"], &copy);
        assert_eq!(report["files"][0]["error"], Value::Null, "{name}");
        let mut expected = read(&copy);
        let again = &json(&[], &copy)["files"][0];
        assert_eq!(again["changed"], false, "{name} changes again");
        assert_eq!(again["todo"], report["files"][0]["todo"], "{name}");
        for todo in todo.as_array().unwrap() {
            let what = todo["what"].as_str().unwrap();
            expected += &format!("// left: line {}: {what}\n", todo["line"]);
        }
        let wanted = golden.join("ported").join(name);
        if std::env::var_os("DYNQUANT_UPDATE").is_some() {
            fs::create_dir_all(wanted.parent().unwrap()).unwrap();
            fs::write(&wanted, &expected).unwrap();
        } else if read(&wanted) != expected {
            wrong.push(format!("{name}:\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_diff_is_printed_and_nothing_is_written() {
    let folder = folder();
    let path = file(&folder, "a.rs", SMALL);
    let diff = printed(&["port"], &[&path]);
    has(&diff, "-use candle_nn::Linear;\n");
    has(&diff, "+#[derive(Quantizable)]\n");
    assert!(!diff.contains('\u{1b}'), "no colours to a pipe");
    assert_eq!(read(&path), SMALL);
}

#[test]
fn check_tells_by_its_status() {
    let folder = folder();
    let path = file(&folder, "a.rs", SMALL);
    assert_eq!(status(&["--check"], &path), Some(1));
    assert_eq!(read(&path), SMALL);
    assert_eq!(status(&["--write"], &path), Some(0));
    assert_eq!(read(&path), PORTED);
    assert_eq!(status(&["--check"], &path), Some(0));
    assert_eq!(printed(&["port"], &[&path]), "");
    let left = "pub struct B {\n    b: Box<dyn Module>,\n}\n";
    let left = file(&folder, "b.rs", left);
    assert_eq!(status(&["--check"], &left), Some(1));
}

#[test]
fn line_ends_marks_and_attributes_stay() {
    let folder = folder();
    let text = format!("\u{feff}#![allow(unused)]\n//! ü\n{SMALL}").replace('\n', "\r\n");
    let path = file(&folder, "a.rs", &text);
    said(&["port", "--write"], &[&path]);
    let ported = read(&path);
    assert_eq!(ported.matches('\n').count(), ported.matches("\r\n").count());
    let start = "\u{feff}#![allow(unused)]\r\n//! ü\r\n";
    assert!(ported.starts_with(start), "{ported:?}");
    has(&ported, "#[derive(Quantizable)]\r\npub struct A");
}

#[test]
fn bad_input_is_an_error_with_its_line_and_the_others_are_done() {
    let folder = folder();
    let deep = format!("fn f() {{ {} }}", "(".repeat(100_000));
    let long = format!("fn f() {{ {}1 }}", "1+".repeat(200_000));
    let many = (0..=100_000).map(|i| format!("struct A{i};")).collect();
    let twice = "struct A(candle_nn::Linear);\nstruct A {}\n";
    let cases = [
        ("no_rust.rs", "fn f() {}\n\nstruct {\n".to_owned(), 3),
        ("open.rs", "fn f() {\n".to_owned(), 1),
        ("deep.rs", deep, 1),
        ("long.rs", long, 1),
        ("types.rs", many, 1),
        ("twice.rs", twice.to_owned(), 2),
        ("macro.rs", format!("{SMALL}\n{MACRO}"), 10),
    ];
    for (name, text, line) in cases {
        let path = file(&folder, name, &text);
        let output = dynquant(&["port", "--write"], &[&path]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        has(
            &stderr(&output),
            &format!("{}:{line}: error: ", path.display()),
        );
        assert_eq!(read(&path), text);
    }
    // The author has seen it, or has derived it there.
    for text in [
        MACRO.replace("model! {", "// dynquant: keep\nmodel! {"),
        MACRO.replace("pub struct", "#[derive(Quantizable)] pub struct"),
    ] {
        said(&["port"], &[&file(&folder, "macro.rs", &text)]);
    }
    let path = folder.path().join("bytes.rs");
    fs::write(&path, b"// a\n// \xff\n").unwrap();
    let good = file(&folder, "good.rs", SMALL);
    let absent = folder.path().join("absent.rs");
    let output = dynquant(&["port", "--write"], &[&path, &absent, &good]);
    assert_eq!(output.status.code(), Some(1));
    has(&stderr(&output), "bytes.rs:2: error: not UTF-8");
    has(&stderr(&output), "absent.rs: error: ");
    assert_eq!(read(&good), PORTED);
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
        let first = status(&["--write"], &path);
        assert!(first.is_some_and(|code| code < 2), "{text:?}: {first:?}");
        let ported = read(&path);
        status(&["--write"], &path);
        assert_eq!(read(&path), ported, "{text:?}");
    }
    // Every beginning of a file.
    let whole = include_str!("../golden/decoder.rs");
    for end in (0..whole.len()).step_by(97) {
        let path = file(&folder, "a.rs", &whole[..end]);
        let code = status(&[], &path);
        assert!(code.is_some_and(|code| code < 2), "{end}");
    }
}

#[cfg(unix)]
#[test]
fn folders_links_and_rights() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = folder();
    assert_eq!(status(&[], folder.path()), Some(0), "an empty folder");
    let one = file(&folder, "src/one.rs", SMALL);
    file(&folder, "src/inner/two.rs", SMALL);
    file(&folder, "src/notes.txt", "candle_nn");
    symlink(folder.path(), folder.path().join("src/round")).unwrap();
    symlink(&one, folder.path().join("link.rs")).unwrap();
    let report = json(&[], &folder.path().join("src"));
    assert_eq!(report["files"].as_array().unwrap().len(), 2);

    fs::set_permissions(&one, fs::Permissions::from_mode(0o640)).unwrap();
    let link = folder.path().join("link.rs");
    said(&["port", "--write"], &[&link]);
    assert!(link.is_symlink());
    assert_eq!(read(&one), PORTED);
    let mode = fs::metadata(&one).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);

    let closed = file(&folder, "closed.rs", SMALL);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o440)).unwrap();
    let output = dynquant(&["port", "--write"], &[&closed]);
    assert_eq!(output.status.code(), Some(1));
    has(&stderr(&output), "read-only");
    let fifo = folder.path().join("fifo.rs");
    common::fifo(&fifo);
    for arg in ["--check", "--write"] {
        let output = dynquant(&["port", arg], &[&fifo]);
        assert_eq!(output.status.code(), Some(1));
        has(&stderr(&output), "expected a regular file, got a fifo");
    }
    fs::remove_file(&fifo).unwrap();
    assert_eq!(read(&closed), SMALL);
    let left = fs::read_dir(folder.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
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
    let home = home.unwrap_or_else(|| std::env::home_dir().unwrap().join(".cargo"));
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
            let what = todo["what"].as_str().unwrap();
            *kinds.entry(what.to_owned()).or_default() += 1;
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
