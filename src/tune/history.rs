//! A search as a file of JSON lines, which is appended to as it runs and read when it is resumed.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use candle_dynquant_io::input;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::trial::Trial;
use super::units::{Assignment, Precision, Units};
use crate::error::{Error, Result};

const VERSION: u32 = 1;
/// The beginning of a history of any version.
const START: &[u8] = b"{\"version\":";
/// Bytes of the longest history: a hundred thousand trials of a hundred layers.
const MAX_BYTES: u64 = 1 << 30;

/// The first line.
#[derive(Serialize, Deserialize)]
pub(super) struct Header {
    version: u32,
    model: String,
    baseline: Box<RawValue>,
    seconds: f64,
    /// Paths of the layers, the most sensitive first, with their SQNR.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ranking: Option<Vec<(String, Box<RawValue>)>>,
}

/// Any other line.
#[derive(Serialize, Deserialize)]
struct Line {
    trial: usize,
    value: Box<RawValue>,
    passed: bool,
    seconds: f64,
    layers: BTreeMap<Precision, Vec<String>>,
}

/// The measurements before the first trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Baseline {
    pub value: f64,
    pub seconds: f64,
    /// The units, the most sensitive first, with their SQNR in dB.
    pub ranking: Option<Vec<(usize, f64)>>,
}

/// The records of an earlier run.
pub(super) struct Recorded {
    pub baseline: Baseline,
    /// Value and seconds of each assignment.
    pub trials: HashMap<Assignment, (f64, f64)>,
}

pub(super) struct History {
    file: File,
}

impl History {
    /// A new file; a history that exists is replaced, and no other file.
    pub fn create(path: &Path) -> Result<Self> {
        let create = || -> Result<_> {
            let io = |error| Error::Io {
                action: "create",
                error,
            };
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = input::open_with(path, &mut options).map_err(io)?;
            let mut start = Vec::new();
            let read = (&mut file).take(START.len() as u64).read_to_end(&mut start);
            read.map_err(io)?;
            if !START.starts_with(&start) {
                return Err(Error::InvalidArgument {
                    what: "history",
                    expected: "a new file, or a history to replace".into(),
                    got: "another file".into(),
                });
            }
            file.set_len(0).map_err(io)?;
            file.rewind().map_err(io)?;
            Ok(Self { file })
        };
        create().map_err(|e| e.in_file(path))
    }

    /// Reads a file and opens it to be continued; `None` if there is none, or nothing in it.
    ///
    /// A last line without an end was being written when the run was stopped, and is cut off.
    pub fn resume(path: &Path, model: &str, units: &Units) -> Result<Option<(Self, Recorded)>> {
        let read = || -> Result<_> {
            let io = |error| Error::Io {
                action: "read",
                error,
            };
            let mut options = OpenOptions::new();
            let mut file = match input::open_with(path, options.read(true).write(true)) {
                Ok(file) => file,
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(io(e)),
            };
            let bytes = input::within(&mut file, MAX_BYTES).map_err(io)?;
            let utf8 = |e| io(std::io::Error::new(ErrorKind::InvalidData, e));
            let text = String::from_utf8(bytes).map_err(utf8)?;
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            if whole == 0 {
                return Ok(None);
            }
            let recorded = parse(&text[..whole], model, units)?;
            file.set_len(whole as u64).map_err(io)?;
            file.seek(SeekFrom::End(0)).map_err(io)?;
            Ok(Some((Self { file }, recorded)))
        };
        read().map_err(|e| e.in_file(path))
    }

    pub fn begin(
        &mut self,
        model: &str,
        baseline: &Baseline,
        units: &Units,
    ) -> std::io::Result<()> {
        let ranking = baseline.ranking.as_ref().map(|ranking| {
            let of = |(unit, db): &(usize, f64)| (units.0[*unit].paths[0].clone(), number(*db));
            ranking.iter().map(of).collect()
        });
        self.write(&Header {
            version: VERSION,
            model: model.to_owned(),
            baseline: number(baseline.value),
            seconds: baseline.seconds,
            ranking,
        })
    }

