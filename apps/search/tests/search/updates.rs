//! Updates: which passages are embedded again, and the answers afterwards.

use std::fs;

use serde_json::json;

use crate::process::{Folder, numbers};

const COUNTS: [&str; 4] = ["files", "read", "removed", "embedded"];

/// Its answers are as from an index of these files that is made at once.
fn check_as_new(folder: &Folder, name: &str) {
    let new = Folder::new(name);
    for file in fs::read_dir(&folder.0).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), new.path(file.file_name())).unwrap();
        }
    }
    new.index(&[]);
    assert_eq!(folder.answers(), new.answers());
}

#[test]
fn only_new_texts_are_embedded() {
    let folder = Folder::with_texts("updates", 6);
    let first = folder.index(&[]);
    let [files, read, removed, embedded] = numbers(&first, COUNTS);
    assert_eq!((files, read, removed), (6, 6, 0));
    assert_eq!(embedded, first["passages"].as_u64().unwrap());
    assert!(embedded >= 12, "{first}");

    // Nothing has changed: the file is not even written.
    let written = fs::metadata(folder.index_file())
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(numbers(&folder.index(&[]), COUNTS), [6, 0, 0, 0]);
    assert_eq!(
        fs::metadata(folder.index_file())
            .unwrap()
            .modified()
            .unwrap(),
        written
    );

    let text = fs::read_to_string(folder.path("text-002.txt")).unwrap();
    folder.write("text-002.txt", format!("{text}\n\nA zebra crossing.\n"));
    let [files, read, _, embedded] = numbers(&folder.index(&[]), COUNTS);
    assert_eq!((files, read), (6, 1));
    assert!((1..=2).contains(&embedded), "{embedded}");
    assert!(
        folder
            .query("zebra crossing", &["-k", "1000"])
            .to_string()
            .contains("zebra crossing")
    );
    check_as_new(&folder, "updates-new");

    // The vectors of texts that are gone are still there.
    folder.write("text-002.txt", &text);
    assert_eq!(numbers(&folder.index(&[]), COUNTS), [6, 1, 0, 0]);
    assert!(
        !folder
            .query("zebra crossing", &["-k", "1000"])
            .to_string()
            .contains("zebra crossing")
    );

    // Another name and a copy.
    fs::rename(folder.path("text-001.txt"), folder.path("text-101.txt")).unwrap();
    fs::copy(folder.path("text-003.txt"), folder.path("copy.txt")).unwrap();
    assert_eq!(numbers(&folder.index(&[]), COUNTS), [7, 2, 1, 0]);
    check_as_new(&folder, "updates-new");

    fs::remove_file(folder.path("text-004.txt")).unwrap();
    assert_eq!(numbers(&folder.index(&[]), COUNTS), [6, 0, 1, 0]);
    assert!(!folder.answers().to_string().contains("text-004"));
    check_as_new(&folder, "updates-new");
}

#[test]
fn vectors_of_texts_that_are_gone_are_dropped_in_time() {
    let folder = Folder::with_texts("gone", 8);
    let first = folder.index(&[]);
    for number in 0..6 {
        fs::remove_file(folder.path(format!("text-{number:03}.txt"))).unwrap();
    }
    let second = folder.index(&[]);
    assert_eq!(numbers(&second, COUNTS), [2, 0, 6, 0]);
    let bytes = |report: &serde_json::Value| report["bytes"].as_u64().unwrap();
    assert!(bytes(&second) * 2 < bytes(&first), "{first} {second}");
    check_as_new(&folder, "gone-new");
}

#[test]
fn a_text_in_several_files_is_one_result() {
    let folder = Folder::new("copies");
    for name in ["a", "b", "c", "d", "e", "f"] {
        folder.write(name, "The licence that every package has.\n");
    }
    folder.write("g", "\n\nThe licence that every package has.\n");
    let report = folder.index(&[]);
    assert_eq!(numbers(&report, ["passages", "embedded"]), [7, 1]);
    let results = folder.query("licence", &[]);
    let hits = results.as_array().unwrap();
    assert_eq!(hits.len(), 1);
    assert_eq!(hits[0]["places"].as_array().unwrap().len(), 4);
    assert_eq!(hits[0]["more"], 3);
    assert_eq!(hits[0]["text"], "The licence that every package has.");
    let lines = |name: &str| -> Vec<_> {
        fs::remove_file(folder.path(name)).unwrap();
        let places = folder.query("licence", &[])[0]["places"].clone();
        places
            .as_array()
            .unwrap()
            .iter()
            .map(|place| place["changed"].clone())
            .collect()
    };
    // Those that are as they were come first.
    assert_eq!(lines("a"), [false, false, false, true].map(|it| json!(it)));
}

#[test]
fn a_folder_may_be_moved_with_its_index() {
    let folder = Folder::with_texts("moved-from", 3);
    folder.index(&[]);
    let before = folder.answers();
    let to = Folder::new("moved-to");
    fs::remove_dir(&to.0).unwrap();
    fs::rename(&folder.0, &to.0).unwrap();
    assert_eq!(to.answers(), before);
    assert_eq!(numbers(&to.index(&[]), COUNTS), [3, 0, 0, 0]);
}

#[test]
fn text_that_has_changed_is_never_shown_as_it_was() {
    let folder = Folder::new("changed");
    let text = "first\n\nA zebra crossing.\n";
    let long =
        "The other paragraph, with other words, which fill the first passage of this file.\n"
            .repeat(5);
    folder.write("a.txt", format!("{long}\n{text}"));
    folder.index(&[]);
    let hit = || folder.query("A zebra crossing", &["-k", "1"])[0].clone();
    assert_eq!(hit()["places"][0]["changed"], false);
    assert!(hit()["places"][0]["first_line"].as_u64() > Some(1));
    let changes = [
        // A line more before it; bytes exchanged; the same number of bytes, one line more;
        // less; nothing.
        format!("new\n{long}\n{text}"),
        format!("{long}\nfirst\n\nA horse crossing.\n"),
        format!("{}\n{text}", long.replacen(' ', "\n", 1)),
        long.clone(),
        String::new(),
    ];
    for change in changes {
        folder.write("a.txt", &change);
        let hit = hit();
        assert_eq!(
            (&hit["places"][0]["changed"], &hit["text"]),
            (&json!(true), &json!(null)),
            "{change:?}"
        );
    }
    fs::remove_file(folder.path("a.txt")).unwrap();
    assert_eq!(hit()["places"][0]["changed"], true);
}
