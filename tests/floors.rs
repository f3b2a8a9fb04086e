//! Imports go down only: each room of `src` uses those on lower floors and itself.

use std::fs;
use std::path::{Path, PathBuf};

/// Rooms from the ground up; those on one floor are blind to each other.
const FLOORS: &[&[&str]] = &[
    &["error"],
    &["words", "sizes"],
    &["document"],
    &["qparams", "kernels"],
    &["tensor"],
    &["observer", "ops"],
    &["qconfig"],
    &["qweight"],
    &["qtable"],
    &["module"],
    &["nn"],
    &["quantize"],
    &["lib"],
];

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The rooms that a source file names after `crate::`, outside comments.
fn imports(source: &str) -> Vec<String> {
    let code = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code: String = code.collect::<Vec<_>>().join("\n");
    let mut rooms: Vec<String> = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => list
                .split('}')
                .next()
                .unwrap_or_default()
                .split(',')
                .collect(),
            None => vec![rest],
        };
        for name in names {
            let name = name.trim_start();
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
            rooms.push(name[..end.unwrap_or(name.len())].to_owned());
        }
    }
    rooms
}

#[test]
fn imports_go_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 10);
    let mut faults = Vec::new();
    for file in files {
        let relative = file.strip_prefix(&src).expect("below src");
        let room = relative.components().next().expect("a name");
        let room = room.as_os_str().to_string_lossy();
        let room = room.strip_suffix(".rs").unwrap_or(&room);
        let Some(own) = floor(room) else {
            faults.push(format!(
                "{}: room {room} is on no floor",
                relative.display()
            ));
            continue;
        };
        for import in imports(&fs::read_to_string(&file).expect("a source")) {
            match floor(&import) {
                _ if import == room => {}
                Some(floor) if floor < own => {}
                Some(_) => faults.push(format!("{}: {room} uses {import}", relative.display())),
                None => faults.push(format!(
                    "{}: crate::{import} is no room",
                    relative.display()
                )),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn candle_tensors_stay_above_the_kernels() {
    for room in ["error.rs", "qparams.rs", "kernels"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(room);
        let mut files = Vec::new();
        match path.is_dir() {
            true => sources(&path, &mut files),
            false => files.push(path),
        }
        for file in files {
            let source = fs::read_to_string(&file).expect("a source");
            assert!(
                !source.contains("candle_core::Tensor"),
                "{}",
                file.display()
            );
        }
    }
}

#[test]
fn the_environment_is_read_in_two_places() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    for file in files
        .iter()
        .filter(|file| !file.ends_with("kernels/isa.rs") && !file.ends_with("kernels/pool.rs"))
    {
        let source = fs::read_to_string(file).expect("a source");
        assert!(!source.contains("env::var"), "{}", file.display());
    }
}
