//! Trials, as a strategy asks for them.

use std::cmp::Ordering;

use crate::tune::stop::Step;
use crate::tune::units::{Assignment, Units};

/// The result of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    pub value: f64,
    pub passed: bool,
}

/// Evaluates assignments, each once.
pub trait Trials {
    /// Evaluates a candidate. With `timeout: 0` the search ends at the first that passes.
    fn trial(&mut self, assignment: &Assignment) -> Step<Verdict>;
    /// Evaluates a trial on the way to a candidate.
    fn probe(&mut self, assignment: &Assignment) -> Step<Verdict>;
    /// Calls of eval until now, the float model's included.
    fn evals(&self) -> usize;
    /// Whether the first success ends the search.
    fn stops_at_first(&self) -> bool;
    /// Orders two accuracies, the better one greater.
    fn compare(&self, a: f64, b: f64) -> Ordering;
}

/// The assignment to start from, the best of those without fallback, or `None` if one passes: none
/// of the others is cheaper.
pub fn start(units: &Units, trials: &mut dyn Trials) -> Step<Option<Assignment>> {
    let mut best: Option<(Assignment, f64)> = None;
    for precision in units.starts() {
        let assignment = units.uniform(precision);
        let verdict = trials.trial(&assignment)?;
        if verdict.passed {
            return Ok(None);
        }
        let better = |(_, value): &(_, f64)| trials.compare(verdict.value, *value).is_ge();
        if best.as_ref().is_none_or(better) {
            best = Some((assignment, verdict.value));
        }
    }
    Ok(best.map(|(assignment, _)| assignment))
}
