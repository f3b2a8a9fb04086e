//! The trials of each strategy, and their results.

use std::ops::ControlFlow;
use std::time::Duration;

use candle_dynquant::Result;
use candle_dynquant::tune::{LayerPrecision, Stopped, Strategy, tune_with};
use candle_dynquant_support::random::Random;

use crate::kit::*;
use crate::model::{Model, QUANTIZED, accuracy, becomes, best_trial, initials, model, search};

const STRATEGIES: [Strategy; 3] = [Strategy::Basic, Strategy::Sensitivity, Strategy::ByKind];

#[test]
fn all_int8_is_tried_first_and_is_enough_where_it_passes() -> Result<()> {
    for strategy in STRATEGIES {
        let mut model = model(&[0.001, 0.002]);
        let config = crate::config().strategy(strategy);
        let (outcome, seen) = search(&mut model, &config)?;
        assert_eq!(seen, ["ff", "ii"], "{strategy}");
        assert_eq!(becomes(&model), ["int8", "int8"]);
        assert!(outcome.met && outcome.stopped == Stopped::CriterionMet);
        assert_eq!((outcome.evals, best_trial(&outcome)), (2, Some(0)));
    }
    Ok(())
}

/// Neural Compressor's order: alone from output to input, then accumulated, those first that did
/// best.
#[test]
fn basic_falls_back_alone_and_then_together() -> Result<()> {
    let mut model = model(&[0.010, 0.030, 0.020]);
    let config = crate::config().strategy(Strategy::Basic).absolute(0.011);
    let (outcome, seen) = search(&mut model, &config)?;
    assert_eq!(seen, ["fff", "iii", "iih", "ihi", "hii", "ihh"]);
    assert!(outcome.met);
    assert_eq!(outcome.stopped, Stopped::CriterionMet);
    Ok(())
}

#[test]
fn basic_goes_on_to_float_where_float16_is_not_enough() -> Result<()> {
    let mut model = model(&[0.1, 0.3]);
    let config = crate::config().strategy(Strategy::Basic).absolute(0.001);
    let (outcome, seen) = search(&mut model, &config)?;
    assert_eq!(seen, ["ff", "ii", "ih", "hi", "hh", "if", "fi", "ff"]);
    assert!(outcome.met);
    assert_eq!(becomes(&model), ["float", "float"]);
    Ok(())
}

/// These layers report nothing, so they keep the order of the model, the first as the worst.
#[test]
fn sensitivity_bisects() -> Result<()> {
    let mut losses = [0.001; 26];
    losses[..5].fill(0.1);
    let mut model = model(&losses);
    let config = crate::config().absolute(0.05);
    let (outcome, seen) = search(&mut model, &config)?;
    let fallen = |trial: &String| trial.chars().filter(|c| *c == 'h').count();
    let counts: Vec<_> = seen.iter().map(fallen).collect();
    assert_eq!(counts, [0, 0, 13, 6, 3, 4, 5]);
    assert!(outcome.met);
    assert_eq!(initials(&model), "h".repeat(5) + &"i".repeat(21));
    assert!(outcome.evals as f64 <= 26f64.log2() + 3.);
    Ok(())
}

#[test]
fn sensitivity_needs_few_evaluations_whatever_the_losses() -> Result<()> {
    for (seed, layers) in (1..40).flat_map(|layers| [(1, layers), (2, layers)]) {
        let mut random = Random(seed * 100 + layers as u64);
        let losses: Vec<f64> = (0..layers).map(|_| f64::from(random.float()).abs()).collect();
        // All in float16 pass.
        let goal = losses.iter().sum::<f64>() * 0.5;
        let mut model = model(&losses);
        let config = crate::config().absolute(goal);
        let (outcome, _) = search(&mut model, &config)?;
        assert!(outcome.met);
        let most = (layers as f64).log2() + 3.;
        assert!(outcome.evals as f64 <= most, "{layers} layers: {}", outcome.evals);
        assert!(1. - accuracy(&model) <= goal);
    }
    Ok(())
}

/// With time left, layers that fell back needlessly are restored.
#[test]
fn a_timeout_looks_for_a_smaller_model() -> Result<()> {
    let losses = [0.001, 0.002, 0.1, 0.001, 0.1, 0.001];
    let config = crate::config().absolute(0.05);
    let mut first = model(&losses);
    let (short, _) = search(&mut first, &config)?;
    let mut smaller = model(&losses);
    let (long, _) = search(&mut smaller, &config.timeout(Duration::from_secs(3600)))?;
    assert!(short.met && long.met);
    assert_eq!((short.stopped, long.stopped.clone()), (Stopped::CriterionMet, Stopped::Exhausted));
    assert_eq!(initials(&first), "hhhhhi");
    assert_eq!(initials(&smaller), "iihihi");
    assert!(long.evals > short.evals);
    Ok(())
}

