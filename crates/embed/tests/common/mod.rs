//! The folders of fixtures, and the comparison of numbers.

#![allow(dead_code, reason = "each test uses some")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_dynquant::checkpoint::quantize;
use candle_dynquant::{Checkpoint, QConfigSpec};
use dynquant_embed::{Options, Preset};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

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
        let mut pairs = got.iter().zip(expected);
        let far = pairs.find(|(a, b)| (*a - *b).abs().total_cmp(&(1e-4 * max)).is_gt());
        ensure!(far.is_none(), "{what}, text {index}: {far:?}");
    }
    Ok(())
}

/// A copy of a folder, which can be changed.
pub fn copied(from: &Path) -> Result<TempDir> {
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
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    copy_all(from, dir.path())?;
    Ok(dir)
}

/// A copy of a fixture with another text in a file.
pub fn edited(name: &str, file: &str, [from, to]: [&str; 2]) -> Result<TempDir> {
    edited_at(&folder(name), file, [from, to])
}

/// A copy of a folder with another text in a file.
pub fn edited_at(folder: &Path, file: &str, [from, to]: [&str; 2]) -> Result<TempDir> {
    let out = copied(folder)?;
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

/// Checks that an answer is refused with a text, and returns the error.
#[track_caller]
pub fn refused<T>(result: Result<T>, expected: &str) -> String {
    let error = fault(result);
    assert!(!error.is_empty() && error.contains(expected), "expected {expected}, got {error}");
    error
}

/// A folder with a fixture in int8, as `dynquant quantize` writes it.
pub fn quantized(name: &str) -> Result<(TempDir, PathBuf)> {
    quantized_by(&folder(name), &QConfigSpec::int8())
}

/// A folder with a quantized copy of another.
pub fn quantized_by(folder: &Path, spec: &QConfigSpec) -> Result<(TempDir, PathBuf)> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let out = dir.path().join("quantized");
    let source = Checkpoint::open(folder)?;
    quantize(&source, spec, &out, |_| ())?;
    Ok((dir, out))
}

/// Checks that values have a signal to noise ratio above 25 dB.
pub fn check_int8(what: &str, expected: &[Vec<f32>], got: &[Vec<f32>]) -> Result<()> {
    let (mut signal, mut noise) = (0., 0.);
    for (a, b) in expected.iter().flatten().zip(got.iter().flatten()) {
        signal += f64::from(a * a);
        noise += f64::from((a - b) * (a - b));
    }
    let sqnr = 10. * (signal / noise).log10();
    ensure!(sqnr > 25., "{what}: {sqnr:.1} dB");
    Ok(())
}
