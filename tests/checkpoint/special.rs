//! Inputs and outputs that are not regular files.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use candle_dynquant::{Checkpoint, QConfigSpec, TuningConfig, checkpoint};

use super::model::{Model, quantized, write_float};

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
/// Opens something in a folder; the error.
type Open = fn(&Path) -> String;

/// Replaces the file `name` of a folder by something that never ends, and opens the folder.
fn refused(name: &str, special: Special, open: Open) -> Result<String> {
    let dir = tempfile::tempdir()?;
    write_float(dir.path())?;
    let path = dir.path().join(name);
    let _ = fs::remove_file(&path);
    special(&path);
    let folder = dir.path().to_owned();
    Ok(ends(name, move || open(&folder)))
}

#[test]
fn inputs_that_never_end_are_refused() -> Result<()> {
    let open = |folder: &Path| Checkpoint::open(folder).map(drop).unwrap_err().to_string();
    let by_index = |folder: &Path| {
        fs::remove_file(folder.join("model.safetensors")).unwrap();
        Checkpoint::open(folder).map(drop).unwrap_err().to_string()
    };
    let by_file = |folder: &Path| {
        let index = "{\"weight_map\": {\"a\": \"shard\"}}";
        fs::write(folder.join("a.json"), index).unwrap();
        let error = Checkpoint::open(folder.join("a.json"));
        error.map(drop).unwrap_err().to_string()
    };
    let spec = |folder: &Path| {
        let error = QConfigSpec::from_file(folder.join("a.yaml"));
        error.unwrap_err().to_string()
    };
    let tuning = |folder: &Path| {
        let error = TuningConfig::from_file(folder.join("a.yaml"));
        error.unwrap_err().to_string()
    };
    let cases: [(&str, Open); 6] = [
        ("config.json", open),
        ("model.safetensors", open),
        ("model.safetensors.index.json", by_index),
        ("shard", by_file),
        ("a.yaml", spec),
        ("a.yaml", tuning),
    ];
    let zero = |path: &Path| symlink("/dev/zero", path).unwrap();
    for (name, open) in cases {
        let kinds: [(Special, &str); 2] = [(fifo, "a fifo"), (zero, "a character device")];
        for (special, got) in kinds {
            let error = refused(name, special, open)?;
            let expected = format!("expected a regular file, got {got}");
            assert!(error.contains(&expected) && error.contains(name), "{name}: {error}");
        }
    }
    Ok(())
}

#[test]
fn outputs_that_are_no_file_are_left() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = write_float(dir.path())?;
    let model = quantized(&float, &QConfigSpec::int8().min_params(0))?;
    let source = Checkpoint::open(&float)?;
    let path = |name: &str| dir.path().join(name);
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
        let error = checkpoint::save(&model, &source, path(name)).unwrap_err();
        let error = error.to_string();
        assert!(error.ends_with(&format!("{name}: invalid output: {got}")), "{error}");
    }
    assert_eq!(fs::read(path("closed"))?, b"old");
    assert_eq!(fs::read_dir(dir.path())?.count(), 5, "nothing is left");
    Ok(())
}

#[test]
fn a_link_and_the_permissions_of_an_output_stay() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let float = write_float(dir.path())?;
    let model = quantized(&float, &QConfigSpec::int8().min_params(0))?;
    let source = Checkpoint::open(&float)?;
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("far"))?;
    fs::write(path("far/secret"), "old")?;
    fs::set_permissions(path("far/secret"), Permissions::from_mode(0o600))?;
    symlink("far/secret", path("link"))?;
    symlink("far/none", path("dangling"))?;
    for (link, file) in [("link", "far/secret"), ("dangling", "far/none")] {
        checkpoint::save(&model, &source, path(link))?;
        assert!(path(link).is_symlink(), "{link}");
        assert_eq!(Model::open(&path(file))?.bits()?, model.bits()?);
    }
    let mode = path("far/secret").metadata()?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Ok(())
}

#[test]
fn hidden_files_of_the_source_are_not_copied() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let source = dir.path().join("float");
    fs::create_dir_all(source.join(".git"))?;
    fs::create_dir_all(source.join("1_Pooling"))?;
    let float = write_float(&source)?;
    for name in [".git/config", ".env", "1_Pooling/.env", "tokenizer.json"] {
        fs::write(source.join(name), "a token")?;
    }
    let out = dir.path().join("out");
    let model = quantized(&float, &QConfigSpec::int8().min_params(0))?;
    checkpoint::save(&model, &Checkpoint::open(&source)?, &out)?;
    let mut names: Vec<_> = fs::read_dir(&out)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()?;
    names.sort();
    assert_eq!(names, ["model.safetensors", "tokenizer.json"]);
    Ok(())
}

