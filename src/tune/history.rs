//! A search as a file of JSON lines, which is appended to as it runs and read when it is resumed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use candle_dynquant_io::input;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::trial::Trial;
use super::units::{Assignment, LayerPrecision, Units};
use crate::error::{Error, Fault, Result};
use crate::words::brief;

const VERSION: u32 = 1;
/// The beginning of a history of any version.
const START: &[u8] = b"{\"version\":";
/// Bytes of the longest history: a hundred thousand trials of a hundred layers.
const MAX_BYTES: u64 = 1 << 30;

/// The first line.
#[derive(Serialize, Deserialize)]
pub(super) struct HistoryHeader {
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
struct TrialLine {
    trial: usize,
    value: Box<RawValue>,
    passed: bool,
    seconds: f64,
    layers: BTreeMap<LayerPrecision, Vec<String>>,
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
pub(super) struct EarlierRun {
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
            let io = Error::io("create");
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = input::open_with(path, &mut options).map_err(io)?;
            let mut start = Vec::new();
            let read = (&mut file).take(START.len() as u64).read_to_end(&mut start);
            read.map_err(io)?;
            if !START.starts_with(&start) {
                let expected = "a new file, or a history to replace";
                return Err(Error::argument("history", expected, "another file"));
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
    pub fn resume(path: &Path, model: &str, units: &Units) -> Result<Option<(Self, EarlierRun)>> {
        let read = || -> Result<_> {
            let io = Error::io("read");
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
            let entry = |(unit, db): &(usize, f64)| (units.0[*unit].paths[0].clone(), number(*db));
            ranking.iter().map(entry).collect()
        });
        self.write(&HistoryHeader {
            version: VERSION,
            model: model.to_owned(),
            baseline: number(baseline.value),
            seconds: baseline.seconds,
            ranking,
        })
    }

    pub fn append(&mut self, number_of: usize, trial: &Trial) -> std::io::Result<()> {
        self.write(&TrialLine {
            trial: number_of,
            value: number(trial.value),
            passed: trial.passed,
            seconds: trial.seconds,
            layers: trial.layers.clone(),
        })
    }

    /// Writes a line in one piece, so that it is whole or has no end.
    fn write(&mut self, line: &impl Serialize) -> std::io::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.file.write_all(text.as_bytes())?;
        self.file.flush()
    }
}

/// A number to the last bit; NaN and the infinities as words in quotes.
fn number(value: f64) -> Box<RawValue> {
    let text = if value.is_finite() { format!("{value:?}") } else { format!("\"{value}\"") };
    // Both are JSON.
    RawValue::from_string(text).unwrap_or_default()
}

/// A number as [`number`] writes it.
fn value(line: usize, key: &str, raw: &RawValue) -> Result<f64> {
    let read = match raw.get() {
        "\"NaN\"" => Some(f64::NAN),
        "\"inf\"" => Some(f64::INFINITY),
        "\"-inf\"" => Some(f64::NEG_INFINITY),
        text => text.parse().ok().filter(|value: &f64| value.is_finite()),
    };
    let got = || fault(line, key, &format!("expected a number, got {}", raw.get()));
    read.ok_or_else(got)
}

fn seconds(line: usize, seconds: f64) -> Result<f64> {
    if seconds.is_finite() && seconds >= 0. {
        return Ok(seconds);
    }
    let message = format!("expected a finite number, 0 or more, got {seconds:?}");
    Err(fault(line, "seconds", &message))
}

fn fault(line: usize, key: &str, message: &str) -> Error {
    Error::from(Fault::InvalidConfig {
        line,
        column: 1,
        key: key.to_owned(),
        message: brief(message, 300),
    })
}

/// A line from JSON.
fn read<'a, T: Deserialize<'a>>(line: usize, text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| {
        let message = e.to_string();
        let message = message.rsplit_once(" at line ").map_or(&*message, |(m, _)| m);
        Error::from(Fault::InvalidConfig {
            line,
            column: e.column().max(1),
            key: String::new(),
            message: brief(&format!("malformed history: {message}"), 300),
        })
    })
}

/// The unit of each layer, for lists of a history in which every layer of a unit comes once.
struct UnitsByPath<'a> {
    units: &'a Units,
    by_path: HashMap<&'a str, usize>,
}

impl<'a> UnitsByPath<'a> {
    fn new(units: &'a Units) -> Self {
        let units_of_paths = (units.0.iter().enumerate())
            .flat_map(|(i, unit)| unit.paths.iter().map(move |path| (path.as_str(), i)));
        Self { by_path: units_of_paths.collect(), units }
    }

