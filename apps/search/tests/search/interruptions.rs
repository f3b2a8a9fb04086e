//! The end of the program at any time: the index is the old one or the new one.

use std::fs::{self, File};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Folder, command, fault, numbers, run};

fn start(folder: &Folder) -> Child {
    let mut index = command();
    index
        .arg("index")
        .arg(&folder.0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    index.spawn().unwrap()
}

#[test]
fn killed_at_any_time_the_old_index_answers() {
    let folder = Folder::with_texts("killed", 4);
    folder.index(&[]);
    let old_file = fs::read(folder.index_file()).unwrap();
    let old = folder.answers();
    (4..60).for_each(|number| folder.write_text(number));

    // The time of a whole run, in a copy.
    let copy = Folder::with_texts("killed-copy", 60);
    let begin = Instant::now();
    copy.index(&[]);
    let mut time = begin.elapsed();
    let new = copy.answers();

    let mut unfinished = 0;
    for part in [0.02, 0.2, 0.35, 0.5, 0.65, 0.75, 0.85, 0.95, 0.98, 1.] {
        let begin = Instant::now();
        let mut index = start(&folder);
        while begin.elapsed() < time.mul_f64(part) {
            if index.try_wait().unwrap().is_some() {
                // Faster than the copy, beside which other tests ran.
                time = begin.elapsed();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        index.kill().unwrap();
        index.wait().unwrap();
        if fs::read(folder.index_file()).unwrap() == old_file {
            unfinished += 1;
            // Its files have changed by nothing, so what it says of them holds.
            assert_eq!(folder.answers(), old, "killed after {part}");
        } else {
            assert_eq!(folder.answers(), new, "killed after {part}");
            fs::write(folder.index_file(), &old_file).unwrap();
        }
    }
    assert!(unfinished >= 4, "{unfinished}");
    let report = folder.index(&[]);
    assert_eq!(numbers(&report, ["files", "read"]), [60, 56]);
    assert_eq!(folder.answers(), new);
}

/// A file that was being written when the process was killed is no obstacle, and goes.
#[test]
fn what_a_killed_run_left_is_removed() {
    let folder = Folder::with_texts("left", 3);
    folder.index(&[]);
    let index = fs::read(folder.index_file()).unwrap();
    let left = folder.path(".dynquant-search/.dynquant-0123456789abcdef");
    fs::write(&left, &index[..index.len() / 2]).unwrap();
    let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    let file = File::options().write(true).open(&left).unwrap();
    file.set_modified(hour_ago).unwrap();
    drop(file);
    folder.write_text(3);
    assert_eq!(numbers(&folder.index(&[]), ["files", "read"]), [4, 1]);
    assert!(!left.exists());
}

#[test]
fn ctrl_c_leaves_the_old_index_and_says_so() {
    for (signal, delay) in [("INT", 50), ("TERM", 300)] {
        let delay = Duration::from_millis(delay);
        let folder = Folder::with_texts(&format!("interrupted-{signal}"), 2);
        let [old] = numbers(&folder.index(&[]), ["passages"]);
        let before = fs::read(folder.index_file()).unwrap();
        (2..400).for_each(|number| folder.write_text(number));
        let lock = folder.path(".dynquant-search/index.lock");
        fs::remove_file(&lock).unwrap();
        let index = start(&folder);
        // The handlers are there before the lock.
        while !lock.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(delay);
        let id = index.id().to_string();
        let kill = std::process::Command::new("kill")
            .args(["-s", signal, &id])
            .status();
        assert!(kill.unwrap().success());
        let output = index.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{stderr}");
        assert!(
            stderr.contains("interrupted; the index is as it was"),
            "{stderr}"
        );
        assert_eq!(fs::read(folder.index_file()).unwrap(), before);
        // Finished vectors are not lost, if there was time for any.
        let saved = folder.path(".dynquant-search/index.partial").exists();
        let [files, passages, embedded] =
            numbers(&folder.index(&[]), ["files", "passages", "embedded"]);
        assert_eq!(files, 400);
        assert_eq!(
            embedded < passages - old,
            saved,
            "{embedded} of {passages}, {old} before"
        );
        assert!(!folder.path(".dynquant-search/index.partial").exists());
    }
}

#[test]
fn two_processes_do_not_write_one_index() {
    let folder = Folder::with_texts("locked", 2);
    folder.index(&[]);
    let before = folder.answers();
    let lock = File::open(folder.path(".dynquant-search/index.lock")).unwrap();
    lock.lock().unwrap();
    folder.write_text(2);
    let output = run(["index".as_ref(), folder.0.as_os_str()], &[]);
    let fault = fault(&output);
    assert!(
        fault.contains("another process is writing this index"),
        "{fault}"
    );
    assert_eq!(folder.answers(), before);
    drop(lock);
    assert_eq!(numbers(&folder.index(&[]), ["files"]), [3]);
}
