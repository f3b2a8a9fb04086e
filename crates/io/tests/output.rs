//! Files and folders are replaced whole, and nothing else is replaced.
#![cfg(unix)]

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use candle_dynquant_io::output::{NewFile, NewFolder, write};

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// The names in a folder, hidden names too.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_when_it_is_put() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "old").unwrap();
    let mut new = NewFile::beside(&path).unwrap();
    new.write_all(b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    new.put().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");

    let mut dropped = NewFile::beside(&path).unwrap();
    dropped.write_all(b"half of").unwrap();
    drop(dropped);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn an_error_does_not_name_the_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing").join("name");
    for error in [NewFile::beside(&path).err(), NewFolder::beside(&path).err()] {
        let error = error.unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert!(!error.to_string().contains(".dynquant-"), "{error}");
        assert!(std::error::Error::source(&error).is_none());
    }
}

#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fifo(&path("fifo"));
    let _socket = UnixListener::bind(path("socket")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    symlink("/dev/null", path("null")).unwrap();
    for (name, got) in [
        (path("fifo"), "a fifo"),
        (path("socket"), "a socket"),
        (path("folder"), "a folder"),
        (path("null"), "a character device"),
        ("/dev/null".into(), "a character device"),
    ] {
        let error = NewFile::beside(&name).unwrap_err().to_string();
        assert_eq!(error, format!("expected a file, got {got}"));
        if got != "a folder" {
            let error = NewFolder::beside(&name).unwrap_err().to_string();
            assert_eq!(error, format!("expected a folder, got {got}"));
        }
    }
    assert_eq!(names(folder.path()), ["fifo", "folder", "null", "socket"], "nothing is left");
}

#[test]
fn what_is_read_only_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (file, inner) = (folder.path().join("file"), folder.path().join("inner"));
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o444)).unwrap();
    fs::create_dir(&inner).unwrap();
    fs::set_permissions(&inner, Permissions::from_mode(0o555)).unwrap();
    for error in [NewFile::beside(&file).unwrap_err(), NewFolder::beside(&inner).unwrap_err()] {
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"old");
}

#[test]
fn permissions_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("plain"), "").unwrap();
    for (name, kept) in [("secret", 0o600), ("program", 0o755), ("shared", 0o666)] {
        fs::write(path(name), "old").unwrap();
        fs::set_permissions(path(name), Permissions::from_mode(kept)).unwrap();
        write(&path(name), "new").unwrap();
        assert_eq!((mode(&path(name)), kept), (kept, kept), "{name}");
    }
    write(&path("none"), "new").unwrap();
    assert_eq!(mode(&path("none")), mode(&path("plain")));

    fs::create_dir(path("out")).unwrap();
    fs::set_permissions(path("out"), Permissions::from_mode(0o700)).unwrap();
    fs::write(path("out/secret"), "old").unwrap();
    fs::set_permissions(path("out/secret"), Permissions::from_mode(0o600)).unwrap();
    let new = NewFolder::beside(&path("out")).unwrap();
    fs::write(new.path().join("secret"), "new").unwrap();
    new.put().unwrap();
    assert_eq!(mode(&path("out")), 0o700);
    assert_eq!(mode(&path("out/secret")), 0o600);
    assert_eq!(fs::read(path("out/secret")).unwrap(), b"new");
}

#[test]
fn what_a_link_leads_to_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("far")).unwrap();
    fs::write(path("far/file"), "old").unwrap();
    symlink("far/file", path("link")).unwrap();
    // Neither target exists yet.
    symlink("far/other", path("second")).unwrap();
    symlink("second", path("first")).unwrap();
    symlink("far/folder", path("to_folder")).unwrap();
    for name in ["link", "first"] {
        write(&path(name), "new").unwrap();
        assert!(path(name).is_symlink(), "{name}");
    }
    assert!(path("second").is_symlink());
    for name in ["far/file", "far/other"] {
        assert_eq!(fs::read(path(name)).unwrap(), b"new", "{name}");
    }
    for _ in 0..2 {
        let new = NewFolder::beside(&path("to_folder")).unwrap();
        fs::write(new.path().join("a"), "new").unwrap();
        new.put().unwrap();
        assert!(path("to_folder").is_symlink() && path("far/folder/a").is_file());
    }
    symlink("round", path("round")).unwrap();
    assert!(NewFile::beside(&path("round")).is_err());
    assert_eq!(names(&path("far")), ["file", "folder", "other"]);
}

#[test]
fn no_link_is_followed_in_a_folder_that_others_filled() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("victim"), "years of work").unwrap();
    symlink("victim", path("link")).unwrap();
    symlink("none", path("dangling")).unwrap();
    let refused = |error: std::io::Error| {
        let error = error.to_string();
        assert!(error.ends_with("got a symbolic link"), "{error}");
    };
    for name in ["link", "dangling"] {
        refused(NewFile::beside_nofollow(&path(name)).unwrap_err());
        assert!(path(name).is_symlink());
    }
    assert_eq!(fs::read(path("victim")).unwrap(), b"years of work");
    assert!(!path("none").exists());

    fs::create_dir(path("new")).unwrap();
    for _ in 0..2 {
        let mut file = NewFile::beside_nofollow(&path("new/file")).unwrap();
        file.write_all(b"new").unwrap();
        file.put().unwrap();
    }
    assert_eq!(names(&path("new")), ["file"]);
}

/// Puts a folder with `a` in the place of a folder with `a` and what `add` writes there.
fn replaced(add: impl FnOnce(&Path)) -> (tempfile::TempDir, Result<(), String>) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("a"), "old").unwrap();
    add(&out);
    let new = NewFolder::beside(&out).unwrap();
    fs::write(new.path().join("a"), "new").unwrap();
    let put = new.put().map_err(|error| error.to_string());
    (folder, put)
}

#[test]
fn nothing_in_a_folder_is_lost() {
    let (folder, put) = replaced(|out| symlink("none", out.join("b")).unwrap());
    assert!(put.unwrap_err().ends_with("one with b, a symbolic link"));
    assert!(folder.path().join("out/b").is_symlink());
    let (folder, put) = replaced(|out| fs::create_dir_all(out.join("b/empty")).unwrap());
    assert!(put.unwrap_err().ends_with("one with b, a folder"));
    assert!(folder.path().join("out/b/empty").is_dir());
    assert_eq!(fs::read(folder.path().join("out/a")).unwrap(), b"old");
    let (_, put) = replaced(|out| {
        fs::remove_file(out.join("a")).unwrap();
        fifo(&out.join("a"));
    });
    assert!(put.unwrap_err().ends_with("one with a, a fifo"));
    let (_, put) = replaced(|out| {
        fs::remove_file(out.join("a")).unwrap();
        fs::create_dir(out.join("a")).unwrap();
    });
    assert!(put.unwrap_err().ends_with("one with a, a folder"));

    let (folder, put) = replaced(|_| {});
    put.unwrap();
    assert_eq!(fs::read(folder.path().join("out/a")).unwrap(), b"new");
    assert_eq!(names(folder.path()), ["out"]);
}
