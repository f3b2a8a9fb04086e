//! Why a search ends.

use std::fmt;

use serde::Serialize;

use crate::error::Error;

/// Why a search ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stopped {
    /// A trial meets the criterion, and the timeout is 0: no faster one is looked for.
    CriterionMet,
    /// The maximum number of trials.
    MaxTrials,
    /// The time is over.
    Timeout,
    /// The strategy has nothing else to try.
    Exhausted,
    /// The progress function asked for it.
    Cancelled,
    /// The evaluation of a trial ended with an error, or panicked.
    EvalFailed {
        /// The error.
        message: String,
    },
    /// The history cannot be written, because the disk is full for instance.
    HistoryFailed {
        /// The error.
        message: String,
    },
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CriterionMet => f.write_str("the criterion is met"),
            Self::MaxTrials => f.write_str("max_trials is reached"),
            Self::Timeout => f.write_str("the time is over"),
            Self::Exhausted => f.write_str("the strategy has nothing else to try"),
            Self::Cancelled => f.write_str("it was cancelled"),
            Self::EvalFailed { message } => write!(f, "the evaluation failed: {message}"),
            Self::HistoryFailed { message } => {
                write!(f, "the history cannot be written: {message}")
            }
        }
    }
}

/// The end of a search before its strategy ends.
#[derive(Debug)]
pub(super) enum Halt {
    Stopped(Stopped),
    Error(Error),
}

impl From<Stopped> for Halt {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The result of a step of a search that may be its last.
pub(super) type Step<T = ()> = Result<T, Halt>;
