//! The targets of `fuzz/` over its corpus, over each entry cut short, and over entries with random
//! changes: a short form of fuzzing, without nightly. `DYNQUANT_LONG=1` makes a million changes for
//! each target, and `DYNQUANT_FUZZ_SEED` chooses others.

use std::fs;
use std::path::Path;

use candle_dynquant_fuzz_targets::{checkpoint, folders, rules, spec, tuning};
use candle_dynquant_support::random::Random;

fn over_corpus(name: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let entries = entries.map(|entry| {
        let path = entry.expect("an entry").path();
        let data = fs::read(&path).expect("a file");
        (path, data)
    });
    let mut entries: Vec<_> = entries.collect();
    entries.sort();
    assert!(entries.len() >= 10, "{}: {}", folder.display(), entries.len());
    for (path, data) in &entries {
        // After a panic this line is the only trace of the entry.
        println!("{}", path.display());
        run(data);
        (1..8).for_each(|eighths| run(&data[..data.len() * eighths / 8]));
    }
    let seed = std::env::var("DYNQUANT_FUZZ_SEED").map_or(1, |seed| seed.parse().expect("a seed"));
    let mut random = Random(seed);
    let runs = match std::env::var_os("DYNQUANT_LONG") {
        Some(_) => 1_000_000,
        None => 2_000,
    };
    for _ in 0..runs {
        let mut data = entries[random.below(entries.len())].1.clone();
        for _ in 0..=random.below(4) {
            change(&mut data, &entries[random.below(entries.len())].1, &mut random);
        }
        let shown = Shown(&data);
        run(&data);
        std::mem::forget(shown);
    }
}

/// Shows the input where a run panics.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        println!("input: \"{}\"", self.0.escape_ascii());
    }
}

/// Changes a byte or a bit, removes or repeats a piece, or inserts a piece of another entry.
fn change(data: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const WORDS: [&str; 20] = [
        "null",
        "-1",
        "1e999",
        "[",
        "]",
        "{",
        "}",
        "\"",
        ": ",
        "- ",
        "\n",
        "&a ",
        "*a",
        "'",
        "|\n",
        "99999999999999999999",
        "\u{feff}",
        "\\u0000",
        "(a*)*",
        "é",
    ];
    let at = random.below(data.len() + 1);
    let end = (at + random.below(16)).min(data.len());
    match random.below(6) {
        0 => data.truncate(at),
        1 => {
            data.drain(at..end);
        }
        2 => {
            let piece = data[at..end].to_vec();
            let to = random.below(data.len() + 1);
            data.splice(to..to, piece);
        }
        3 => {
            let from = random.below(other.len() + 1);
            let to = (from + random.below(40)).min(other.len());
            data.splice(at..end, other[from..to].iter().copied());
        }
        4 => {
            let word = WORDS[random.below(WORDS.len())];
            data.splice(at..at, word.bytes());
        }
        _ => {
            if let Some(byte) = data.get_mut(at) {
                *byte = match random.below(2) {
                    0 => *byte ^ 1 << random.below(8),
                    _ => random.below(256) as u8,
                };
            }
        }
    }
}

#[test]
fn specs_are_read_or_refused() {
    over_corpus("spec", spec::run);
}

#[test]
fn tuning_configurations_are_read_or_refused() {
    over_corpus("tuning", tuning::run);
}

#[test]
fn rules_meet_trees() {
    over_corpus("rules", rules::run);
}

#[test]
fn checkpoints_are_read_or_refused() {
    over_corpus("checkpoint", checkpoint::run);
}

#[test]
fn folders_are_read_or_refused() {
    over_corpus("folders", folders::run);
}
