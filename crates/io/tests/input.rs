//! Regular files are read, up to the limit.
#![cfg(unix)]

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use candle_dynquant_io::{Unexpected, input};

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn only_regular_files_are_opened_and_none_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fifo(&path("fifo"));
    let _socket = UnixListener::bind(path("socket")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    symlink("fifo", path("link")).unwrap();
    symlink("/dev/zero", path("zero")).unwrap();
    let all = [
        ("fifo", "a fifo"),
        ("link", "a fifo"),
        ("socket", "a socket"),
        ("folder", "a folder"),
        ("zero", "a character device"),
    ];
    for (name, got) in all {
        let append = input::open_with(&path(name), OpenOptions::new().append(true));
        for result in [append, input::open(&path(name))] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), format!("expected a regular file, got {got}"));
            assert_eq!(Unexpected::behind(&error).unwrap().got, got);
        }
        assert!(input::copy(&path(name), &path("copy")).is_err() && !path("copy").exists());
    }
    let error = input::read(&path("none"), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn at_most_the_limit_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "four").unwrap();
    assert_eq!(input::read(&path, 4).unwrap(), b"four");
    assert_eq!(input::read_text(&path, 5).unwrap(), "four");
    for result in [input::read_text(&path, 3), input::read_stream(Path::new("/dev/zero"), 3)] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "expected at most 3 bytes, got more");
    }
    // The system states a length of 0.
    assert!(
        input::read(Path::new("/proc/self/status"), 100).is_err() || cfg!(not(target_os = "linux"))
    );
}

#[test]
fn a_text_is_utf8() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, b"one\ntwo\xff").unwrap();
    let error = input::read_text(&path, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert_eq!(error.to_string(), "expected UTF-8, got other bytes in line 2");
}

#[test]
fn a_stream_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    fifo(&path);
    let writer = std::thread::spawn({
        let path = path.clone();
        move || fs::write(path, "from a pipe")
    });
    assert_eq!(input::read_stream(&path, 100).unwrap(), "from a pipe");
    writer.join().unwrap().unwrap();
}
