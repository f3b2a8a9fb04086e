//! Folders that came from others: nothing is written through a link in them, and no fifo is waited
//! for.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::process::{BERT, Folder, fault, json_of, numbers, run};

const VICTIM: &str = "years of work";

/// A folder to index, and a file beside it, which links lead to.
fn folder(name: &str) -> (Folder, Folder) {
    let folder = Folder::with_texts(name, 2);
    let other = Folder::new(&format!("{name}-other"));
    other.write("victim.txt", VICTIM);
    (folder, other)
}

#[test]
fn nothing_is_written_through_a_link() {
    let names = [
        "index.new",
        ".gitignore.new",
        ".gitignore",
        "index.partial.new",
        "index",
        "index.lock",
        "index.partial",
    ];
    for name in names {
        for is_dangling in [false, true] {
            let (folder, other) = folder("link-in-it");
            fs::create_dir(folder.path(".dynquant-search")).unwrap();
            let target = if is_dangling { "none" } else { "victim.txt" };
            let link = folder.path(".dynquant-search").join(name);
            symlink(other.path(target), &link).unwrap();
            let output = run(["index".as_ref(), folder.0.as_os_str()], &["--model", BERT]);
            let victim = fs::read_to_string(other.path("victim.txt")).unwrap();
            assert_eq!(victim, VICTIM, "{name}");
            assert!(!other.path("none").exists(), "{name}");
            assert!(link.is_symlink(), "{name}");
            if ["index", "index.lock", "index.partial"].contains(&name) {
                let fault = fault(&output);
                let expected = format!("{name}: expected a place to write to: expected a");
                assert!(
                    fault.contains(&expected) && fault.contains("got a symbolic link"),
                    "{name}: {fault}"
                );
            } else {
                assert!(output.status.success(), "{name}: {output:?}");
            }
        }
    }
}

#[test]
fn a_link_as_the_folder_of_the_index_is_refused() {
    let (folder, other) = folder("link-as-folder");
    symlink(&other.0, folder.path(".dynquant-search")).unwrap();
    let fault = fault(&run(["index".as_ref(), folder.0.as_os_str()], &[]));
    assert!(
        fault.contains(".dynquant-search: expected a place to write to: expected a folder, got a"),
        "{fault}"
    );
    assert_eq!(fs::read_dir(&other.0).unwrap().count(), 1);
}

/// The path of `--out` is the user's own.
#[test]
fn what_a_link_as_the_index_elsewhere_leads_to_is_replaced() {
    let (folder, other) = folder("link-as-out");
    let out = other.path("index").display().to_string();
    folder.index(&["--out", &out, "--model", BERT]);
    let link = other.path("link");
    symlink("index", &link).unwrap();
    folder.write_text(2);
    let report = folder.index(&["--out", link.to_str().unwrap()]);
    assert_eq!(numbers(&report, ["files", "read"]), [3, 1]);
    assert!(link.is_symlink());
    let device = run(
        ["index".as_ref(), folder.0.as_os_str()],
        &["--out", "/dev/null"],
    );
    assert!(fault(&device).contains("got a character device"));
}

#[test]
fn no_fifo_is_waited_for() {
    let folder = Folder::with_texts("fifo", 2);
    let make = |name: &str| {
        let path = folder.path(name);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        path
    };
    make("text.txt");
    let report = json_of(&run(
        ["index".as_ref(), folder.0.as_os_str(), "--json".as_ref()],
        &["--model", BERT],
    ));
    assert_eq!(numbers(&report, ["files"]), [2]);
    let model = Folder::new("fifo-model");
    let made = Command::new("mkfifo")
        .arg(model.path("config.json"))
        .status();
    assert!(made.unwrap().success());
    let of_model = ["--rebuild", "--model", model.0.to_str().unwrap()];
    let index = run(["index".as_ref(), folder.0.as_os_str()], &of_model);
    assert!(fault(&index).contains("expected a regular file, got a fifo"));
    fs::remove_file(folder.index_file()).unwrap();
    make(".dynquant-search/index");
    let index = run(["index".as_ref(), folder.0.as_os_str()], &["--rebuild"]);
    assert!(fault(&index).contains("expected a file, got a fifo"));
    let query = ["query".as_ref(), "--index".as_ref(), folder.0.as_os_str()];
    let query = fault(&run(query, &["word"]));
    assert!(
        query.contains("expected a regular file, got a fifo"),
        "{query}"
    );
    fs::remove_file(folder.index_file()).unwrap();
    fs::remove_file(folder.path(".dynquant-search/index.lock")).unwrap();
    make(".dynquant-search/index.lock");
    let index = run(["index".as_ref(), folder.0.as_os_str()], &[]);
    assert!(fault(&index).contains("expected a regular file, got a fifo"));
}

/// Another crate reads the ignore files.
#[test]
fn no_fifo_that_says_what_is_ignored_is_waited_for() {
    let names = [
        ".gitignore",
        ".ignore",
        ".git/info/exclude",
        "far/commondir",
        "common/info/exclude",
    ];
    for name in names {
        let folder = Folder::with_texts("fifo-ignore", 2);
        folder.write("sub/text.txt", "A text.\n");
        let sub = folder.path("sub");
        if name.starts_with("far") || name.starts_with("common") {
            let far = sub.join("far").display().to_string();
            folder.write("sub/.git", format!("gitdir: {far}\n"));
            let common = sub.join("common").display().to_string();
            folder.write("sub/far/commondir", format!("{common}\n"));
        }
        let fifo = sub.join(name);
        fs::create_dir_all(fifo.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&fifo);
        assert!(
            Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );

        let report = folder.index(&[]);
        assert_eq!(numbers(&report, ["files"]), [2], "{name}");
        let skipped = report["skipped"].to_string();
        assert!(
            skipped.contains(name) && skipped.contains("expected a regular file, got a fifo"),
            "{name}: {skipped}"
        );
        let inside = fault(&run(
            ["index".as_ref(), sub.as_os_str()],
            &["--model", BERT],
        ));
        assert!(
            inside.contains(name) && inside.contains("got a fifo"),
            "{name}: {inside}"
        );
        let report = folder.index(&["--no-ignore"]);
        assert!(numbers(&report, ["files"]) >= [3], "{name}");
    }
}
