//! Histories: a search that was stopped continues where it was.

use std::ops::ControlFlow;

use candle_dynquant::Result;
use candle_dynquant::tune::{Stopped, Strategy, Trial, tune_with};

use crate::kit::*;
use crate::model::{Model, accuracy, becomes, best_trial, initials, model, search};

const LOSSES: [f64; 6] = [0.02, 0.05, 0.01, 0.04, 0.03, 0.1 / 3.];

fn config(strategy: Strategy) -> TuningConfig {
    crate::config().strategy(strategy).absolute(0.06)
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
            let stop = |progress: &candle_dynquant::tune::TuningProgress<'_>| {
                if progress.trials == n {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let begun = config(strategy).resume(&path); // there is none yet
            let outcome = tune_with(&mut model(&LOSSES), &begun, eval, stop)?;
            assert_eq!(outcome.stopped, Stopped::Cancelled);

            let mut resumed = model(&LOSSES);
            let (outcome, rest) = search(&mut resumed, &begun)?;
            assert_eq!([first, rest].concat(), seen, "{strategy} {n}");
            assert_eq!(trials(&outcome), trials(&expected));
            assert_eq!((outcome.met, best_trial(&outcome)), (expected.met, best_trial(&expected)));
            assert_eq!(becomes(&resumed), becomes(&whole));

            // All of it is now known, also to another criterion.
            let (outcome, rest) = search(&mut model(&LOSSES), &begun)?;
            assert_eq!((outcome.evals, rest.len()), (0, 0));
        }
    }
    Ok(())
}

#[test]
fn a_line_that_was_being_written_is_cut_off() -> Result<()> {
    let (_dir, [path]) = paths(["history.jsonl"]);
    let basic = config(Strategy::Basic);
    let (expected, seen) = search(&mut model(&LOSSES), &basic.clone().history(&path))?;
    let whole = fs::read_to_string(&path).expect("a history");
    assert_eq!(whole.lines().count(), seen.len());
    // Histories of earlier versions are of this model too.
    assert!(whole.contains("\"model\":\"881164d33ebf0f24\""), "{whole}");
    for end in (0..whole.len()).step_by(7) {
        fs::write(&path, &whole[..end]).expect("written");
        let (outcome, rest) = search(&mut model(&LOSSES), &basic.clone().resume(&path))?;
        assert_eq!(trials(&outcome), trials(&expected), "cut at {end}");
        let known = whole[..end].matches('\n').count();
        assert_eq!(rest.len(), seen.len() - known, "cut at {end}");
        let again = fs::read_to_string(&path).expect("a history");
        assert_eq!(again.lines().count(), seen.len());
        // The cut line does not disturb the lines that follow.
        let (outcome, rest) = search(&mut model(&LOSSES), &basic.clone().resume(&path))?;
        assert_eq!((outcome.evals, rest.len()), (0, 0), "cut at {end}");
    }
    Ok(())
}

/// Resumes changed histories of a search, each of which must be an error that names the line:
/// what is replaced, by what, and a part of the error.
fn assert_lies<S: AsRef<str>>(
    strategy: Strategy,
    lies: impl IntoIterator<Item = [S; 3]>,
) -> Result<()> {
    let (_dir, [path]) = paths(["history.jsonl"]);
    search(&mut model(&LOSSES), &config(strategy).history(&path))?;
    let whole = fs::read_to_string(&path).expect("a history");
    for lie in lies {
        let [from, to, message] = lie.each_ref().map(AsRef::as_ref);
        let changed = whole.replacen(from, to, 1);
        assert_ne!(changed, whole, "{from}");
        fs::write(&path, &changed).expect("written");
        let mut model = model(&LOSSES);
        let resumed = search(&mut model, &config(strategy).resume(&path));
        fault(resumed).has("history.jsonl: line ").has(message);
        assert_eq!(becomes(&model), ["float"; 6]);
        assert_eq!(fs::read_to_string(&path).expect("as it was"), changed);
    }
    Ok(())
}

