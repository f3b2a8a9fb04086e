//! Bit-equality with torch 2.9.1, by the fixtures of `assets/reference`.

mod common;

use candle_dynquant::qparams::per_tensor_activation;
use candle_dynquant::{DynamicConfig, Granularity, QWeight};
use common::fixture::{Failures, Fixture, size, sizes};
use common::generator::{made, made_if_any};
use common::*;

fn qconfig(per_channel: bool, reduce_range: bool) -> QConfig {
    let preset = if per_channel { QConfig::per_channel() } else { QConfig::pytorch() };
    let QConfig::Int8 { weight, .. } = preset else {
        unreachable!("int8");
    };
    let activation = DynamicConfig::new(Granularity::PerTensor, reduce_range);
    QConfig::Int8 { weight, activation }
}

#[test]
fn activation_qparams_equal_torch() {
    let fixture = Fixture::open("activation_qparams");
    let (min, max) = (fixture.f32("min"), fixture.f32("max"));
    let (scale, zero_point) = (fixture.f64("scale"), fixture.i32("zero_point"));
    let reduce_range = fixture.u8("reduce_range");
    assert!(min.len() > 4_000);
    let mut failures = Failures::default();
    for i in 0..min.len() {
        let got = per_tensor_activation(min[i], max[i], reduce_range[i] != 0);
        let expected = (scale[i] as f32, zero_point[i]);
        let is_same = (got.scale.to_bits(), got.zero_point) == (expected.0.to_bits(), expected.1);
        let case = format_args!("[{:e}, {:e}] reduce_range {}", min[i], max[i], reduce_range[i]);
        failures.check(is_same, format_args!("{i}: {case}: got {got:?}, expected {expected:?}"));
    }
    failures.report(min.len());
}

/// Compares scales, and codes if the fixture has them; returns whether it has.
fn compare(failures: &mut Failures, fixture: &Fixture, key: &str, got: &QWeight) -> bool {
    let scale = format!("{key}.scale");
    failures.compare(&scale, &got.scales(), &fixture.f32(&scale));
    let codes = fixture.codes(&format!("{key}.codes"));
    let are_same = codes.as_ref().is_none_or(|codes| got.codes() == *codes);
    failures.check(are_same, format_args!("{key}.codes"));
    codes.is_some()
}

#[test]
fn weight_codes_equal_torch() -> candle_dynquant::Result<()> {
    let fixture = Fixture::open("weight_codes");
    let cases = fixture.cases();
    assert!(cases.len() >= 60);
    let mut failures = Failures::default();
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let weight = made(&[size(&case["n"]), size(&case["k"])], case);
        for (suffix, per_channel) in [("tensor", false), ("channel", true)] {
            let got = QWeight::from_float(&weight, None, &qconfig(per_channel, true))?;
            assert!(compare(&mut failures, &fixture, &format!("{name}.{suffix}"), &got), "codes");
        }
    }
    failures.report(cases.len());
    Ok(())
}

#[test]
fn linear_equals_torch() -> candle_dynquant::Result<()> {
    let fixture = Fixture::open("linear");
    let cases = fixture.cases();
    assert!(cases.len() >= 250);
    let (mut failures, mut coded) = (Failures::default(), 0);
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let (n, k, shape) = (size(&case["n"]), size(&case["k"]), sizes(&case["shape"]));
        let flag = |key: &str| case[key].as_bool().expect("a flag");
        let qconfig = qconfig(flag("per_channel"), flag("reduce_range"));
        let bias = made_if_any(&[n], &case["bias"]);
        let layer = nn::Projection::new(made(&[n, k], &case["weight"]), bias).quantize(&qconfig)?;
        let qweight = layer.qweight().expect("a quantized weight");
        coded += usize::from(compare(&mut failures, &fixture, name, qweight));
        let got = layer.forward(&made(&shape, &case["x"]))?;
        let expected_shape = [&shape[..shape.len() - 1], &[n]].concat();
        assert_eq!(got.dims(), expected_shape, "{name} {case}");
        let expected = fixture.f32(&format!("{name}.output"));
        failures.compare(format_args!("{name} {case}"), &values(&got), &expected);
    }
    assert!(coded >= 300, "{coded} with codes");
    failures.report(cases.len());
    Ok(())
}
