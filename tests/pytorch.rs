//! Bit-equality with torch 2.9.1, by the fixtures of `assets/reference`.

mod common;

use candle_core::{Device, Module, Tensor};
use candle_dynquant::qparams::per_tensor_activation;
use candle_dynquant::{DynamicConfig, Granularity, QConfig, QWeight, nn};
use common::fixture::{Fixture, difference, report};
use common::generator;
use serde_json::Value;

fn usize_of(case: &Value, key: &str) -> usize {
    case[key].as_u64().unwrap_or_else(|| panic!("{key} in {case}")) as usize
}

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
    let mut failures = Vec::new();
    for i in 0..min.len() {
        let got = per_tensor_activation(min[i], max[i], reduce_range[i] != 0);
        let expected = (scale[i] as f32, zero_point[i]);
        if (got.scale.to_bits(), got.zero_point) != (expected.0.to_bits(), expected.1) {
            failures.push(format!(
                "{i}: [{:e}, {:e}] reduce_range {}: got {got:?}, expected {expected:?}",
                min[i], max[i], reduce_range[i]
            ));
        }
    }
    report(&failures, min.len());
}

#[test]
fn weight_codes_equal_torch() -> candle_dynquant::Result<()> {
    let fixture = Fixture::open("weight_codes");
    let cases = fixture.cases();
    assert!(cases.len() >= 60);
    let mut failures = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let (n, k) = (usize_of(case, "n"), usize_of(case, "k"));
        let weight = generator::tensor(&[n, k], case);
        let weight = Tensor::from_vec(weight, (n, k), &Device::Cpu)?;
        for (suffix, per_channel) in [("tensor", false), ("channel", true)] {
            let qconfig = qconfig(per_channel, true);
            let got = QWeight::from_float(&weight, None, &qconfig)?;
            let key = format!("{name}.{suffix}");
            let scale = fixture.f32(&format!("{key}.scale"));
            if let Some(difference) = difference(&got.scales(), &scale) {
                failures.push(format!("{key} {case}: scale: {difference}"));
            }
            let codes = fixture.codes(&format!("{key}.codes")).expect("codes");
            if got.codes() != codes {
                failures.push(format!("{key} {case}: codes differ"));
            }
        }
    }
    report(&failures, cases.len());
    Ok(())
}

#[test]
fn linear_equals_torch() -> candle_dynquant::Result<()> {
    let fixture = Fixture::open("linear");
    let cases = fixture.cases();
    assert!(cases.len() >= 250);
    let (mut failures, mut coded) = (Vec::new(), 0);
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
        let (n, k) = (usize_of(case, "n"), usize_of(case, "k"));
        let shape = case["shape"].as_array().expect("a shape");
        let shape: Vec<_> = shape.iter().map(|d| d.as_u64().expect("a size") as usize).collect();
        let make = |shape: &[usize], recipe: &Value| {
            Tensor::from_vec(generator::tensor(shape, recipe), shape, &Device::Cpu)
        };
        let weight = make(&[n, k], &case["weight"])?;
        let bias = match &case["bias"] {
            Value::Null => None,
            recipe => Some(make(&[n], recipe)?),
        };
        let flag = |key: &str| case[key].as_bool().expect("a flag");
        let qconfig = qconfig(flag("per_channel"), flag("reduce_range"));
        let layer = nn::Projection::new(weight, bias).quantize(&qconfig)?;

        let qweight = layer.qweight().expect("a quantized weight");
        let scales = fixture.f32(&format!("{name}.scale"));
        if let Some(difference) = difference(&qweight.scales(), &scales) {
            failures.push(format!("{name} {case}: scale: {difference}"));
        }
        if let Some(codes) = fixture.codes(&format!("{name}.codes")) {
            coded += 1;
            if qweight.codes() != codes {
                failures.push(format!("{name} {case}: codes differ"));
            }
        }
        let got = layer.forward(&make(&shape, &case["x"])?)?;
        let expected_shape = [&shape[..shape.len() - 1], &[n]].concat();
        assert_eq!(got.dims(), expected_shape, "{name} {case}");
        let got = got.flatten_all()?.to_vec1::<f32>()?;
        let expected = fixture.f32(&format!("{name}.output"));
        if let Some(difference) = difference(&got, &expected) {
            failures.push(format!("{name} {case}: {difference}"));
        }
    }
    assert!(coded >= 300, "{coded} with codes");
    report(&failures, cases.len());
    Ok(())
}
