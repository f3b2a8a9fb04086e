//! Which files are taken, and the report on the others.

use std::fs;

use serde_json::Value;

use crate::process::{BERT, Folder, command, numbers, run};

/// The files that answers name.
fn names(folder: &Folder) -> Vec<String> {
    let hits = folder.query("anything", &["-k", "100"]);
    let mut names: Vec<String> = (hits.as_array().unwrap().iter())
        .flat_map(|hit| hit["places"].as_array().unwrap())
        .map(|place| place["path"].as_str().unwrap().to_owned())
        .map(|path| path.strip_prefix(folder.0.to_str().unwrap()).unwrap()[1..].to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

fn reasons(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let skipped = report["skipped"].as_array().unwrap().iter();
    let mut reasons: Vec<_> = skipped
        .map(|it| (text(&it["path"]), text(&it["reason"])))
        .collect();
    reasons.sort();
    reasons
}

#[test]
fn ignored_and_hidden_files_are_left_out_as_ripgrep_does() {
    let folder = Folder::new("ignored");
    fs::create_dir(folder.path(".git")).unwrap();
    folder.write(".gitignore", "*.log\n/build/\n");
    for name in [
        "a.txt",
        "b.log",
        "build/c.txt",
        "sub/build/d.txt",
        ".hidden/e.txt",
        "sub/.f.txt",
        "sub/g.md",
    ] {
        folder.write(name, format!("The text of {name}.\n"));
    }
    folder.write(
        ".dynquant-search/notes.txt",
        "Notes that are not for the index.\n",
    );
    folder.index(&[]);
    assert_eq!(names(&folder), ["a.txt", "sub/build/d.txt", "sub/g.md"]);
    folder.index(&["--no-ignore"]);
    assert_eq!(
        names(&folder),
        [
            "a.txt",
            "b.log",
            "build/c.txt",
            "sub/build/d.txt",
            "sub/g.md"
        ]
    );
    folder.index(&["--hidden", "--no-ignore"]);
    let all = names(&folder);
    assert!(
        all.contains(&".hidden/e.txt".to_owned()) && all.contains(&"sub/.f.txt".to_owned()),
        "{all:?}"
    );
    assert!(
        !all.iter().any(|name| name.starts_with(".dynquant-search")),
        "{all:?}"
    );
    // Version control does not see the index.
    assert_eq!(
        fs::read_to_string(folder.path(".dynquant-search/.gitignore")).unwrap(),
        "*\n"
    );
}

#[test]
fn files_that_are_not_text_are_counted_and_named() {
    let folder = Folder::new("binary");
    folder.write("a.txt", "A text.\n");
    folder.write("latin.txt", b"Gr\xfc\xdfe\n");
    folder.write("zero.bin", b"text and \0\n");
    folder.write("large.txt", "many words ".repeat(100_000));
    let report = folder.index(&["--max-file-mib", "1"]);
    assert_eq!(numbers(&report, ["files"]), [1]);
    let path = |name: &str| folder.path(name).display().to_string();
    let expected = [
        (path("large.txt"), "more than 1 MiB (--max-file-mib)"),
        (path("latin.txt"), "not UTF-8"),
        (path("zero.bin"), "binary"),
    ];
    assert_eq!(
        reasons(&report),
        expected.map(|(path, reason)| (path, reason.to_owned()))
    );

    let index = |options: &[&str]| {
        let output = run(["index".as_ref(), folder.0.as_os_str()], options);
        String::from_utf8(output.stderr).unwrap()
    };
    let brief = index(&["--max-file-mib", "1"]);
    assert_eq!(
        brief,
        "left out: 3 files that are not text or too large; --verbose names them\n"
    );
    let verbose = index(&["--max-file-mib", "1", "--verbose"]);
    assert!(
        verbose.contains("latin.txt: not UTF-8\n") && verbose.lines().count() == 3,
        "{verbose}"
    );
}

#[test]
fn an_empty_folder_has_an_index() {
    let folder = Folder::new("empty");
    let report = folder.index(&[]);
    assert_eq!(
        numbers(&report, ["files", "passages", "bytes"]).map(|it| it > 0),
        [false, false, true]
    );
    assert_eq!(folder.query("anything", &[]), Value::Array(Vec::new()));
    folder.write("empty.txt", "");
    folder.write("blank.txt", "\n\n");
    assert_eq!(numbers(&folder.index(&[]), ["files", "passages"]), [2, 0]);
    folder.write("a.txt", "Now there is a text.");
    folder.index(&[]);
    assert_eq!(names(&folder), ["a.txt"]);
}

#[test]
fn names_may_be_any() {
    let folder = Folder::new("names");
    let all = [
        "a b.txt",
        "line\nbreak.txt",
        "ünï/日本語.txt",
        "-k",
        "\u{1b}[31m.txt",
        "quote\"'.txt",
        "semi;colon/$x.txt",
    ];
    for name in all {
        folder.write(name, format!("The text of {name:?}.\n"));
    }
    folder.index(&[]);
    let mut expected = all.to_vec();
    expected.sort_unstable();
    assert_eq!(names(&folder), expected);
    let output = run(
        ["query".as_ref(), "--index".as_ref(), folder.0.as_os_str()],
        &["-k", "10", "text"],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        !text.contains('\u{1b}') && text.contains("\\u{1b}[31m.txt:1"),
        "{text}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_name_that_is_not_utf8_is_reported() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new("not-utf8");
    folder.write(std::ffi::OsStr::from_bytes(b"gr\xfcn.txt"), "A text.\n");
    folder.write("a.txt", "Another text.\n");
    let report = folder.index(&[]);
    assert_eq!(names(&folder), ["a.txt"]);
    assert_eq!(reasons(&report)[0].1, "a name that is not UTF-8");
}

#[cfg(unix)]
#[test]
fn links_are_followed_on_request_and_loops_end() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new("links");
    let other = Folder::new("links-other");
    other.write("far.txt", "A text elsewhere.\n");
    folder.write("sub/a.txt", "A text.\n");
    symlink(&other.0, folder.path("other")).unwrap();
    symlink(&folder.0, folder.path("sub/loop")).unwrap();
    symlink("nowhere", folder.path("dangling")).unwrap();
    assert!(reasons(&folder.index(&[])).is_empty());
    assert_eq!(names(&folder), ["sub/a.txt"]);

    let report = folder.index(&["--follow"]);
    assert_eq!(names(&folder), ["other/far.txt", "sub/a.txt"]);
    let reasons = reasons(&report);
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons[0].0.ends_with("dangling") && reasons[0].1.contains("No such file"),
        "{reasons:?}"
    );
    assert!(
        reasons[1].0.ends_with("sub/loop") && reasons[1].1.starts_with("a symbolic link to"),
        "{reasons:?}"
    );
    // They are named in any case: something may be wrong.
    let output = run(["index".as_ref(), folder.0.as_os_str()], &["--follow"]);
    assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 2);
}

