//! The rooms of the house whose code is changed.

/// A name, and beginnings of the paths of its files; `-` before one leaves files out.
pub const ROOMS: [(&str, &[&str]); 20] = [
    ("checkpoint", &["src/checkpoint/"]),
    ("weight", &["src/weight/"]),
    ("tune", &["src/tune/"]),
    ("ops", &["src/ops/"]),
    ("nn", &["src/nn/", "-src/nn/recurrent/schedule.rs"]),
    ("equalize", &["src/equalize/"]),
    ("inspect", &["src/inspect/"]),
    ("cli", &["crates/cli/src/"]),
    ("port", &["crates/port/src/"]),
    ("io", &["crates/io/src/"]),
    ("quantize", &["src/quantize/", "-src/quantize/hidden.rs"]),
    ("hidden", &["src/quantize/hidden.rs"]),
    ("module", &["src/module/"]),
    ("names", &["src/name_regex.rs"]),
    ("qparams", &["src/qparams/", "crates/kernels/src/qparams/"]),
    ("schedule", &["src/nn/recurrent/schedule.rs"]),
    ("calls", &["crates/kernels/src/calls/"]),
    ("loops", &["crates/kernels/src/loops/"]),
    ("packed", &["crates/kernels/src/packed"]),
    (
        "threads",
        &[
            "crates/kernels/src/threads/",
            "-crates/kernels/src/threads/watchdog.rs",
        ],
    ),
];

pub fn of(path: &str) -> Option<&'static str> {
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    let has = |files: &[&str]| {
        let without = |file: &&str| {
            file.strip_prefix('-')
                .is_some_and(|file| path.starts_with(file))
        };
        files.iter().any(|file| path.starts_with(file)) && !files.iter().any(without)
    };
    let mut rooms = ROOMS.iter().filter(|(_, files)| !is_test && has(files));
    rooms.next().map(|(room, _)| *room)
}

/// The files that declare the modules of each crate.
pub const CRATES: [&str; 5] = [
    "src/lib.rs",
    "crates/cli/src/main.rs",
    "crates/io/src/lib.rs",
    "crates/kernels/src/lib.rs",
    "crates/port/src/lib.rs",
];