#[test]
fn kinds_are_added_while_the_criterion_holds() -> Result<()> {
    let mut model = model(&[0.001, 0.5, 0.001]);
    model[1].kind = LayerKind::LSTM;
    model[2].kind = LayerKind::GRU;
    model[1].elements = 1000;
    let config = crate::config().strategy(Strategy::ByKind);
    let (outcome, seen) = search(&mut model, &config)?;
    assert_eq!(seen, ["fff", "iii", "fif", "fhf", "ihf", "ihi"]);
    assert!(outcome.met);
    assert_eq!(becomes(&model), ["int8", "float16", "int8"]);
    Ok(())
}

/// If the spec has another int8, per row is the next step for all layers: it costs nothing.
#[test]
fn per_row_is_tried_where_the_spec_has_another_int8() -> Result<()> {
    for strategy in STRATEGIES {
        let mut model = model(&[0.006, 0.003]);
        let config = crate::config().strategy(strategy).spec(QConfigSpec::pytorch());
        let (outcome, seen) = search(&mut model, &config)?;
        assert_eq!(seen, ["ff", "ii", "ii"]);
        let layers = outcome.layers.iter().map(|layer| layer.precision);
        assert_eq!(layers.collect::<Vec<_>>(), [LayerPrecision::Int8PerRow; 2]);
        assert_eq!(model[0].to, Some(QConfig::int8()));
    }
    Ok(())
}

#[test]
fn layers_that_the_spec_leaves_are_left() -> Result<()> {
    let mut model = model(&[0.1, 0.2, 0.3]);
    let config = crate::config().spec(all_int8().exclude("1"));
    let (outcome, seen) = search(&mut model, &config)?;
    assert!(seen.iter().all(|trial| &trial[1..2] == "f"), "{seen:?}");
    assert_eq!(outcome.layers[1].precision, LayerPrecision::Float);
    Ok(())
}

#[test]
fn halves_are_those_of_the_spec() -> Result<()> {
    let cases = [
        (QConfigSpec::bfloat16(), QConfig::bfloat16(), LayerPrecision::BFloat16),
        (QConfigSpec::float16(), QConfig::float16(), LayerPrecision::Float16),
    ];
    for (spec, qconfig, precision) in cases {
        let mut kept = model(&[0.]);
        let (outcome, _) = search(&mut kept, &crate::config().spec(spec.clone()))?;
        assert_eq!(kept[0].to, Some(qconfig));
        assert_eq!(outcome.layers[0].precision, precision);
        // If it loses too much, only float is tried.
        let config = crate::config().strategy(Strategy::Basic).absolute(0.).spec(spec);
        let (outcome, _) = search(&mut model(&[0.1, 0.2]), &config)?;
        for trial in &outcome.trials {
            let others = trial.layers.keys();
            let mut others =
                others.filter(|other| ![precision, LayerPrecision::Float].contains(other));
            assert_eq!(others.next(), None, "{trial}");
        }
    }
    Ok(())
}

#[test]
fn layers_that_were_quantized_before_are_told_as_they_are() -> Result<()> {
    let mut model = model(&[0.; 5]);
    model[0].to = Some(QConfig::float16());
    model[1].to = Some(QConfig::int8());
    model[2].to = Some(QConfig::Groups(GroupConfig::INT4));
    model[3].to = Some(QConfig::bfloat16());
    let (outcome, seen) = search(&mut model, &crate::config())?;
    assert_eq!(seen, ["hiiif", "hiiii"]);
    let layers = outcome.layers.iter().map(|layer| layer.precision);
    let expected = [
        LayerPrecision::Float16,
        LayerPrecision::Int8,
        LayerPrecision::Int4,
        LayerPrecision::BFloat16,
        LayerPrecision::Int8,
    ];
    assert_eq!(layers.collect::<Vec<_>>(), expected);
    Ok(())
}