    pub fn append(&mut self, number_of: usize, trial: &Trial) -> std::io::Result<()> {
        self.write(&Line {
            trial: number_of,
            value: number(trial.value),
            passed: trial.passed,
            seconds: trial.seconds,
            layers: trial.layers.clone(),
        })
    }

    /// In one piece, so that a line is whole or has no end.
    fn write(&mut self, line: &impl Serialize) -> std::io::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.file.write_all(text.as_bytes())?;
        self.file.flush()
    }
}

/// A number to the last bit; NaN and the infinities as words in quotes.
fn number(value: f64) -> Box<RawValue> {
    let text = match value.is_finite() {
        true => format!("{value:?}"),
        false => format!("\"{value}\""),
    };
    // Both are JSON.
    RawValue::from_string(text).unwrap_or_default()
}

fn value(raw: &RawValue) -> Option<f64> {
    raw.get().trim_matches('"').parse().ok()
}

fn parse(text: &str, model: &str, units: &Units) -> Result<Recorded> {
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let fault = |line: usize, column: usize, message: String| Error::InvalidConfig {
        line,
        column,
        key: String::new(),
        message,
    };
    let malformed = |line: usize, e: &serde_json::Error| {
        let message = e.to_string();
        let message = message
            .rsplit_once(" at line ")
            .map_or(&*message, |(m, _)| m);
        fault(
            line,
            e.column().max(1),
            format!("malformed history: {message}"),
        )
    };
    let number = |line: usize, raw: &RawValue| {
        let got = || fault(line, 1, format!("expected a number, got {}", raw.get()));
        value(raw).ok_or_else(got)
    };
    let header = lines.next().map_or("", |(_, line)| line);
    let header: Header = serde_json::from_str(header).map_err(|e| malformed(1, &e))?;
    if header.version != VERSION {
        let got = header.version;
        return Err(fault(
            1,
            1,
            format!("expected a history of version {VERSION}, got {got}"),
        ));
    }
    if header.model != model {
        let got = header.model;
        let message = format!("expected the history of this model and spec, {model}, got {got}");
        return Err(fault(1, 1, message));
    }
    let by_path: HashMap<&str, usize> = (units.0.iter().enumerate())
        .flat_map(|(i, unit)| unit.paths.iter().map(move |path| (path.as_str(), i)))
        .collect();
    let unit = |line: usize, path: &str| {
        let unknown = || {
            fault(
                line,
                1,
                format!("expected a layer of the model, got {path:?}"),
            )
        };
        by_path.get(path).copied().ok_or_else(unknown)
    };
    let ranking = header.ranking.map(|ranking| {
        let read = |(path, db): (String, Box<RawValue>)| Ok((unit(1, &path)?, number(1, &db)?));
        ranking.into_iter().map(read).collect::<Result<Vec<_>>>()
    });
    let baseline = Baseline {
        value: number(1, &header.baseline)?,
        seconds: header.seconds,
        ranking: ranking.transpose()?,
    };
    let mut trials = HashMap::new();
    for (at, line) in lines {
        let line: Line = serde_json::from_str(line).map_err(|e| malformed(at, &e))?;
        let mut precisions = vec![None; units.len()];
        for (precision, paths) in &line.layers {
            for path in paths {
                precisions[unit(at, path)?] = Some(*precision);
            }
        }
        let all: Option<Vec<_>> = precisions.into_iter().collect();
        let Some(all) = all else {
            return Err(fault(at, 1, "expected a precision for every layer".into()));
        };
        trials.insert(Assignment(all), (number(at, &line.value)?, line.seconds));
    }
    Ok(Recorded { baseline, trials })
}

/// Where a search writes its history, and whether it continues one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub path: PathBuf,
    pub resume: bool,
}
