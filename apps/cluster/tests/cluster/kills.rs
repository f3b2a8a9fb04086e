//! Processes that are killed in the middle: results are whole with the same bits, or absent.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::data;
use crate::process::{Cluster, Process, command, ok, run};

/// The default number of parts of a query on a cluster.
const PARTS: usize = 64;

/// The number of rows of a query that takes some seconds; with DYNQUANT_LONG=1 the number for which
/// the guarantee is tested.
fn rows() -> usize {
    match std::env::var_os("DYNQUANT_LONG") {
        Some(_) => 100_000,
        None => 20_000,
    }
}

fn write_rows(dir: &Path) -> PathBuf {
    let input = dir.join("input.parquet");
    // One row group for each part.
    data::write(&input, &data::texts(rows()), rows().div_ceil(PARTS));
    input
}

#[test]
fn a_killed_executor_changes_no_bit() {
    let dir = data::folder("killed executor");
    let input = write_rows(&dir);
    let (alone, output) = (dir.join("alone.parquet"), dir.join("output.parquet"));
    let report = ok(&run(&input, &alone, &[]));
    println!("on one machine: {report}");
    assert_eq!(report["rows"], rows());

    let mut cluster = Cluster::start(&[&[], &[]]);
    let mut client = command(&run(&input, &output, &["--scheduler", &cluster.url]));
    let client = std::thread::spawn(move || client.output().unwrap());
    let finished = "Finished task";
    cluster.executors[1].wait_for(finished, PARTS / 8);
    let [survivor, victim] = [0, 1].map(|index| cluster.executors[index].count(finished));
    cluster.executors.remove(1).signal("KILL");
    println!("killed after {victim} parts, when the other executor had computed {survivor}");
    assert!(victim + survivor < PARTS, "in the middle");

    let ended = client.join().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{stderr} {}", cluster.scheduler.logs());
    println!("on the cluster: {}", String::from_utf8_lossy(&ended.stdout));
    assert!(data::bits(&output) == data::bits(&alone), "the same bits");
    // The parts of the killed executor were lost with it.
    let survivor = cluster.executors[0].count(finished);
    assert!(survivor >= PARTS, "{survivor} of {PARTS} parts by the survivor");
}

#[test]
fn executors_that_end_hand_their_parts_over() {
    let dir = data::folder("ended executors");
    let input = write_rows(&dir);
    let (alone, output) = (dir.join("alone.parquet"), dir.join("output.parquet"));
    ok(&run(&input, &alone, &[]));
    let mut cluster = Cluster::start(&[&[]]);
    let client = Process::start(&run(&input, &output, &["--scheduler", &cluster.url]));
    cluster.executors[0].wait_for("Finished task", 2);
    let first = cluster.executors.remove(0);
    first.signal("TERM");
    let (status, logs) = first.wait();
    assert!(status.success(), "{logs}");
    // For a while the cluster has no executor.
    cluster.add(&[]);
    let (status, logs) = client.wait();
    assert!(status.success(), "{logs} {}", cluster.scheduler.logs());
    assert!(data::bits(&output) == data::bits(&alone), "the same bits");
}

/// The temporary file among the names.
fn part(names: Vec<OsString>) -> Option<OsString> {
    let mut parts = names.into_iter();
    parts.find(|name| name.to_string_lossy().starts_with(".dynquant-"))
}

