//! Inputs and outputs that are not regular files.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::model::{Model, quantized, source, write_float};
use crate::kit::*;

/// The result of `run`; panics if it does not end.
fn ends<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(run()));
    let result = told.recv_timeout(Duration::from_secs(20));
    result.unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Makes something that never ends.
type Special = fn(&Path);
/// Opens something in a folder.
type Open = fn(&Path) -> candle_dynquant::Result<()>;

/// Replaces the file `name` of a folder by something that never ends, and opens the folder.
fn refused(name: &str, special: Special, open: Open) -> Result<Fault> {
    let dir = tempfile::tempdir()?;
    write_float(dir.path())?;
    let path = dir.path().join(name);
    let _ = fs::remove_file(&path);
    special(&path);
    let folder = dir.path().to_owned();
    Ok(fault(ends(name, move || open(&folder))))
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<std::ffi::OsString>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[test]
fn inputs_that_never_end_are_refused() -> Result<()> {
    let cases: [(&str, Open); 6] = [
        ("config.json", |folder| Checkpoint::open(folder).map(drop)),
        ("model.safetensors", |folder| Checkpoint::open(folder).map(drop)),
        ("model.safetensors.index.json", |folder| {
            fs::remove_file(folder.join("model.safetensors")).unwrap();
            Checkpoint::open(folder).map(drop)
        }),
        ("shard", |folder| {
            fs::write(folder.join("a.json"), r#"{"weight_map": {"a": "shard"}}"#).unwrap();
            Checkpoint::open(folder.join("a.json")).map(drop)
        }),
        ("a.yaml", |folder| QConfigSpec::from_file(folder.join("a.yaml")).map(drop)),
        ("a.yaml", |folder| TuningConfig::from_file(folder.join("a.yaml")).map(drop)),
    ];
    let zero = |path: &Path| symlink("/dev/zero", path).unwrap();
    for (name, open) in cases {
        let kinds: [(Special, &str); 2] = [(fifo, "a fifo"), (zero, "a character device")];
        for (special, got) in kinds {
            let expected = format!("expected a regular file, got {got}");
            refused(name, special, open)?.has(expected).has(name);
        }
    }
    Ok(())
}

#[test]
fn outputs_that_are_no_file_are_left() -> Result<()> {
    let source = source()?;
    let model = quantized(&source.path, &all_int8())?;
    let path = |name: &str| source.beside(name);
    fifo(&path("fifo"));
    let _socket = UnixListener::bind(path("socket"))?;
    symlink("/dev/null", path("null"))?;
    fs::write(path("closed"), "old")?;
    fs::set_permissions(path("closed"), Permissions::from_mode(0o444))?;
    for (name, got) in [
        ("fifo", "expected a file, got a fifo"),
        ("socket", "expected a file, got a socket"),
        ("null", "expected a file, got a character device"),
        ("closed", "expected one that may be written, got a read-only one"),
    ] {
        fault(checkpoint::save(&model, &source.checkpoint, path(name)))
            .ends(format!("{name}: invalid output: {got}"));
    }
    assert_eq!(fs::read(path("closed"))?, b"old");
    assert_eq!(names(&path(""))?.len(), 5, "nothing is left");
    Ok(())
}

#[test]
fn a_link_and_the_permissions_of_an_output_stay() -> Result<()> {
    let source = source()?;
    let model = quantized(&source.path, &all_int8())?;
    let path = |name: &str| source.beside(name);
    fs::create_dir(path("far"))?;
    fs::write(path("far/secret"), "old")?;
    fs::set_permissions(path("far/secret"), Permissions::from_mode(0o600))?;
    symlink("far/secret", path("link"))?;
    symlink("far/none", path("dangling"))?;
    for (link, file) in [("link", "far/secret"), ("dangling", "far/none")] {
        checkpoint::save(&model, &source.checkpoint, path(link))?;
        assert!(path(link).is_symlink(), "{link}");
        assert_eq!(Model::open(&path(file))?.bits()?, model.bits()?);
    }
    let mode = path("far/secret").metadata()?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Ok(())
}

#[test]
fn hidden_files_of_the_source_are_not_copied() -> Result<()> {
    let (_dir, [source, out]) = paths(["float", "out"]);
    fs::create_dir_all(source.join(".git"))?;
    fs::create_dir_all(source.join("1_Pooling"))?;
    let float = write_float(&source)?;
    for name in [".git/config", ".env", "1_Pooling/.env", "tokenizer.json"] {
        fs::write(source.join(name), "a token")?;
    }
    let model = quantized(&float, &all_int8())?;
    checkpoint::save(&model, &Checkpoint::open(&source)?, &out)?;
    assert_eq!(names(&out)?, ["model.safetensors", "tokenizer.json"]);
    Ok(())
}

/// A file that cannot be copied is named; the output is neither written nor waited for.
#[test]
fn other_files_of_the_source_that_are_none_are_refused() -> Result<()> {
    let dangling = |path: &Path| symlink("none", path).unwrap();
    let null = |path: &Path| symlink("/dev/null", path).unwrap();
    let socket = |path: &Path| drop(UnixListener::bind(path).unwrap());
    let write = |folder: &Path| {
        let (source, out) = (Checkpoint::open(folder).unwrap(), folder.join("out"));
        let written = checkpoint::quantize(&source, &all_int8(), &out, |_| ());
        assert!(!out.exists());
        written
    };
    let kinds: [(Special, &str); 4] = [
        (fifo, "a fifo"),
        (socket, "a socket"),
        (null, "a character device"),
        (dangling, "No such file"),
    ];
    for (special, got) in kinds {
        refused("tokenizer.json", special, write)?.has("tokenizer.json").has(got);
    }
    Ok(())
}

/// Otherwise each folder would contain all earlier ones.
#[test]
fn quantized_folders_inside_the_source_are_not_copied() -> Result<()> {
    let (_dir, [source]) = paths(["float"]);
    fs::create_dir_all(source.join("2_Dense"))?;
    let float = write_float(&source)?;
    fs::copy(&float, source.join("2_Dense/model.safetensors"))?;
    let opened = Checkpoint::open(&source)?;
    for name in ["int8", "int4", "float16"] {
        let model = quantized(&float, &QConfigSpec::preset(name)?.min_params(0))?;
        checkpoint::save(&model, &opened, source.join(name))?;
        assert_eq!(names(&source.join(name))?, ["2_Dense", "model.safetensors"], "{name}");
    }
    Ok(())
}

#[test]
fn what_a_replaced_folder_held_is_not_lost() -> Result<()> {
    let (_dir, [source, out]) = paths(["float", "out"]);
    fs::create_dir(&source)?;
    let model = quantized(&write_float(&source)?, &all_int8())?;
    let source = Checkpoint::open(&source)?;
    checkpoint::save(&model, &source, &out)?;
    fs::create_dir(out.join("notes"))?;
    let expected = "expected a folder that holds only files which are replaced, got one with notes, \
                    a folder";
    fault(checkpoint::save(&model, &source, &out)).ends(expected);
    fs::remove_dir(out.join("notes"))?;
    fs::remove_file(out.join("model.safetensors"))?;
    fifo(&out.join("model.safetensors"));
    fault(checkpoint::save(&model, &source, &out)).ends("model.safetensors, a fifo");
    Ok(())
}

/// A file that is too large is malformed; a path that is not a file could not be read.
#[test]
fn the_limit_of_a_file_is_told_apart_from_its_kind() -> Result<()> {
    let (dir, [config]) = paths(["config.json"]);
    write_float(dir.path())?;
    let is = |message: &str| {
        fault(Checkpoint::open(dir.path())).is(format!("{}: {message}", config.display()));
    };
    fs::File::create(&config)?.set_len((4 << 20) + 1)?;
    is("malformed file: expected at most 4194304 bytes, got more");
    fs::remove_file(&config)?;
    fifo(&config);
    is("cannot read: expected a regular file, got a fifo");
    Ok(())
}