/// A file that cannot be copied is named; the output is neither written nor waited for.
#[test]
fn other_files_of_the_source_that_are_none_are_refused() -> Result<()> {
    let dangling = |path: &Path| symlink("none", path).unwrap();
    let null = |path: &Path| symlink("/dev/null", path).unwrap();
    let socket = |path: &Path| drop(UnixListener::bind(path).unwrap());
    let write = |folder: &Path| {
        let source = Checkpoint::open(folder).unwrap();
        let plan = checkpoint::Plan::new(&source, &QConfigSpec::int8().min_params(0), &[], &[]);
        let out = folder.join("out");
        let error = checkpoint::quantize(&source, &plan.unwrap(), &out, |_| ()).unwrap_err();
        assert!(!out.exists());
        error.to_string()
    };
    let kinds: [(Special, &str); 4] = [
        (fifo, "a fifo"),
        (socket, "a socket"),
        (null, "a character device"),
        (dangling, "No such file"),
    ];
    for (special, got) in kinds {
        let error = refused("tokenizer.json", special, write)?;
        assert!(error.contains("tokenizer.json") && error.contains(got), "{error}");
    }
    Ok(())
}

/// Otherwise each folder would contain all earlier ones.
#[test]
fn quantized_folders_inside_the_source_are_not_copied() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let source = dir.path().join("float");
    fs::create_dir_all(source.join("2_Dense"))?;
    let float = write_float(&source)?;
    fs::copy(&float, source.join("2_Dense/model.safetensors"))?;
    let opened = Checkpoint::open(&source)?;
    for (name, spec) in [
        ("int8", QConfigSpec::int8()),
        ("int4", QConfigSpec::int4()),
        ("float16", QConfigSpec::float16()),
    ] {
        let model = quantized(&float, &spec.min_params(0))?;
        checkpoint::save(&model, &opened, source.join(name))?;
        let entries = fs::read_dir(source.join(name))?.map(|entry| Ok(entry?.file_name()));
        let mut names = entries.collect::<Result<Vec<_>>>()?;
        names.sort();
        assert_eq!(names, ["2_Dense", "model.safetensors"], "{name}");
    }
    Ok(())
}

#[test]
fn what_a_replaced_folder_held_is_not_lost() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let source = dir.path().join("float");
    fs::create_dir(&source)?;
    let float = write_float(&source)?;
    let model = quantized(&float, &QConfigSpec::int8().min_params(0))?;
    let source = Checkpoint::open(&source)?;
    let out = dir.path().join("out");
    checkpoint::save(&model, &source, &out)?;
    fs::create_dir(out.join("notes"))?;
    let error = checkpoint::save(&model, &source, &out).unwrap_err();
    let expected = "expected a folder that holds only files which are replaced, got one with notes, \
                    a folder";
    assert!(error.to_string().ends_with(expected), "{error}");
    fs::remove_dir(out.join("notes"))?;
    fs::remove_file(out.join("model.safetensors"))?;
    fifo(&out.join("model.safetensors"));
    let error = checkpoint::save(&model, &source, &out).unwrap_err();
    assert!(error.to_string().ends_with("model.safetensors, a fifo"), "{error}");
    Ok(())
}

/// A file that is too large is malformed; a path that is not a file could not be read.
#[test]
fn the_limit_of_a_file_is_told_apart_from_its_kind() -> Result<()> {
    let dir = tempfile::tempdir()?;
    write_float(dir.path())?;
    let config = dir.path().join("config.json");
    let message = || Checkpoint::open(dir.path()).unwrap_err().to_string();
    fs::File::create(&config)?.set_len((4 << 20) + 1)?;
    let too_large = "malformed file: expected at most 4194304 bytes, got more";
    assert_eq!(message(), format!("{}: {too_large}", config.display()));
    fs::remove_file(&config)?;
    fifo(&config);
    let no_file = "cannot read: expected a regular file, got a fifo";
    assert_eq!(message(), format!("{}: {no_file}", config.display()));
    Ok(())
}