#[cfg(unix)]
#[test]
fn files_that_cannot_be_read_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("unreadable");
    folder.write("a.txt", "A text.\n");
    folder.write("secret.txt", "Another text.\n");
    let mode = |mode| {
        fs::set_permissions(folder.path("secret.txt"), fs::Permissions::from_mode(mode)).unwrap()
    };
    mode(0);
    // Permissions do not keep root from reading.
    if fs::read(folder.path("secret.txt")).is_err() {
        let report = folder.index(&[]);
        assert!(
            reasons(&report)[0].1.contains("ermission denied"),
            "{report}"
        );
    }
    mode(0o644);
    assert!(reasons(&folder.index(&[])).is_empty());
    assert_eq!(names(&folder), ["a.txt", "secret.txt"]);
}

#[test]
fn an_index_elsewhere_is_of_its_folder() {
    let folder = Folder::new("elsewhere");
    folder.write("a.txt", "A text.\n");
    // In the folder, under a name that is not hidden: its files are no texts of the folder.
    let out = folder.path("my.index");
    let index = |dir: &Folder, options: &[&str]| {
        command()
            .arg("index")
            .arg(&dir.0)
            .arg("--out")
            .arg(&out)
            .args(options)
            .output()
            .unwrap()
    };
    for _ in 0..2 {
        let output = index(&folder, &["--json", "--model", BERT]);
        let report = crate::process::json_of(&output);
        assert_eq!(numbers(&report, ["files"]), [1]);
        assert!(reasons(&report).is_empty(), "{report}");
    }
    let output = command()
        .arg("query")
        .arg("--index")
        .arg(&out)
        .args(["--json", "text"])
        .output()
        .unwrap();
    let path = crate::process::json_of(&output)["results"][0]["places"][0]["path"].clone();
    assert_eq!(
        path.as_str().unwrap(),
        folder.path("a.txt").to_str().unwrap()
    );

    let other = Folder::new("elsewhere-other");
    let fault = crate::process::fault(&index(&other, &[]));
    assert!(
        fault.contains("elsewhere-other, got one of ") && fault.contains("--rebuild"),
        "{fault}"
    );
    assert!(index(&other, &["--rebuild"]).status.success());
}

#[test]
fn the_index_of_a_folder_above_is_found() {
    let folder = Folder::new("above");
    folder.write("sub/deep/a.txt", "A text.\n");
    folder.index(&[]);
    let query = |dir: &str| {
        let mut query = command();
        query
            .args(["query", "--json", "text"])
            .current_dir(folder.path(dir));
        crate::process::json_of(&query.output().unwrap())["results"][0]["places"][0]["path"].clone()
    };
    assert_eq!(query("."), "sub/deep/a.txt");
    assert_eq!(query("sub/deep"), "../../sub/deep/a.txt");
}
