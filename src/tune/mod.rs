//! Accuracy-driven tuning: the smallest mix of precisions that meets an accuracy criterion.
//!
//! This is Neural Compressor's documented loop, its YAML included, in one process: every layer is
//! quantized once, in each precision, and a trial only moves layers, so it costs one evaluation.
//!
//! # When a search ends
//! | `timeout` | the search |
//! |---|---|
//! | 0 | ends at the first success; of [`Strategy::Sensitivity`] that is the end of its bisection |
//! | more | goes on to look for a smaller model, until the time is over or nothing is left to try |
//!
//! It also ends after `max_trials`, if the progress function says so, and where an evaluation or
//! the history fails. The model is then the best one found: the smallest one that passes, or else
//! the most accurate one.
//!
//! # Results that can be repeated
//! No strategy draws random numbers or reads a clock, and trials are compared by accuracy and
//! bytes: if the evaluation is deterministic, so are trials and result, on any number of threads.
//! Only a timeout may cut them short.

mod candidates;
mod config;
mod criterion;
mod history;
mod outcome;
mod search;
mod stop;
mod strategy;
mod trial;
mod units;

use std::fmt;
use std::ops::ControlFlow;
use std::time::Instant;

pub use config::TuningConfig;
pub use outcome::{TunedLayer, TuningOutcome};
pub use stop::Stopped;
pub use strategy::Strategy;
pub use trial::{Trial, TuningProgress};
pub use units::LayerPrecision;

use crate::error::{Error, Result};
use crate::inspect::{self, Deviation};
use crate::module::Quantizable;
use candidates::Candidates;
use history::{Baseline, EarlierRun, History};
use search::{Eval, Search, evaluate};
use stop::{Halt, Stopped as Stop};

/// Quantizes `model` to the smallest mix of precisions that meets an accuracy criterion, and leaves
/// it as the best mix found.
///
/// `eval` returns the accuracy of the model, in any unit; it is called once for the float model and
/// once for each trial. Layers fall back from int8, as `config` says, to half-precision weights,
/// and then to float. While the search runs, each layer is kept in every precision: about 1.75
/// times the memory of the float weights. To keep the float model afterwards, tune a clone.
///
/// ```
/// use candle_core::{Device, Module, Tensor};
/// use candle_dynquant::{nn, tune, TuningConfig, Quantizable};
///
/// #[derive(Quantizable, Clone)]
/// struct Mlp { up: nn::Linear, down: nn::Linear }
///
/// # let linear = |o: usize, i: usize| -> candle_core::Result<nn::Linear> {
/// #     Ok(nn::Linear::new(Tensor::randn(0f32, 0.1, (o, i), &Device::Cpu)?, None))
/// # };
/// let float = Mlp { up: linear(64, 32)?, down: linear(32, 64)? };
/// let xs = Tensor::randn(0f32, 1., (16, 32), &Device::Cpu)?;
/// let run = |m: &Mlp| m.down.forward(&m.up.forward(&xs)?.relu()?);
/// let expected = run(&float)?;
/// // The mean square error, which must not exceed the float model's by 1e-7.
/// let error = |m: &Mlp| (run(m)? - &expected)?.sqr()?.mean_all()?.to_scalar::<f32>().map(f64::from);
///
/// let mut model = float.clone();
/// let config = TuningConfig::default().absolute(1e-7).lower_is_better();
/// let outcome = tune(&mut model, &config, error)?;
/// println!("{outcome}"); // Neural Compressor's two tables, the layers, and why it stopped
/// assert!(outcome.met && error(&model)? <= 1e-7);
/// # Ok::<(), candle_dynquant::Error>(())
/// ```
///
/// # Errors
/// As [`quantize_dynamic`](crate::quantize_dynamic); when the float model cannot be evaluated, or
/// to no finite number; when a history cannot be read or created. The model is then as it was. A
/// later failure, of an evaluation for example, ends the search: it is in
/// [`TuningOutcome::stopped`], and the model is the best one until then.
pub fn tune<M, E>(
    model: &mut M,
    config: &TuningConfig,
    eval: impl FnMut(&M) -> Result<f64, E>,
) -> Result<TuningOutcome>
where
    M: Quantizable + ?Sized,
    E: fmt::Display,
{
    tune_with(model, config, eval, |_| ControlFlow::Continue(()))
}

