//! The goal of a search, and the conditions under which it ends.

mod wise;
mod yaml;

use std::path::PathBuf;
use std::time::Duration;

use super::criterion::{Criterion, Goal};
use super::history::HistoryFile;
use super::strategy::Strategy;
use crate::quantize::QConfigSpec;

/// The criterion, strategy and limits of [`tune`](crate::tune()).
///
/// Its defaults are Neural Compressor's: a relative loss of one percent, at most 100 trials,
/// timeout 0; except for the strategy, which is [`Strategy::Sensitivity`], and int8, which is
/// [`QConfigSpec::int8`]. [`from_yaml`](Self::from_yaml) reads Neural Compressor's YAML.
///
/// ```
/// use std::time::Duration;
///
/// use candle_dynquant::{QConfigSpec, TuningConfig, tune::Strategy};
///
/// let config = TuningConfig::default()
///     .relative(0.005)                                  // half a percent may be lost
///     .strategy(Strategy::Basic)
///     .timeout(Duration::from_secs(60))                 // look for a smaller model that long
///     .max_trials(600)
///     .spec(QConfigSpec::int8().exclude("classifier"))  // stays float
///     .history("tune.jsonl");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TuningConfig {
    pub(super) criterion: Criterion,
    pub(super) strategy: Strategy,
    pub(super) timeout: Duration,
    pub(super) max_trials: usize,
    pub(super) spec: QConfigSpec,
    pub(super) history: Option<HistoryFile>,
    pub(super) ignored: Vec<String>,
}

impl Default for TuningConfig {
    fn default() -> Self {
        Self {
            criterion: Criterion::default(),
            strategy: Strategy::default(),
            timeout: Duration::ZERO,
            max_trials: 100,
            spec: QConfigSpec::int8(),
            history: None,
            ignored: Vec::new(),
        }
    }
}

impl TuningConfig {
    /// Accepts the loss of a share of the float model's accuracy: 0.01 is one percent.
    #[must_use]
    pub fn relative(mut self, share: f64) -> Self {
        self.criterion.goal = Goal::Relative(share);
        self
    }

    /// Accepts the loss of a difference, in the unit of the accuracy.
    #[must_use]
    pub fn absolute(mut self, difference: f64) -> Self {
        self.criterion.goal = Goal::Absolute(difference);
        self
    }

    /// The evaluation returns an error, a loss or a perplexity.
    #[must_use]
    pub fn lower_is_better(mut self) -> Self {
        self.criterion.higher_is_better = false;
        self
    }

    /// The order of trials.
    #[must_use]
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// The time for which a smaller model is looked for; 0 stops at the first success. An
    /// evaluation that runs is not interrupted.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The maximum number of trials, not counting the evaluation of the float model. With 1, the
    /// first trial gives the model, whatever its accuracy: Neural Compressor's `performance_only`.
    #[must_use]
    pub fn max_trials(mut self, trials: usize) -> Self {
        self.max_trials = trials;
        self
    }

    /// The layers to be quantized, and how at first. Its other layers stay as they are.
    #[must_use]
    pub fn spec(mut self, spec: QConfigSpec) -> Self {
        self.spec = spec;
        self
    }

    /// Writes each trial to a file of JSON lines. A history that exists is replaced; another file
    /// is an error.
    #[must_use]
    pub fn history(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        self.history = Some(HistoryFile { path, resume: false });
        self
    }

    /// Continues the search of a history: trials in it are not evaluated again. It must be of the
    /// same model and spec; criterion, strategy and limits may be others. Without such a file the
    /// search begins a new one.
    #[must_use]
    pub fn resume(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        self.history = Some(HistoryFile { path, resume: true });
        self
    }

    /// Keys of the file that it was read from that mean nothing here, each with its line and the
    /// reason: ``line 3: `model.name` is ignored: ..``.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }
}
