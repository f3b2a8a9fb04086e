//! Failures during a search end in a typed outcome, with the best model until then.

use std::cell::Cell;
use std::ops::ControlFlow;

use candle_dynquant::Result;
use candle_dynquant::tune::{Stopped, Strategy, tune_with};

use crate::kit::*;
use crate::model::{Lossy, Model, accuracy, becomes, model, search};

const LOSSES: [f64; 5] = [0.02, 0.05, 0.01, 0.04, 0.03];

fn config() -> TuningConfig {
    crate::config().strategy(Strategy::Basic).absolute(0.06)
}

/// An evaluation that does something else at its n-th call, from 1.
fn at(
    n: usize,
    model: &mut Model,
    otherwise: fn() -> Result<f64, String>,
) -> Result<TuningOutcome> {
    let calls = Cell::new(0);
    tune(model, &config(), |model: &Model| {
        calls.set(calls.get() + 1);
        if calls.get() == n { otherwise() } else { Ok(accuracy(model)) }
    })
}

fn is_the_best(outcome: &TuningOutcome, model: &Model) {
    match outcome.best() {
        Some(best) => {
            let values = outcome.trials.iter().map(|trial| trial.value);
            assert_eq!(best.value, values.fold(f64::MIN, f64::max));
            assert_eq!(best.value, accuracy(model));
        }
        None => assert_eq!(becomes(model), ["float"; 5]),
    }
}

#[test]
fn an_evaluation_that_fails_or_panics_ends_the_search() -> Result<()> {
    let calls = search(&mut model(&LOSSES), &config())?.1.len();
    assert!(calls > 8);
    type Otherwise = fn() -> Result<f64, String>;
    let cases: [(Otherwise, &str); 2] = [
        (|| Err("no such file".to_owned()), "no such file"),
        (|| panic!("on purpose"), "it panicked: on purpose"),
    ];
    for (n, (otherwise, message)) in (2..=calls).flat_map(|n| cases.map(|case| (n, case))) {
        let mut model = model(&LOSSES);
        let outcome = at(n, &mut model, otherwise)?;
        let message = message.to_owned();
        assert_eq!(outcome.stopped, Stopped::EvalFailed { message }, "call {n}");
        assert_eq!((outcome.trials.len(), outcome.evals), (n - 2, n));
        is_the_best(&outcome, &model);
    }
    Ok(())
}

#[test]
fn nan_fails_and_the_search_goes_on() -> Result<()> {
    for n in 2..9 {
        let mut model = model(&LOSSES);
        let outcome = at(n, &mut model, || Ok(f64::NAN))?;
        assert!(outcome.met, "call {n}");
        let nan = &outcome.trials[n - 2];
        assert!(nan.value.is_nan() && !nan.passed);
        assert_eq!(outcome.best().expect("a trial").value, accuracy(&model));
    }
    // Never anything else: float is left, which is the best where no value is a number.
    let mut model = model(&LOSSES);
    let first = Cell::new(true);
    let outcome = tune(&mut model, &config(), |_: &Model| {
        candle_core::Result::Ok(if first.replace(false) { 1. } else { f64::NAN })
    })?;
    assert!(!outcome.met && outcome.stopped == Stopped::Exhausted);
    Ok(())
}

#[test]
fn a_float_model_without_an_accuracy_is_an_error() {
    type Otherwise = fn() -> Result<f64, String>;
    let cases: [(Otherwise, &str); 4] = [
        (|| Err("no data".into()), "got the evaluation failed: no data"),
        (|| panic!("on purpose"), "got the evaluation failed: it panicked: on purpose"),
        (|| Ok(f64::NAN), "expected a finite number, got NaN"),
        (|| Ok(f64::INFINITY), "expected a finite number, got inf"),
    ];
    for (otherwise, message) in cases {
        for strategy in [Strategy::Basic, Strategy::Sensitivity] {
            let mut model = model(&LOSSES);
            let config = config().strategy(strategy);
            fault(tune(&mut model, &config, |_: &Model| otherwise())).ends(message);
            assert_eq!(becomes(&model), ["float"; 5]);
        }
    }
}

#[test]
fn a_search_can_be_cancelled_after_any_trial() -> Result<()> {
    for n in 1..8 {
        let mut model = model(&LOSSES);
        let eval = |model: &Model| candle_core::Result::Ok(accuracy(model));
        let mut lines = Vec::new();
        let outcome = tune_with(&mut model, &config(), eval, |progress| {
            lines.push(progress.to_string());
            assert_eq!(progress.trials, lines.len());
            assert!(progress.best.value >= progress.trial.value);
            if progress.trials == n { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        assert_eq!((&outcome.stopped, outcome.trials.len()), (&Stopped::Cancelled, n));
        is_the_best(&outcome, &model);
        let curve = outcome.curve();
        assert_eq!(curve.len(), n);
        let best = outcome.best().map(|trial| trial.value);
        assert_eq!(curve.last().and_then(|point| point.best), best);
        assert!(curve.iter().zip(&outcome.trials).all(|(p, t)| p.score == Some(t.value)));
        assert!(lines[0].starts_with("[=") && lines[0].contains("] trial 1/"), "{}", lines[0]);
    }
    Ok(())
}

/// A process that may write no file has a disk without space.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_ends_the_search() -> Result<()> {
    const CHILD: &str = "DYNQUANT_TEST_FULL_DISK";
    let dir = tempfile::tempdir().expect("a folder");
    if std::env::var_os(CHILD).is_none() {
        let name = "failures::a_full_disk_ends_the_search";
        let child = std::process::Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().expect("this program"))
            .arg(name)
            .env(CHILD, "1")
            .output();
        let child = child.expect("a shell");
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
        return Ok(());
    }
    let mut model = model(&LOSSES);
    let (outcome, _) = search(&mut model, &config().history(dir.path().join("history")))?;
    assert!(
        matches!(&outcome.stopped, Stopped::HistoryFailed { message } if message.contains("large"))
    );
    is_the_best(&outcome, &model);
    Ok(())
}

#[test]
fn a_layer_may_refuse_what_the_spec_does_not_ask_for() -> Result<()> {
    let mut refusing = model(&LOSSES);
    refusing[1].refuses = Some(QConfig::float16());
    let (_, seen) = search(&mut refusing, &config())?;
    assert!(seen.iter().any(|trial| trial.contains('h')), "{seen:?}");
    assert!(seen.iter().all(|trial| &trial[1..2] != "h"), "{seen:?}");

    let mut refusing = model(&LOSSES);
    refusing[1].refuses = Some(QConfig::int8());
    fault(search(&mut refusing, &config())).starts("1: invalid qconfig: ");
    assert_eq!(becomes(&refusing), ["float"; 5]);
    Ok(())
}

#[test]
fn a_mistake_is_an_error_and_changes_nothing() {
    let never = |_: &Model| -> Result<f64> { panic!("evaluated") };
    for config in [
        crate::config().relative(1.),
        crate::config().relative(f64::NAN),
        crate::config().absolute(f64::INFINITY),
        crate::config().history("/no/such/folder/history.jsonl"),
        crate::config().spec(all_int8().exclude("no_such_layer")),
    ] {
        let mut model = model(&LOSSES);
        assert!(tune(&mut model, &config, never).is_err(), "{config:?}");
        assert_eq!(becomes(&model), ["float"; 5]);
    }
    let mut quantized: Model = vec![Lossy { to: Some(QConfig::int8()), ..Lossy::new(0.1) }];
    let error = tune(&mut quantized, &crate::config(), never).unwrap_err();
    assert!(error.kind() == ErrorKind::Unmatched, "{error}");
}
