//! Whole products against onnxruntime 1.31.1, by `assets/reference/onnxruntime_linear`.

mod common;

use candle_core::Result;
use candle_dynquant::{OnnxRuntimeOptions, QDType};
use candle_nn::{Conv1dConfig, Conv2dConfig};
use common::fixture::{Failures, Fixture, size, sizes};
use common::generator::{made, made_if_any};
use common::*;
use serde_json::Value;

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

/// Outputs in the order of the cases, and what differs.
///
/// Without a bias the outputs are bit-identical. With a bias, onnxruntime rounds the product and
/// then the sum, where this library rounds once: they differ by at most one unit in the last place
/// of the larger of product and sum.
struct Comparison {
    outputs: std::vec::IntoIter<f32>,
    failures: Failures,
    with_bias: usize,
}

impl Comparison {
    fn of(fixture: &Fixture) -> Self {
        let outputs = fixture.f32("output").into_iter();
        Self { outputs, failures: Failures::default(), with_bias: 0 }
    }

    /// Compares the output of a case, whose channels are `area` elements apart.
    fn compare(&mut self, case: &str, got: &Tensor, bias: Option<&Tensor>, area: usize) {
        let bias = bias.map(values);
        for (i, got) in values(got).into_iter().enumerate() {
            let expected = self.outputs.next().expect("as many outputs");
            let bound = bias
                .as_ref()
                .map_or(0., |bias| ulp(expected - bias[i / area % bias.len()], expected));
            self.with_bias += usize::from(bias.is_some());
            let is_same = (got - expected).abs() <= bound;
            let failure = format_args!("{case} {i}: got {got:e}, expected {expected:e}");
            self.failures.check(is_same, failure);
        }
    }

    fn report(mut self, cases: usize) {
        assert_eq!(self.outputs.next(), None, "the fixture is longer than its cases");
        self.failures.report(cases);
    }
}

#[test]
fn products_equal_onnxruntime() -> Result<()> {
    let fixture = Fixture::open("onnxruntime_linear");
    let mut comparison = Comparison::of(&fixture);
    let cases = fixture.cases();
    for case in &cases {
        let (n, k) = (size(&case["n"]), size(&case["k"]));
        let bias = made_if_any(&[n], &case["bias"]);
        let weight = made(&[n, k], &case["weight"]);
        let layer = nn::Projection::new(weight, bias.clone()).quantize(&qconfig(case, true))?;
        for input in case["inputs"].as_array().expect("a list") {
            let got = layer.forward(&made(&[size(&input["m"]), k], input))?;
            comparison.compare(&format!("{case} {input}"), &got, bias.as_ref(), 1);
        }
    }
    assert!(comparison.with_bias > 1_000);
    comparison.report(cases.len());
    Ok(())
}

/// As [`products_equal_onnxruntime`], of its `ConvInteger`, whose weight has one scale whatever
/// `per_channel` says.
#[test]
fn convolutions_equal_onnxruntime() -> Result<()> {
    let fixture = Fixture::open("onnxruntime_conv");
    let mut comparison = Comparison::of(&fixture);
    let cases = fixture.cases();
    for case in &cases {
        let shape = sizes(&case["shape"]);
        let weight = made(&shape, &case["weight"]);
        let bias = made_if_any(&shape[..1], &case["bias"]);
        let [padding, stride, dilation, groups] =
            ["padding", "stride", "dilation", "groups"].map(|key| size(&case[key]));
        let xs = made(&sizes(&case["input"]), &case["x"]);
        let qconfig = qconfig(case, false);
        let got = if shape.len() == 4 {
            let config = Conv2dConfig { padding, stride, dilation, groups, ..Default::default() };
            nn::Conv2d::new(weight, bias.clone(), config).quantize(&qconfig)?.forward(&xs)?
        } else {
            let config = Conv1dConfig { padding, stride, dilation, groups, ..Default::default() };
            nn::Conv1d::new(weight, bias.clone(), config).quantize(&qconfig)?.forward(&xs)?
        };
        let area = got.dims()[2..].iter().product();
        comparison.compare(&case.to_string(), &got, bias.as_ref(), area);
    }
    comparison.report(cases.len());
    Ok(())
}
