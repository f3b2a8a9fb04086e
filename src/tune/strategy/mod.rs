//! The order in which a search tries assignments.
//!
//! A strategy is a function that asks for trials and reads their results; it sees neither the model
//! nor a clock, so equal results give equal trials. `?` ends it as soon as the search is to stop.

mod basic;
mod by_kind;
mod sensitivity;
mod trials;

use super::stop::Step;
use super::units::Units;
use crate::words::words;
pub(super) use trials::{Trials, Verdict};

/// The order in which [`tune`](crate::tune()) tries mixes of precisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// Neural Compressor's: all int8; then each layer alone in a higher precision, from output to
    /// input; then those that helped most together, one more at a time. About two trials for each
    /// layer.
    Basic,
    /// Layers ranked by the SQNR of their outputs, on the inputs that the first evaluation gives
    /// them, where an output of ten times the rows counts as 10 dB better; the worst ones fall
    /// back, and a bisection finds how many. About log2(layers) + 3 evaluations.
    #[default]
    Sensitivity,
    /// Neural Compressor's `conservative`: float, to which whole kinds of layers are added as long
    /// as the criterion holds.
    ByKind,
}

words!(Strategy, "strategy", prefix "", {
    Basic => "basic", Sensitivity => "sensitivity", ByKind => "by_kind",
});

impl Strategy {
    /// Tries what there is to try; `ranking` are the units, the worst first.
    pub(super) fn run(self, units: &Units, ranking: &[usize], trials: &mut dyn Trials) -> Step {
        match self {
            Self::Basic => basic::run(units, trials),
            Self::Sensitivity => sensitivity::run(units, ranking, trials),
            Self::ByKind => by_kind::run(units, trials),
        }
    }

    /// How many trials it makes at most where the first fallback suffices.
    pub(super) fn expected_trials(self, units: &Units) -> usize {
        let (starts, fallbacks) = (units.starts().len(), units.fallbacks().len());
        match self {
            Self::Basic => starts + fallbacks * (2 * units.len()).saturating_sub(1),
            Self::Sensitivity => starts + sensitivity::budget(units.len()).saturating_sub(2),
            Self::ByKind => starts + units.kinds().len() * (starts + fallbacks),
        }
    }
}
