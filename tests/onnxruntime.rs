//! Whole products against onnxruntime 1.31.1, by `assets/reference/onnxruntime_linear`.

mod common;

use candle_core::{Device, Module, Result, Tensor};
use candle_dynquant::{Layer, OnnxRuntimeOptions, QConfig, QDType, nn};
use candle_nn::{Conv1dConfig, Conv2dConfig};
use common::fixture::{Fixture, report};
use common::generator;
use serde_json::Value;

fn size(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("no size: {value}")) as usize
}

fn made(shape: &[usize], recipe: &Value) -> Result<Tensor> {
    Tensor::from_vec(generator::tensor(shape, recipe), shape, &Device::Cpu)
}

fn qconfig(case: &Value, has_channels: bool) -> QConfig {
    let flag = |key: &str| case[key].as_bool().unwrap_or(false);
    QConfig::onnxruntime(OnnxRuntimeOptions {
        weight_type: match case["weight_type"].as_str() {
            Some("QInt8") => QDType::QInt8,
            Some("QUInt8") => QDType::QUInt8,
            other => panic!("{other:?}"),
        },
        per_channel: has_channels && flag("per_channel"),
        reduce_range: flag("reduce_range"),
        weight_symmetric: case["symmetric"].as_bool(),
    })
}

/// A unit in the last place of the larger of two numbers.
fn ulp(a: f32, b: f32) -> f32 {
    let larger = a.abs().max(b.abs());
    larger.next_up() - larger
}

/// Without a bias the outputs are bit-identical. With a bias, onnxruntime rounds the product and
/// then the sum, where this library rounds once: they differ by at most one unit in the last place
/// of the larger of product and sum.
#[test]
fn products_equal_onnxruntime() -> Result<()> {
    let fixture = Fixture::open("onnxruntime_linear");
    let outputs = fixture.f32("output");
    let mut outputs = outputs.iter().copied();
    let cases = fixture.cases();
    let mut failures = Vec::new();
    let mut with_bias = 0;
    for case in &cases {
        let (n, k) = (size(&case["n"]), size(&case["k"]));
        let qconfig = qconfig(case, true);
        let bias = match &case["bias"] {
            Value::Null => None,
            recipe => Some(made(&[n], recipe)?),
        };
        let biases = match &bias {
            Some(bias) => bias.to_vec1()?,
            None => vec![0f32; n],
        };
        let weight = made(&[n, k], &case["weight"])?;
        let layer = nn::Projection::new(weight, bias.clone()).quantize(&qconfig)?;
        for input in case["inputs"].as_array().expect("a list") {
            let m = size(&input["m"]);
            let got = layer.forward(&made(&[m, k], input)?)?;
            let got = got.flatten_all()?.to_vec1::<f32>()?;
            for (i, got) in got.into_iter().enumerate() {
                let expected = outputs.next().expect("as many outputs");
                let same = if bias.is_some() {
                    with_bias += 1;
                    (got - expected).abs() <= ulp(expected - biases[i % n], expected)
                } else {
                    got == expected
                };
                if !same {
                    failures
                        .push(format!("{case} {input} {i}: got {got:e}, expected {expected:e}"));
                }
            }
        }
    }
    assert_eq!(outputs.next(), None, "the fixture is longer than its cases");
    assert!(with_bias > 1_000);
    report(&failures, cases.len());
    Ok(())
}

/// As [`products_equal_onnxruntime`], of its `ConvInteger`, whose weight has one scale whatever
/// `per_channel` says.
#[test]
fn convolutions_equal_onnxruntime() -> Result<()> {
    let fixture = Fixture::open("onnxruntime_conv");
    let outputs = fixture.f32("output");
    let mut outputs = outputs.iter().copied();
    let mut failures = Vec::new();
    let cases = fixture.cases();
    for case in &cases {
        let sizes = |key: &str| -> Vec<usize> {
            let sizes = case[key].as_array().expect("a list");
            sizes.iter().map(size).collect()
        };
        let shape = sizes("shape");
        let weight = made(&shape, &case["weight"])?;
        let bias = match &case["bias"] {
            Value::Null => None,
            recipe => Some(made(&shape[..1], recipe)?),
        };
        let number = |key: &str| size(&case[key]);
        let (padding, stride) = (number("padding"), number("stride"));
        let (dilation, groups) = (number("dilation"), number("groups"));
        let biases: Vec<f32> = bias.as_ref().map_or(Ok(vec![0.; shape[0]]), Tensor::to_vec1)?;
        let has_bias = bias.is_some();
        let xs = made(&sizes("input"), &case["x"])?;
        let got = if shape.len() == 4 {
            let config = Conv2dConfig { padding, stride, dilation, groups, ..Default::default() };
            let layer = nn::Conv2d::new(weight, bias, config);
            layer.quantize(&qconfig(case, false))?.forward(&xs)?
        } else {
            let config = Conv1dConfig { padding, stride, dilation, groups, ..Default::default() };
            let layer = nn::Conv1d::new(weight, bias, config);
            layer.quantize(&qconfig(case, false))?.forward(&xs)?
        };
        let area: usize = got.dims()[2..].iter().product();
        for (i, got) in got.flatten_all()?.to_vec1::<f32>()?.into_iter().enumerate() {
            let expected = outputs.next().expect("as many outputs");
            let bias = biases[i / area % shape[0]];
            let error = (got - expected).abs();
            if error > 0. && !(has_bias && error <= ulp(expected - bias, expected)) {
                failures.push(format!("{case} {i}: got {got:e}, expected {expected:e}"));
            }
        }
    }
    assert_eq!(outputs.next(), None, "the fixture is longer than its cases");
    report(&failures, cases.len());
    Ok(())
}