#[test]
fn bytes_of_a_float_layer_are_those_of_its_dtype() -> Result<()> {
    let mut model = model(&[0.1; 3]);
    model[0].float = WeightDType::F64;
    model[2].float = WeightDType::BF16;
    let config = crate::config().strategy(Strategy::Basic).absolute(0.);
    let (outcome, _) = search(&mut model, &config)?;
    for trial in &outcome.trials {
        let layers = trial.layers.iter();
        let layers =
            layers.flat_map(|(precision, paths)| paths.iter().map(move |p| (precision, p)));
        let bytes = layers.map(|(precision, path)| match (precision, path.as_str()) {
            (LayerPrecision::Int8, _) => 100,
            (LayerPrecision::Float, "0") => 800,
            (LayerPrecision::Float, "1") => 400,
            _ => 200,
        });
        assert_eq!(trial.bytes, bytes.sum::<usize>(), "{trial}");
    }
    assert_eq!(outcome.best().expect("a trial").bytes, 1400);
    Ok(())
}

/// No trial quantizes: each layer is quantized once to int8 and once to float16, separately.
#[test]
fn layers_are_quantized_once() -> Result<()> {
    for strategy in STRATEGIES {
        let mut model = model(&[0.1; 12]);
        QUANTIZED.set(0);
        let (outcome, _) = search(&mut model, &crate::config().strategy(strategy))?;
        assert!(outcome.trials.len() > 2);
        assert_eq!(QUANTIZED.get(), 24, "{strategy}");
    }
    Ok(())
}

#[test]
fn the_result_is_the_best_trial_seen_and_no_trial_is_made_twice() -> Result<()> {
    for seed in 0..60 {
        let mut random = Random(seed);
        let losses: Vec<f64> = (0..7).map(|_| f64::from(random.float())).collect();
        for strategy in STRATEGIES {
            let goal = f64::from(random.float());
            let hours = Duration::from_secs(3600 * random.below(2) as u64);
            let config = crate::config().strategy(strategy).absolute(goal).timeout(hours);
            let mut model = model(&losses);
            let (outcome, mut seen) = search(&mut model, &config)?;
            let best = outcome.best().expect("a trial");
            assert_eq!(best.value, accuracy(&model), "{strategy} {seed}");
            assert_eq!(outcome.met, best.value >= outcome.target);
            for trial in &outcome.trials {
                if best.passed {
                    assert!(!trial.passed || best.bytes <= trial.bytes)
                } else {
                    assert!(!trial.passed && best.value >= trial.value)
                }
            }
            let calls = seen.len();
            let again = seen.remove(0);
            seen.sort();
            seen.dedup();
            // The float model may recur as a trial.
            assert_eq!(seen.len() + 1, calls, "{strategy} {seed}: {again}");
        }
    }
    Ok(())
}

#[test]
fn nothing_that_passes_leaves_the_best_that_was_found() -> Result<()> {
    // More accuracy than the float model has.
    let config = crate::config().absolute(-1.);
    for strategy in STRATEGIES {
        let mut model = model(&[0.1, -0.2, 0.3]);
        let (outcome, seen) = search(&mut model, &config.clone().strategy(strategy))?;
        assert!(!outcome.met && outcome.stopped == Stopped::Exhausted);
        let best = outcome.best().expect("a trial");
        assert_eq!(best.value, accuracy(&model));
        assert!(best.value >= 1., "{strategy}: {best:?} of {seen:?}");
    }
    Ok(())
}

#[test]
fn limits_end_a_search() -> Result<()> {
    let config = crate::config().strategy(Strategy::Basic).absolute(0.);
    let mut few = model(&[0.1; 9]);
    let (outcome, seen) = search(&mut few, &config.clone().max_trials(4))?;
    assert_eq!((outcome.stopped, seen.len()), (Stopped::MaxTrials, 5));
    let mut one = model(&[0.1; 9]);
    let (outcome, seen) = search(&mut one, &config.clone().max_trials(1))?;
    assert_eq!((outcome.stopped, seen.len(), outcome.met), (Stopped::MaxTrials, 2, false));
    assert_eq!(becomes(&one), ["int8"; 9]);
    let mut none = model(&[0.1; 9]);
    let (outcome, seen) = search(&mut none, &config.timeout(Duration::from_nanos(1)))?;
    let best = best_trial(&outcome);
    assert_eq!((outcome.stopped, seen.len()), (Stopped::Timeout, 1));
    assert_eq!((best, becomes(&none)), (None, vec!["float"; 9]));
    Ok(())
}

#[test]
fn a_lower_value_may_be_the_better_one() -> Result<()> {
    let mut model = model(&[0.1, 0.2, 0.3]);
    let config = crate::config().absolute(0.25).lower_is_better().strategy(Strategy::Basic);
    let error = |model: &Vec<crate::model::Lossy>| candle_core::Result::Ok(1. - accuracy(model));
    let outcome = candle_dynquant::tune(&mut model, &config, error)?;
    assert!(outcome.met && outcome.to_string().contains("criterion met: at most"));
    assert!(1. - accuracy(&model) <= 0.25);
    Ok(())
}