#[test]
fn a_killed_query_leaves_what_was_there() {
    let dir = data::folder("killed query");
    let input = write_rows(&dir);
    let output = dir.join("output.parquet");
    fs::write(&output, "what was there").unwrap();
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&dir).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        names
    };
    for signal in ["INT", "TERM", "KILL"] {
        let mut query = Process::start(&run(&input, &output, &[]));
        // Before the computation the program briefly creates a file, as a test.
        let mut seen = None;
        while seen.is_none() || seen != part(names()) {
            assert!(query.is_running(), "{signal}");
            seen = part(names());
            std::thread::sleep(Duration::from_millis(300));
        }
        query.signal(signal);
        let (status, logs) = query.wait();
        assert!(!status.success(), "{signal}");
        assert_eq!(fs::read(&output).unwrap(), b"what was there", "{signal}");
        if signal != "KILL" {
            let expected = format!("interrupted by SIG{signal}, nothing is written");
            assert!(logs.contains(&expected), "{logs}");
            assert_eq!(names(), ["input.parquet", "output.parquet"], "{signal}");
        }
    }
    let left = fs::File::open(dir.join(part(names()).unwrap())).unwrap();
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    left.set_modified(hour_ago).unwrap();
    ok(&run(&input, &output, &[]));
    assert_eq!(data::bits(&output).len(), rows());
    assert_eq!(names(), ["input.parquet", "output.parquet"], "what a killed query left is removed");
}

#[test]
fn an_interrupted_query_is_cancelled_on_the_cluster() {
    let dir = data::folder("cancelled query");
    let input = write_rows(&dir);
    let output = dir.join("output.parquet");
    let mut cluster = Cluster::start(&[&[]]);
    let query = Process::start(&run(&input, &output, &["--scheduler", &cluster.url]));
    cluster.executors[0].wait_for("Finished task", 2);
    query.signal("INT");
    let (status, logs) = query.wait();
    assert_eq!(status.code(), Some(1));
    assert!(logs.contains("interrupted by SIGINT, nothing is written"), "{logs}");
    assert!(!output.exists());
    // The cluster is free for the next query.
    let small = dir.join("small.parquet");
    data::write(&small, &data::texts(100), 10);
    ok(&run(&small, &output, &["--scheduler", &cluster.url]));
    let computed = cluster.executors[0].count("Finished task");
    assert!(computed < 2 * PARTS, "{computed} parts were computed");
}

#[test]
fn a_killed_scheduler_ends_the_query() {
    let dir = data::folder("killed scheduler");
    let input = write_rows(&dir);
    let output = dir.join("output.parquet");
    fs::write(&output, "what was there").unwrap();
    let mut cluster = Cluster::start(&[&[]]);
    let query = Process::start(&run(&input, &output, &["--scheduler", &cluster.url]));
    cluster.executors[0].wait_for("Finished task", 2);
    cluster.scheduler.signal("KILL");
    let (status, logs) = query.wait();
    assert_eq!(status.code(), Some(1), "{logs}");
    assert!(logs.contains("error: "), "{logs}");
    assert_eq!(fs::read(&output).unwrap(), b"what was there");
    // Executors without a scheduler end with an error, to be restarted.
    let (status, logs) = cluster.executors.remove(0).wait();
    assert_eq!(status.code(), Some(1), "{logs}");
    assert!(logs.contains("has ended or taken it for lost"), "{logs}");
}

#[test]
fn a_result_that_is_lost_before_it_is_fetched_is_computed_again() {
    let dir = data::folder("lost result");
    let input = write_rows(&dir);
    let (alone, output) = (dir.join("alone.parquet"), dir.join("output.parquet"));
    ok(&run(&input, &alone, &[]));
    let mut cluster = Cluster::start(&[&[]]);
    let query = run(&input, &output, &["--scheduler", &cluster.url, "--log-level", "warn"]);
    let mut query = Process::start(&query);
    cluster.executors[0].wait_for("Finished task", 2);
    // The stopped process cannot fetch the parts computed meanwhile.
    query.signal("STOP");
    cluster.executors[0].wait_for("Finished task", PARTS);
    cluster.scheduler.wait_for("Job finished", 1);
    cluster.executors.remove(0).signal("KILL");
    cluster.add(&[]);
    query.signal("CONT");
    query.wait_for("the result is lost, the query runs again", 1);
    let (status, logs) = query.wait();
    assert!(status.success(), "{logs}");
    assert!(data::bits(&output) == data::bits(&alone), "the same bits");
}
