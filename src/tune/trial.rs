//! Trials, and the progress that they make.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::criterion::compare;
use super::units::{Assignment, LayerPrecision, Units};

/// A mix of precisions and its accuracy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Trial {
    /// The accuracy that the evaluation returned.
    pub value: f64,
    /// Whether it meets the criterion.
    pub passed: bool,
    /// Bytes of the weights that were tuned, without scales and padding, and for each attention,
    /// which has none, the bytes of one factor: a trial with fewer counts as the faster one.
    pub bytes: usize,
    /// The time of the evaluation, in the earlier run where a history was resumed.
    pub seconds: f64,
    /// Paths of the layers by what they were.
    pub layers: BTreeMap<LayerPrecision, Vec<String>>,
}

impl Trial {
    pub(super) fn new(
        units: &Units,
        assignment: &Assignment,
        (value, seconds): (f64, f64),
        passed: bool,
    ) -> Self {
        let mut layers: BTreeMap<LayerPrecision, Vec<String>> = BTreeMap::new();
        for (unit, precision) in units.0.iter().zip(&assignment.0) {
            layers.entry(*precision).or_default().extend(unit.paths.iter().cloned());
        }
        Self { value, passed, bytes: units.bytes(assignment), seconds, layers }
    }

    /// Whether this trial is better than another. A trial that passes is better than a trial that
    /// does not; of those that pass the one of fewer bytes is better, then the more accurate one;
    /// of the others the more accurate one.
    pub(super) fn is_better(&self, than: &Self, higher_is_better: bool) -> bool {
        let accuracy = compare(higher_is_better, self.value, than.value);
        let bytes = than.bytes.cmp(&self.bytes);
        let order = self.passed.cmp(&than.passed);
        let order =
            order.then(if self.passed { bytes.then(accuracy) } else { accuracy.then(bytes) });
        order.is_gt()
    }
}

/// `int8 20, float16 6`: how many layers are what.
impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (precision, paths)) in self.layers.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{precision} {}", paths.len())?;
        }
        Ok(())
    }
}

/// How far a search is: one more trial has been made.
///
/// `Display` writes a line with a bar, for a terminal.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TuningProgress<'a> {
    /// The trial.
    pub trial: &'a Trial,
    /// Trials until now, this one included.
    pub trials: usize,
    /// How many there will be at most, unless layers have to fall back further than to the first of
    /// the higher precisions.
    pub expected_trials: usize,
    /// The accuracy of the float model.
    pub baseline: f64,
    /// The best trial until now.
    pub best: &'a Trial,
    /// The time until the timeout, or until all expected trials are made.
    pub time_left: Duration,
}

impl fmt::Display for TuningProgress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WIDTH: usize = 20;
        let total = self.expected_trials.max(self.trials);
        let done = WIDTH * self.trials / total;
        let (bar, trials, trial) = ("=".repeat(done), self.trials, self.trial);
        let (value, best, baseline) = (trial.value, self.best.value, self.baseline);
        let met = if self.best.passed { "met" } else { "not met" };
        let seconds = self.time_left.as_secs_f64().ceil();
        write!(f, "[{bar:<WIDTH$}] trial {trials}/{total}, {value:.5} with {trial}")?;
        write!(f, "; best {best:.5} ({met}), baseline {baseline:.5}")?;
        write!(f, "; at most {seconds:.0} s left")
    }
}
