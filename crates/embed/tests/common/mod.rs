//! The folders of fixtures, and the comparison of numbers.

#![allow(dead_code, reason = "each test uses some")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_dynquant::checkpoint::{Plan, quantize};
use candle_dynquant::{Checkpoint, QConfigSpec};
use dynquant_embed::{Options, Preset};
use serde::de::DeserializeOwned;

/// The values of a file of a fixture.
pub fn read<T: DeserializeOwned>(name: &str, file: &str) -> Result<T> {
    let text = fs::read_to_string(folder(name).join(file))?;
    Ok(serde_json::from_str(&text)?)
}

pub fn folder(name: &str) -> PathBuf {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/reference/encoders");
    assets.join(name)
}

pub fn float() -> Options {
    Options::new().preset(Preset::NONE)
}

/// Checks that values agree within 1e-4 of the greatest number.
pub fn check(what: &str, got: &[Vec<f32>], expected: &[Vec<f32>]) -> Result<()> {
    ensure!(got.len() == expected.len(), "{what}: {} answers", got.len());
    let max = expected.iter().flatten().fold(1f32, |max, x| max.max(x.abs()));
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        ensure!(got.len() == expected.len(), "{what}, text {index}: {} numbers", got.len());
        let far = got
            .iter()
            .zip(expected)
            .find(|(a, b)| (*a - *b).abs().total_cmp(&(1e-4 * max)).is_gt());
        ensure!(far.is_none(), "{what}, text {index}: {far:?}");
    }
    Ok(())
}

/// Copies a fixture to a folder.
pub fn copy(name: &str, to: &Path) -> Result<()> {
    fn copy_all(from: &Path, to: &Path) -> Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            if from.is_dir() {
                copy_all(&from, &to)?;
            } else {
                fs::copy(from, to)?;
            }
        }
        Ok(())
    }
    copy_all(&folder(name), to)
}

/// A copy of a fixture with another text in a file.
pub fn edited(name: &str, file: &str, [from, to]: [&str; 2]) -> Result<tempfile::TempDir> {
    let out = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    copy(name, out.path())?;
    let path = out.path().join(file);
    let mut bytes = fs::read(&path)?;
    let mut windows = bytes.windows(from.len());
    let at = windows.position(|it| it == from.as_bytes());
    let at = at.with_context(|| format!("{file}: {from}"))?;
    bytes.splice(at..at + from.len(), to.bytes());
    fs::write(path, bytes)?;
    Ok(out)
}

/// The text of an error; none of an answer.
pub fn fault<T>(result: Result<T>) -> String {
    result.err().map_or_else(String::new, |error| format!("{error:#}"))
}

/// A folder with a fixture in int8, as `dynquant quantize` writes it.
pub fn quantized(name: &str) -> Result<(tempfile::TempDir, PathBuf)> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let out = dir.path().join(name);
    let source = Checkpoint::open(folder(name))?;
    let plan = Plan::new(&source, &QConfigSpec::int8(), &[], &[])?;
    quantize(&source, &plan, &out, |_| ())?;
    Ok((dir, out))
}