#[test]
fn a_history_that_lies_is_an_error_that_names_line_and_key() -> Result<()> {
    let table = r#"
{"version":1 | {"version":9 | line 1, column 1, version: expected a history of version 1, got 9
{"version" | "version" | line 1, column
"model":" | "model":"z | line 1, column 1, model: expected the history of this model and spec
"seconds": | "seconds":1e999,"_": | line 1, column
"seconds": | "seconds":NaN,"_": | line 1, column
"seconds": | "seconds":-1e300,"_": | expected a finite number, 0 or more, got -
{"trial":2, | {"trial":2; | line 3, column
{"trial":2, | {"trial":3, | line 3, column 1, trial: expected a number from 1 to 2, got 3
{"trial":2, | {"trial":0, | line 3, column 1, trial:
{"trial":3,"value":0 | {"trial":3,"value":[0 | line 4, column
{"trial":3,"value": | {"trial":3,"value":"0.5","_": | line 4, column 1, value: expected a number, got "0.5"
{"trial":3,"value": | {"trial":3,"value":1e999,"_": | line 4, column 1, value: expected a number, got 1e999
"float16":["5"] | "float16":["nine"] | line 3, column 1, layers.float16: expected a layer of the model, got "nine"
"float16":["5"] | "float16":[] | line 3, column 1, layers: expected every layer of the model, got none called "5"
"float16":["5"] | "float16":["5","5"] | line 3, column 1, layers.float16: expected each layer once, got "5" again
"float16":["5"] | "float16":["5"],"float":["5"] | line 3, column 1, layers.float: expected each layer once, got "5" again
"float16":["5"] | "int8_per_row":["5"] | line 3, column 1, layers.int8_per_row: expected a precision that "5" can have
"float16":["5"] | "int7":["5"] | line 3, column
"#;
    assert_lies(Strategy::Basic, rows(table))
}

#[test]
fn a_baseline_that_is_no_finite_number_is_an_error() -> Result<()> {
    let lie = |json: String, message: String| {
        let message = format!("line 1, column 1, baseline: expected {message}");
        [r#""baseline":1.0"#.to_owned(), format!(r#""baseline":{json}"#), message]
    };
    let numbers = ["\"x\"", "1e999", "-1e999", "\"infinity\"", "\"+1.0\"", "\"1.0\"", "true"]
        .map(|json| lie(json.to_owned(), format!("a number, got {json}")));
    let finite = ["NaN", "inf", "-inf"]
        .map(|got| lie(format!("\"{got}\""), format!("a finite number, got {got}")));
    assert_lies(Strategy::Basic, numbers.into_iter().chain(finite))
}

#[test]
fn a_ranking_has_each_layer_once() -> Result<()> {
    let table = r#"
"ranking":[[ | "ranking":[["2",1.0],["2",1.0],[ | line 1, column 1, ranking[1]: expected each layer once, got "2" again
"ranking":[[ | "ranking":[["nine",1.0],[ | line 1, column 1, ranking[0]: expected a layer of the model, got "nine"
"ranking":[[ | "ranking":[],"_":[[ | line 1, column 1, ranking: expected every layer of the model, got none called "0"
"ranking":[[ | "ranking":[["2","NaN"],[ | line 1, column 1, ranking[0]: expected decibels, got NaN
"ranking":[[ | "ranking":[["2","loud"],[ | line 1, column 1, ranking[0]: expected a number, got "loud"
"#;
    assert_lies(Strategy::Sensitivity, rows(table))
}

#[test]
fn a_trial_that_comes_twice_is_an_error() -> Result<()> {
    let (_dir, [path]) = paths(["history.jsonl"]);
    let basic = config(Strategy::Basic);
    search(&mut model(&LOSSES), &basic.clone().history(&path))?;
    let mut whole = fs::read_to_string(&path).expect("a history");
    let (lines, last) = (whole.lines().count(), whole.lines().last());
    let last = last.expect("a line").replace("\"value\":", "\"value\":1.0,\"_\":");
    whole.push_str(&format!("{last}\n"));
    fs::write(&path, &whole).expect("written");
    fault(search(&mut model(&LOSSES), &basic.resume(&path))).ends(format!(
        "line {}, column 1, layers: expected a mix of precisions that no line before has",
        lines + 1
    ));
    Ok(())
}

#[test]
fn a_history_goes_on_with_another_strategy() -> Result<()> {
    let (_dir, [path]) = paths(["history.jsonl"]);
    let strategies = [Strategy::Basic, Strategy::ByKind, Strategy::Sensitivity];
    for (round, strategy) in strategies.into_iter().cycle().take(6).enumerate() {
        let (alone, _) = search(&mut model(&LOSSES), &config(strategy))?;
        let (outcome, _) = search(&mut model(&LOSSES), &config(strategy).resume(&path))?;
        assert_eq!(trials(&outcome), trials(&alone), "{strategy}");
        // Everything is known then except the ranking, which the first line lacks.
        if round >= strategies.len() {
            let ranked = usize::from(strategy == Strategy::Sensitivity);
            assert_eq!(outcome.evals, ranked, "{strategy}");
        }
    }
    Ok(())
}

#[test]
fn a_trial_that_was_no_number_is_read_back() -> Result<()> {
    let (_dir, [path]) = paths(["history.jsonl"]);
    let config = config(Strategy::Basic).history(&path);
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut calls = 0;
        let mut eval = |_: &Model| {
            calls += 1;
            candle_core::Result::Ok(if calls == 1 { 1. } else { value })
        };
        let first = tune(&mut model(&LOSSES), &config, &mut eval)?;
        let resumed = config.clone().resume(&path);
        let again = tune(&mut model(&LOSSES), &resumed, &mut eval)?;
        assert_eq!(again.evals, 0);
        let values = |outcome: &TuningOutcome| -> Vec<u64> {
            outcome.trials.iter().map(|t| t.value.to_bits()).collect()
        };
        assert_eq!(values(&again), values(&first));
    }
    Ok(())
}

#[test]
fn a_history_of_another_model_is_an_error() -> Result<()> {
    let (_dir, [path]) = paths(["history.jsonl"]);
    let basic = config(Strategy::Basic);
    search(&mut model(&LOSSES), &basic.clone().history(&path))?;
    fault(search(&mut model(&LOSSES[1..]), &basic.resume(&path)))
        .has("expected the history of this model");
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_history_is_a_regular_file_and_no_other_is_replaced() -> Result<()> {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    let fifo = path("fifo");
    let status = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(status.expect("mkfifo").success());
    symlink("/dev/null", path("null")).expect("a link");
    let refused = |name: &str, expected: &str| {
        for config in [
            config(Strategy::Basic).history(path(name)),
            config(Strategy::Basic).resume(path(name)),
        ] {
            fault(search(&mut model(&LOSSES), &config)).ends(expected);
        }
    };
    refused("fifo", "expected a regular file, got a fifo");
    refused("null", "expected a regular file, got a character device");
    fs::write(path("thesis.txt"), "years of work").expect("written");
    let expected = "thesis.txt: invalid history: expected a new file, or a history to replace, \
                    got another file";
    refused("thesis.txt", expected);
    assert_eq!(fs::read(path("thesis.txt")).expect("a file"), b"years of work");
    // An empty file counts as none; a longer history is cut.
    fs::write(path("empty"), "").expect("written");
    for name in ["empty", "empty"] {
        let (outcome, _) =
            search(&mut model(&LOSSES), &config(Strategy::Basic).history(path(name)))?;
        let lines = fs::read_to_string(path(name)).expect("a history");
        assert_eq!(lines.lines().count(), outcome.trials.len() + 1);
    }
    Ok(())
}
