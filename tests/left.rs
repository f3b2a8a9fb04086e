//! Layers that are left with a reason although a rule gives them a configuration.

mod common;

use std::collections::BTreeMap;

use candle_dynquant::tune::LayerPrecision;
use candle_dynquant::{LeftReason, Result, TuningConfig, tune};
use common::*;

/// Two layers of 70,000 inputs with the greatest code everywhere, whose sums can leave an i32, and
/// a layer that can be quantized.
#[derive(Quantizable, Clone)]
struct Wide {
    wide: nn::Linear,
    rnn: nn::GRU,
    head: nn::Linear,
}

fn wide() -> Wide {
    let vb = weights([
        ("weight_ih_l0", ones(&[3, 70_000])),
        ("weight_hh_l0", ones(&[3, 1])),
        ("bias_ih_l0", ones(&[3])),
        ("bias_hh_l0", ones(&[3])),
    ]);
    Wide {
        wide: nn::Linear::new(ones(&[1, 70_000]), None),
        rnn: nn::GRU::new(70_000, 1, Default::default(), vb).expect("a GRU"),
        head: linear(64, 64),
    }
}

fn reason<'a>(report: &'a Report, path: &str) -> Option<&'a LeftReason> {
    match &layer_at(report, path).outcome {
        Outcome::Left { reason } => Some(reason),
        _ => None,
    }
}

#[test]
fn sums_that_can_leave_an_i32_leave_their_layer_and_no_other() -> Result<()> {
    for preset in QConfigSpec::PRESETS {
        let mut model = wide();
        let report = quantize_dynamic(&mut model, &QConfigSpec::preset(preset)?)?;
        // Their sums are floats, of halves or of groups.
        let halves = ["float16", "bfloat16", "int4", "int8_groups"].contains(&preset);
        assert_eq!(reason(&report, "head"), None, "{preset}");
        for path in ["wide", "rnn"] {
            match reason(&report, path) {
                None => assert!(halves || preset == "int8_reduce_range", "{preset}: {path}"),
                Some(reason) => {
                    let text = "left: output channel 0 can overflow the i32 accumulator";
                    assert!(!halves && reason.to_string() == text, "{preset}, {path}: {reason}");
                }
            }
        }
        // A second call with the same spec has nothing new to report.
        let again = quantize_dynamic(&mut model, &QConfigSpec::preset(preset)?)?;
        assert_eq!(again.left().count(), 3, "{preset}");
    }
    Ok(())
}

#[test]
fn layers_that_gain_nothing_are_left_by_default() -> Result<()> {
    let model = BTreeMap::from([
        ("eight", linear(8, 8)),
        ("head", linear(10, 100)),
        ("largest", linear(27, 37)),
        ("one", linear(1, 8)),
        ("scores", linear(1, 64)),
    ]);
    let with_floor = ["int8", "int8_reduce_range", "int4", "int8_groups"];
    for preset in QConfigSpec::PRESETS {
        let spec = QConfigSpec::preset(preset)?;
        let report = quantize_dynamic(&mut model.clone(), &spec)?;
        let swapped = swapped(&report);
        if !with_floor.contains(&preset) {
            assert_eq!(swapped.len(), 5, "{preset}");
            continue;
        }
        assert_eq!(swapped, ["head"], "{preset}");
        for (path, parameters) in [("eight", 64), ("one", 8), ("scores", 64), ("largest", 999)] {
            let small = LeftReason::TooSmall { parameters, min_params: 1_000 };
            assert_eq!(reason(&report, path), Some(&small), "{preset}");
            let text = format!("left: {parameters} weight elements, fewer than min_params = 1000");
            assert_parts(&report.to_string(), &[&text]);
        }
        let all = quantize_dynamic(&mut model.clone(), &spec.min_params(0))?;
        assert_eq!(all.swapped().count(), 5, "{preset}");
    }
    Ok(())
}

#[test]
fn what_a_rule_names_exactly_or_what_is_all_there_is_stays_an_error() {
    let overflows = |spec: &QConfigSpec, path: &str| {
        let error = quantize_dynamic(&mut wide(), spec).expect_err("an overflow");
        assert_eq!((error.path(), error.kind()), (Some(path), ErrorKind::AccumulatorOverflow));
    };
    let named = |name: &str| all_int8().name(name, QConfig::int8());
    overflows(&named("wide"), "wide");
    overflows(&named("rnn"), "rnn.weight_ih_l0");
    overflows(&QConfigSpec::new().kind(LayerKind::GRU, QConfig::int8()), "rnn.weight_ih_l0");
    // A mistake of the caller's is an error, whatever the rule.
    let mut model = wide();
    let nan = ones(&[2, 2]).affine(f64::NAN, 0.).expect("a tensor");
    model.head = nn::Linear::new(nan, None);
    let message = assert_fails(quantize_dynamic(&mut model, &all_int8()), &[]);
    assert!(message.starts_with("head: non-finite"), "{message}");
}

#[test]
fn tuning_gives_a_layer_the_precisions_that_it_can_have() -> Result<()> {
    let config = TuningConfig::default();
    let outcome = tune(&mut wide(), &config, |_| candle_core::Result::Ok(1.))?;
    let int8 = outcome.trials.iter().filter_map(|trial| trial.layers.get(&LayerPrecision::Int8));
    assert!(int8.flatten().all(|path| path == "head"), "{outcome}");
    assert!(outcome.met && outcome.layers[2].precision == LayerPrecision::Int8, "{outcome}");
    Ok(())
}
