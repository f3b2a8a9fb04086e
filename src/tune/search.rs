//! A search as it runs: installs what a strategy proposes, evaluates it, and keeps the best.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::candidates::Candidates;
use super::config::TuningConfig;
use super::criterion::compare;
use super::history::{Baseline, History};
use super::stop::{Halt, Step, Stopped};
use super::strategy::{Trials, Verdict};
use super::trial::{Trial, TuningProgress};
use super::units::Assignment;
use crate::module::Quantizable;

/// A user's evaluation, whose errors are texts from here on.
pub(super) type Eval<'a, M> = &'a mut dyn FnMut(&M) -> Result<f64, String>;

/// A user's function that is called after each trial.
pub(super) type Tell<'a> = &'a mut dyn FnMut(&TuningProgress<'_>) -> ControlFlow<()>;

pub(super) struct Search<'a, M: Quantizable + ?Sized> {
    pub model: &'a mut M,
    pub config: &'a TuningConfig,
    pub candidates: Candidates,
    pub baseline: Baseline,
    pub eval: Eval<'a, M>,
    pub tell: Tell<'a>,
    pub history: Option<History>,
    /// Results of an earlier run.
    pub recorded: HashMap<Assignment, (f64, f64)>,
    pub trials: Vec<(Assignment, Trial)>,
    /// Index of the best trial.
    pub best: Option<usize>,
    /// Calls of eval.
    pub evals: usize,
    pub started: Instant,
}

/// Calls `eval` once; its errors and panics are a reason to stop.
pub(super) fn evaluate<M: ?Sized>(eval: Eval<'_, M>, model: &M) -> Result<f64, Stopped> {
    match catch_unwind(AssertUnwindSafe(|| eval(model))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(message)) => Err(Stopped::EvalFailed { message }),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let message = format!("it panicked: {}", text.as_deref().unwrap_or("no message"));
            Err(Stopped::EvalFailed { message })
        }
    }
}

impl<M: Quantizable + ?Sized> Search<'_, M> {
    /// The value of an assignment and the seconds it took.
    fn measure(&mut self, assignment: &Assignment) -> Step<(f64, f64)> {
        if let Some(known) = self.recorded.get(assignment) {
            return Ok(*known);
        }
        let timeout = self.config.timeout;
        if !timeout.is_zero() && self.started.elapsed() >= timeout {
            return Err(Stopped::Timeout.into());
        }
        self.candidates.install(self.model, assignment)?;
        let started = Instant::now();
        self.evals += 1;
        let value = evaluate(self.eval, self.model)?;
        Ok((value, started.elapsed().as_secs_f64()))
    }

    /// Evaluates and records an assignment, unless it was before.
    fn make(&mut self, assignment: &Assignment) -> Step<Verdict> {
        let known = self.trials.iter().find(|(a, _)| a == assignment);
        if let Some((_, trial)) = known {
            return Ok(Verdict { value: trial.value, passed: trial.passed });
        }
        if self.trials.len() >= self.config.max_trials {
            return Err(Stopped::MaxTrials.into());
        }
        let measured = self.measure(assignment)?;
        let value = measured.0;
        let passed = self.config.criterion.accepts(self.baseline.value, value);
        let trial = Trial::new(&self.candidates.units, assignment, measured, passed);
        let is_new = !self.recorded.contains_key(assignment);
        self.trials.push((assignment.clone(), trial));
        let last = self.trials.len() - 1;
        let higher_is_better = self.config.criterion.higher_is_better;
        let is_better = |best: usize| {
            let [new, best] = [last, best].map(|index| &self.trials[index].1);
            new.is_better(best, higher_is_better)
        };
        if self.best.is_none_or(is_better) {
            self.best = Some(last);
        }
        if let Some(history) = self.history.as_mut().filter(|_| is_new)
            && let Err(error) = history.append(last + 1, &self.trials[last].1)
        {
            let message = error.to_string();
            return Err(Stopped::HistoryFailed { message }.into());
        }
        self.tell()?;
        Ok(Verdict { value, passed })
    }

    fn tell(&mut self) -> Step {
        let trials = self.trials.len();
        let expected = self.config.strategy.expected_trials(&self.candidates.units);
        let expected_trials = expected.min(self.config.max_trials);
        let elapsed = self.started.elapsed();
        let seconds: f64 = self.trials.iter().map(|(_, trial)| trial.seconds).sum();
        let seconds = seconds / trials as f64 * expected_trials.saturating_sub(trials) as f64;
        let until_done = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let timeout = self.config.timeout;
        let (Some((_, trial)), Some(best)) = (self.trials.last(), self.best) else {
            return Ok(());
        };
        let progress = TuningProgress {
            trial,
            trials,
            expected_trials,
            baseline: self.baseline.value,
            best: &self.trials[best].1,
            time_left: if timeout.is_zero() {
                until_done
            } else {
                until_done.min(timeout.saturating_sub(elapsed))
            },
        };
        match (self.tell)(&progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stopped::Cancelled.into()),
        }
    }

    /// Whether a trial that meets the criterion was found.
    pub fn met(&self) -> bool {
        self.best.is_some_and(|best| self.trials[best].1.passed)
    }
}

impl<M: Quantizable + ?Sized> Trials for Search<'_, M> {
    fn trial(&mut self, assignment: &Assignment) -> Step<Verdict> {
        let verdict = self.make(assignment)?;
        if verdict.passed && self.stops_at_first() {
            Err(Halt::Stopped(Stopped::CriterionMet))
        } else {
            Ok(verdict)
        }
    }

    fn probe(&mut self, assignment: &Assignment) -> Step<Verdict> {
        self.make(assignment)
    }

    fn evals(&self) -> usize {
        // The float model is evaluated before.
        self.trials.len() + 1
    }

    fn stops_at_first(&self) -> bool {
        self.config.timeout.is_zero()
    }

    fn compare(&self, a: f64, b: f64) -> Ordering {
        compare(self.config.criterion.higher_is_better, a, b)
    }
}
