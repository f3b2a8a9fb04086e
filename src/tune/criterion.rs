//! The accept rule.

use std::cmp::Ordering;

use serde::Serialize;

use crate::error::{Error, Result};

/// The accuracy that may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// A share of the baseline: 0.01 is one percent. Less than 1; below 0 it asks for a gain.
    Relative(f64),
    /// A difference, in the unit of the accuracy.
    Absolute(f64),
}

/// Which accuracy passes, given the float model's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Criterion {
    /// The loss that is accepted.
    pub goal: Goal,
    /// Whether a higher accuracy is a better one: `false` for a loss or a perplexity.
    pub higher_is_better: bool,
}

/// Orders two accuracies, the better one greater; NaN is less than all others.
pub(super) fn compare(higher_is_better: bool, a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) if higher_is_better => a.total_cmp(&b),
        (false, false) => b.total_cmp(&a),
    }
}

/// Neural Compressor's default: one percent.
impl Default for Criterion {
    fn default() -> Self {
        Self { goal: Goal::Relative(0.01), higher_is_better: true }
    }
}

impl Criterion {
    /// The worst accuracy that passes. The slack is `goal * |baseline|`, so a negative baseline has
    /// one too.
    pub fn target(&self, baseline: f64) -> f64 {
        let slack = match self.goal {
            Goal::Relative(share) => share * baseline.abs(),
            Goal::Absolute(difference) => difference,
        };
        if self.higher_is_better { baseline - slack } else { baseline + slack }
    }

    /// Whether `value` is as good as the target or better; NaN is not.
    pub fn accepts(&self, baseline: f64, value: f64) -> bool {
        let target = self.target(baseline);
        if self.higher_is_better { value >= target } else { value <= target }
    }

    pub(super) fn check(&self) -> Result<()> {
        let (what, expected, valid, goal) = match self.goal {
            Goal::Relative(g) => ("relative goal", "between -1 and 1", g.abs() < 1., g),
            Goal::Absolute(g) => ("absolute goal", "a finite number", g.is_finite(), g),
        };
        if valid { Ok(()) } else { Err(Error::argument(what, expected, goal)) }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::{Criterion, Goal, compare};

    #[test]
    fn the_better_accuracy_is_the_greater_one() {
        for (higher_is_better, better, worse) in
            [(true, 2., 1.), (false, 1., 2.), (true, 1., f64::NAN), (false, 1., f64::NAN)]
        {
            let order = |a, b| compare(higher_is_better, a, b);
            assert_eq!(order(better, worse), Ordering::Greater);
            assert_eq!(order(worse, better), Ordering::Less);
            assert_eq!(order(worse, worse), Ordering::Equal);
        }
    }

    #[test]
    fn the_goal_is_a_share_or_a_difference() {
        let criterion = |goal, higher_is_better| Criterion { goal, higher_is_better };
        let accuracy = criterion(Goal::Relative(0.01), true);
        assert!(accuracy.accepts(0.80, 0.792) && !accuracy.accepts(0.80, 0.791));
        assert!(!accuracy.accepts(0.80, f64::NAN));
        let error = criterion(Goal::Absolute(0.5), false);
        assert!(error.accepts(2., 2.5) && !error.accepts(2., 2.6));
    }
}