/// [`tune`](tune()) that calls `progress` after each trial. [`ControlFlow::Break`] ends the search,
/// with the best model found.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::{nn, tune, TuningConfig};
///
/// let weight = Tensor::randn(0f32, 1., (64, 32), &Device::Cpu)?;
/// let mut model = nn::Linear::new(weight, None);
/// let eval = |_: &nn::Linear| candle_core::Result::Ok(0.5);
/// let outcome = tune::tune_with(&mut model, &TuningConfig::default(), eval, |progress| {
///     eprintln!("{progress}"); // [====    ] trial 1/4, .. best .., baseline .., at most 3 s left
///     ControlFlow::Continue(())
/// })?;
/// assert!(outcome.met && outcome.layers[0].precision == tune::LayerPrecision::Int8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`tune`](tune()).
pub fn tune_with<M, E>(
    model: &mut M,
    config: &TuningConfig,
    mut eval: impl FnMut(&M) -> Result<f64, E>,
    mut progress: impl FnMut(&TuningProgress<'_>) -> ControlFlow<()>,
) -> Result<TuningOutcome>
where
    M: Quantizable + ?Sized,
    E: fmt::Display,
{
    config.criterion.check()?;
    let started = Instant::now();
    let candidates = Candidates::new(model, &config.spec)?;
    // With the alternate form, anyhow's errors give their causes.
    let mut eval = |model: &M| eval(model).map_err(|error| format!("{error:#}"));
    let mut evals = 0;
    let (history, earlier) = open_history(config, &candidates)?;
    let (known, recorded) = earlier.map(|e| (e.baseline, e.trials)).unzip();
    let begins = known.is_none();
    let ranks = config.strategy == Strategy::Sensitivity;
    let baseline = match known {
        Some(baseline) if !ranks || baseline.ranking.is_some() => baseline,
        _ => {
            evals += 1;
            measure_float(model, &candidates, ranks, &mut eval)?
        }
    };
    let mut search = Search {
        model,
        config,
        candidates,
        baseline,
        eval: &mut eval,
        tell: &mut progress,
        history,
        recorded: recorded.unwrap_or_default(),
        trials: Vec::new(),
        best: None,
        evals,
        started,
    };
    let stopped = match run(&mut search, begins) {
        Ok(()) if search.met() && config.timeout.is_zero() => Stop::CriterionMet,
        Ok(()) => Stop::Exhausted,
        Err(Halt::Stopped(stopped)) => stopped,
        Err(Halt::Error(error)) => return Err(error),
    };
    let best = match search.best {
        Some(best) => search.trials[best].0.clone(),
        None => search.candidates.units.uniform(LayerPrecision::Float),
    };
    search.candidates.install(search.model, &best)?;
    TuningOutcome::new(search, stopped)
}

/// The history that is wanted, if any, and what an earlier run left in it.
fn open_history(
    config: &TuningConfig,
    candidates: &Candidates,
) -> Result<(Option<History>, Option<EarlierRun>)> {
    let Some(place) = &config.history else {
        return Ok((None, None));
    };
    if place.resume {
        let (model, units) = (&candidates.fingerprint, &candidates.units);
        if let Some((history, earlier)) = History::resume(&place.path, model, units)? {
            return Ok((Some(history), Some(earlier)));
        }
    }
    Ok((Some(History::create(&place.path)?), None))
}

/// Makes the trials of the strategy; `begins` a history that has nothing in it.
fn run<M: Quantizable + ?Sized>(search: &mut Search<'_, M>, begins: bool) -> Result<(), Halt> {
    let units = search.candidates.units.clone();
    if let Some(history) = search.history.as_mut().filter(|_| begins)
        && let Err(error) = history.begin(&search.candidates.fingerprint, &search.baseline, &units)
    {
        let message = error.to_string();
        return Err(Stop::HistoryFailed { message }.into());
    }
    let ranking = search.baseline.ranking.iter().flatten();
    let ranking: Vec<usize> = ranking.map(|(unit, _)| *unit).collect();
    search.config.strategy.run(&units, &ranking, search)
}

/// Evaluates the float model and, if wanted, ranks the units by how much quantizing each of them
/// changes its output.
fn measure_float<M: Quantizable + ?Sized>(
    model: &mut M,
    candidates: &Candidates,
    ranks: bool,
    eval: Eval<'_, M>,
) -> Result<Baseline> {
    let started = Instant::now();
    let (value, ranking) = if !ranks {
        (evaluate(eval, model), None)
    } else {
        let quantized = candidates.quantized_replays();
        let observed = inspect::observe(model, quantized, |model| evaluate(eval, model))?;
        let ranking = candidates.units.0.iter().enumerate().map(|(index, unit)| {
            let outputs = unit.paths.iter();
            let outputs = outputs.filter_map(|path| observed.outputs.get(path));
            // Noise in many rows averages out where they are pooled.
            let score = |d: &Deviation| {
                d.sqnr_db() + 10. * (d.count() as f64 / unit.channels as f64).log10()
            };
            let scores = outputs.map(|d| (score(d), d.sqnr_db()));
            let worst = scores.min_by(|(a, _), (b, _)| a.total_cmp(b));
            // A layer that reports nothing comes last.
            (index, worst.unwrap_or((f64::INFINITY, f64::INFINITY)))
        });
        let mut ranking: Vec<_> = ranking.collect();
        ranking.sort_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b));
        let ranking = ranking.into_iter().map(|(unit, (_, db))| (unit, db));
        (observed.result, Some(ranking.collect()))
    };
    let got = match value {
        Ok(value) if value.is_finite() => {
            let seconds = started.elapsed().as_secs_f64();
            return Ok(Baseline { value, seconds, ranking });
        }
        Ok(value) => value.to_string(),
        Err(stopped) => stopped.to_string(),
    };
    Err(Error::argument("accuracy of the float model", "a finite number", got))
}
