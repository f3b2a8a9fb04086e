//! Whole products against onnxruntime 1.31.1, by `assets/reference/onnxruntime_linear`.

mod common;

use candle_core::{Device, Module, Result, Tensor};
use candle_dynquant::{OnnxRuntimeOptions, QConfig, QDType, nn};
use common::fixture::{Fixture, report};
use common::generator;
use serde_json::Value;

fn size(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("no size: {value}")) as usize
}

fn made(shape: &[usize], recipe: &Value) -> Result<Tensor> {
    Tensor::from_vec(generator::tensor(shape, recipe), shape, &Device::Cpu)
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
        let flag = |key: &str| case[key].as_bool().unwrap_or(false);
        let qconfig = QConfig::onnxruntime(OnnxRuntimeOptions {
            weight_type: match case["weight_type"].as_str() {
                Some("QInt8") => QDType::QInt8,
                Some("QUInt8") => QDType::QUInt8,
                other => panic!("{other:?}"),
            },
            per_channel: flag("per_channel"),
            reduce_range: flag("reduce_range"),
            weight_symmetric: case["symmetric"].as_bool(),
        });
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
                    failures.push(format!(
                        "{case} {input} {i}: got {got:e}, expected {expected:e}"
                    ));
                }
            }
        }
    }
    assert_eq!(outputs.next(), None, "the fixture is longer than its cases");
    assert!(with_bias > 1_000);
    report(&failures, cases.len());
    Ok(())
}
