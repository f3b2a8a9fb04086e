//! Histories: a search that was stopped goes on where it was.

use std::fs;
use std::ops::ControlFlow;

use candle_dynquant::tune::{Stopped, Strategy, Trial, tune_with};
use candle_dynquant::{Result, TuningConfig, TuningOutcome};

use crate::model::{Model, accuracy, becomes, initials, model, search};

const LOSSES: [f64; 6] = [0.02, 0.05, 0.01, 0.04, 0.03, 0.1 / 3.];

fn config(strategy: Strategy) -> TuningConfig {
    TuningConfig::default().strategy(strategy).absolute(0.06)
}

/// All but the times.
fn trials(outcome: &TuningOutcome) -> Vec<Trial> {
    let mut trials = outcome.trials.clone();
    trials.iter_mut().for_each(|trial| trial.seconds = 0.);
    trials
}

#[test]
fn a_stopped_search_goes_on_without_repeating_a_trial() -> Result<()> {
    let dir = tempfile::tempdir().expect("a folder");
    for strategy in [Strategy::Basic, Strategy::Sensitivity, Strategy::ByKind] {
        let mut whole = model(&LOSSES);
        let (expected, seen) = search(&mut whole, &config(strategy))?;
        for n in 1..=expected.trials.len() {
            let path = dir.path().join(format!("{strategy}{n}.jsonl"));
            let mut first = Vec::new();
            let eval = |model: &Model| {
                first.push(initials(model));
                candle_core::Result::Ok(accuracy(model))
            };
            let stop =
                |progress: &candle_dynquant::tune::TuningProgress<'_>| match progress.trials == n {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                };
            let begun = config(strategy).resume(&path); // there is none yet
            let outcome = tune_with(&mut model(&LOSSES), &begun, eval, stop)?;
            assert_eq!(outcome.stopped, Stopped::Cancelled);

            let mut resumed = model(&LOSSES);
            let (outcome, rest) = search(&mut resumed, &begun)?;
            assert_eq!([first, rest].concat(), seen, "{strategy} {n}");
            assert_eq!(trials(&outcome), trials(&expected));
            assert_eq!(
                (outcome.met, outcome.best_trial),
                (expected.met, expected.best_trial)
            );
            assert_eq!(becomes(&resumed), becomes(&whole));

            // All of it is known now, also to another criterion.
            let (outcome, rest) = search(&mut model(&LOSSES), &begun)?;
            assert_eq!((outcome.evals, rest.len()), (0, 0));
        }
    }
    Ok(())
}

#[test]
fn a_line_that_was_being_written_is_cut_off() -> Result<()> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("history.jsonl");
    let basic = config(Strategy::Basic);
    let (expected, seen) = search(&mut model(&LOSSES), &basic.clone().history(&path))?;
    let whole = fs::read_to_string(&path).expect("a history");
    assert_eq!(whole.lines().count(), seen.len());
    let step = 7;
    for end in (0..whole.len()).step_by(step) {
        fs::write(&path, &whole[..end]).expect("written");
        let (outcome, rest) = search(&mut model(&LOSSES), &basic.clone().resume(&path))?;
        assert_eq!(trials(&outcome), trials(&expected), "cut at {end}");
        let known = whole[..end].matches('\n').count();
        assert_eq!(rest.len(), seen.len() - known, "cut at {end}");
        let again = fs::read_to_string(&path).expect("a history");
        assert_eq!(again.lines().count(), seen.len());
        // What was cut is not in the way of the lines that followed.
        let (outcome, rest) = search(&mut model(&LOSSES), &basic.clone().resume(&path))?;
        assert_eq!((outcome.evals, rest.len()), (0, 0), "cut at {end}");
    }
    Ok(())
}

#[test]
fn a_history_that_lies_is_an_error_that_names_the_line() -> Result<()> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("history.jsonl");
    let basic = config(Strategy::Basic);
    search(&mut model(&LOSSES), &basic.clone().history(&path))?;
    let whole = fs::read_to_string(&path).expect("a history");
    let changes: [(&str, &str, &str); 8] = [
        (
            "{\"version\":1",
            "{\"version\":9",
            "line 1, column 1: expected a history of version 1, got 9",
        ),
        ("{\"version\"", "\"version\"", "line 1, column "),
        (
            "\"baseline\":1.0",
            "\"baseline\":\"x\"",
            "line 1, column 1: expected a number, got \"x\"",
        ),
        (
            "\"model\":\"",
            "\"model\":\"z",
            "expected the history of this model and spec",
        ),
        ("\n{\"trial\":2,", "\n{\"trial\":2;", "line 3, column "),
        (
            "\n{\"trial\":3,\"value\":0",
            "\n{\"trial\":3,\"value\":[0",
            "line 4, column ",
        ),
        (
            "\"float16\":[\"5\"]",
            "\"float16\":[\"nine\"]",
            "line 3, column 1: expected a layer of the model, got \"nine\"",
        ),
        (
            "\"float16\":[\"5\"]",
            "\"float16\":[]",
            "line 3, column 1: expected a precision for every layer",
        ),
    ];
    for (from, to, message) in changes {
        let changed = whole.replacen(from, to, 1);
        assert_ne!(changed, whole, "{from}");
        fs::write(&path, &changed).expect("written");
        let mut model = model(&LOSSES);
        let error = search(&mut model, &basic.clone().resume(&path))
            .unwrap_err()
            .to_string();
        assert!(error.contains("history.jsonl: line "), "{error}");
        assert!(error.contains(message), "{message}: {error}");
        assert_eq!(becomes(&model), ["float"; 6]);
        assert_eq!(fs::read_to_string(&path).expect("as it was"), changed);
    }
    // Of another model.
    fs::write(&path, &whole).expect("written");
    let other = search(&mut model(&LOSSES[1..]), &basic.resume(&path)).unwrap_err();
    assert!(
        other
            .to_string()
            .contains("expected the history of this model"),
        "{other}"
    );
    Ok(())
}