#[test]
fn the_outcome_is_printed_as_neural_compressor_does() -> Result<()> {
    let mut model = model(&[0.010, 0.030, 0.020]);
    let config = crate::config().strategy(Strategy::Basic).absolute(0.011);
    let (outcome, _) = search(&mut model, &config)?;
    let text = outcome.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "|**Mixed Precision Statistics***|");
    assert_eq!(lines[2], "| Op Type | Total | INT8 | FP16 |");
    assert_eq!(lines[4], "|  Linear |   3   |   1  |   2  |");
    assert!(lines.iter().any(|line| line.contains("*Tune Result Statistics*")), "{text}");
    assert!(
        lines.iter().any(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            cells == ["", "Accuracy", "1.0000", "0.9895", "0.9895", ""]
        }),
        "{text}"
    );
    assert!(text.contains("float16: {1-2}"), "{text}");
    assert!(text.ends_with("5 trials, 6 evaluations; stopped because the criterion is met"));
    let json = serde_json::to_value(&outcome).expect("JSON");
    assert_eq!(json["stopped"]["reason"], "criterion_met");
    assert_eq!(json["trials"][4]["layers"]["float16"], json!(["1", "2"]));
    Ok(())
}

#[test]
fn progress_tells_how_far_a_search_is() -> Result<()> {
    let losses = [0.02, 0.05, 0.01, 0.04, 0.03, 0.1 / 3.];
    // One start, two fallbacks, six layers of one kind: at most 2 * 6 - 1 of each fallback,
    // ilog2(6) + 3 evaluations without the float model's and the first, or a start and two
    // fallbacks of a kind.
    for (strategy, most, expected) in [
        (Strategy::Basic, usize::MAX, 1 + 2 * 11),
        (Strategy::Basic, 3, 3),
        (Strategy::Sensitivity, usize::MAX, 1 + 5 - 2),
        (Strategy::ByKind, usize::MAX, 1 + 3),
    ] {
        let config = crate::config().strategy(strategy).absolute(0.06);
        let config = if most == 3 { config.max_trials(3) } else { config };
        let mut seconds = Vec::new();
        let eval = |model: &Model| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            candle_core::Result::Ok(accuracy(model))
        };
        let outcome = tune_with(&mut model(&losses), &config, eval, |progress| {
            seconds.push(progress.trial.seconds);
            let trials = seconds.len();
            assert_eq!((progress.trials, progress.expected_trials), (trials, expected));
            let mean = seconds.iter().sum::<f64>() / trials as f64;
            let left = mean * expected.saturating_sub(trials) as f64;
            assert!((progress.time_left.as_secs_f64() - left).abs() < 1e-6, "{strategy}");
            let of = expected.max(trials);
            let bar = format!("[{:<20}] trial {trials}/{of}, ", "=".repeat(20 * trials / of));
            assert!(progress.to_string().starts_with(&bar), "{progress}");
            ControlFlow::Continue(())
        })?;
        let labels: Vec<String> = outcome.curve().into_iter().map(|point| point.label).collect();
        let numbers: Vec<String> = (1..=seconds.len()).map(|n| n.to_string()).collect();
        assert_eq!(labels, numbers);
    }
    Ok(())
}

#[test]
fn goals_that_no_accuracy_can_meet_are_refused() {
    let default = crate::config;
    for (config, expected) in [
        (default().relative(1.), "relative goal: expected between -1 and 1, got 1"),
        (default().relative(-1.), "relative goal: expected between -1 and 1, got -1"),
        (default().relative(f64::NAN), "got NaN"),
        (default().absolute(f64::INFINITY), "absolute goal: expected a finite number, got inf"),
    ] {
        fault(search(&mut model(&[0.1]), &config)).has(expected);
    }
}

#[test]
fn a_trial_is_told_by_how_many_layers_are_what() -> Result<()> {
    let config = crate::config().absolute(0.06);
    let (outcome, _) = search(&mut model(&[0.02, 0.05, 0.01, 0.04]), &config)?;
    let mut parts = Vec::new();
    for trial in &outcome.trials {
        let layers = trial.layers.iter();
        let expected: Vec<String> =
            layers.map(|(p, paths)| format!("{p} {}", paths.len())).collect();
        assert_eq!(trial.to_string(), expected.join(", "));
        parts.push(expected.len());
    }
    assert!(parts.contains(&1) && parts.contains(&2), "{parts:?}");
    Ok(())
}