    fn unit(&self, line: usize, key: &str, path: &str) -> Result<usize> {
        let unknown = || {
            let path = brief(path, 200);
            let message = format!("expected a layer of the model, got {path:?}");
            fault(line, key, &message)
        };
        self.by_path.get(path).copied().ok_or_else(unknown)
    }

    /// All units, in the order of the ranking.
    fn ranking(&self, ranking: &[(String, Box<RawValue>)]) -> Result<Vec<(usize, f64)>> {
        let mut seen = HashSet::new();
        let mut read = Vec::with_capacity(ranking.len());
        for (i, (path, db)) in ranking.iter().enumerate() {
            let key = format!("ranking[{i}]");
            let unit = self.unit(1, &key, path)?;
            let db = value(1, &key, db)?;
            if db.is_nan() {
                return Err(fault(1, &key, "expected decibels, got NaN"));
            }
            if !seen.insert(unit) {
                let message = format!("expected each layer once, got {path:?} again");
                return Err(fault(1, &key, &message));
            }
            read.push((unit, db));
        }
        let missing = (0..self.units.len()).find(|unit| !seen.contains(unit));
        match missing {
            None => Ok(read),
            Some(unit) => Err(self.missing(1, "ranking", &self.units.0[unit].paths[0])),
        }
    }

    /// A precision for each unit, which all its layers have.
    fn assignment(
        &self,
        line: usize,
        layers: &BTreeMap<LayerPrecision, Vec<String>>,
    ) -> Result<Assignment> {
        let mut precisions = vec![None; self.units.len()];
        let mut seen = HashSet::new();
        for (precision, paths) in layers {
            let key = format!("layers.{precision}");
            for path in paths {
                let unit = self.unit(line, &key, path)?;
                if !seen.insert(path.as_str()) {
                    let message = format!("expected each layer once, got {path:?} again");
                    return Err(fault(line, &key, &message));
                }
                let possible = &self.units.0[unit].precisions;
                let others = *precisions[unit].get_or_insert(*precision);
                if others != *precision || !possible.contains(precision) {
                    let message = format!("expected a precision that {path:?} can have");
                    return Err(fault(line, &key, &message));
                }
            }
        }
        let paths = self.units.0.iter().flat_map(|unit| &unit.paths);
        match paths.into_iter().find(|path| !seen.contains(path.as_str())) {
            None => Ok(Assignment(precisions.into_iter().flatten().collect())),
            Some(path) => Err(self.missing(line, "layers", path)),
        }
    }

    fn missing(&self, line: usize, key: &str, path: &str) -> Error {
        let message = format!("expected every layer of the model, got none called {path:?}");
        fault(line, key, &message)
    }
}

fn parse(text: &str, model: &str, units: &Units) -> Result<EarlierRun> {
    let mut lines = text.lines().zip(1..);
    let header = lines.next().map_or("", |(line, _)| line);
    let header: HistoryHeader = read(1, header)?;
    if header.version != VERSION {
        let got = header.version;
        let message = format!("expected a history of version {VERSION}, got {got}");
        return Err(fault(1, "version", &message));
    }
    if header.model != model {
        let got = brief(&header.model, 100);
        let message = format!("expected the history of this model and spec, {model}, got {got}");
        return Err(fault(1, "model", &message));
    }
    let layers = UnitsByPath::new(units);
    let baseline = value(1, "baseline", &header.baseline)?;
    if !baseline.is_finite() {
        let message = format!("expected a finite number, got {baseline}");
        return Err(fault(1, "baseline", &message));
    }
    let ranking = header.ranking.map(|ranking| layers.ranking(&ranking));
    let baseline = Baseline {
        value: baseline,
        seconds: seconds(1, header.seconds)?,
        ranking: ranking.transpose()?,
    };
    let mut trials = HashMap::new();
    for (line, at) in lines {
        let line: TrialLine = read(at, line)?;
        // A search that is resumed with another strategy counts its own trials.
        let most = trials.len() + 1;
        if !(1..=most).contains(&line.trial) {
            let message = format!("expected a number from 1 to {most}, got {}", line.trial);
            return Err(fault(at, "trial", &message));
        }
        let measured = (value(at, "value", &line.value)?, seconds(at, line.seconds)?);
        let assignment = layers.assignment(at, &line.layers)?;
        if trials.insert(assignment, measured).is_some() {
            let message = "expected a mix of precisions that no line before has";
            return Err(fault(at, "layers", message));
        }
    }
    Ok(EarlierRun { baseline, trials })
}

/// The file that a search writes its history to, and whether it continues one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HistoryFile {
    pub path: PathBuf,
    pub resume: bool,
}
