//! Weights and tables of codes from elsewhere.

use anyhow::Result;
use candle_core::{Device, Tensor};
use candle_dynquant::observer::ZeroPoints;
use candle_dynquant::{QConfig, QDType, QScheme, QTable, QWeight};

#[test]
fn codes_that_are_read_make_the_same_weight() -> Result<()> {
    let weight = Tensor::randn(0f32, 1., (7, 9), &Device::Cpu)?;
    let bias = Tensor::randn(0f32, 1., 7, &Device::Cpu)?;
    let onnx = |weight_type, per_channel, symmetric| {
        QConfig::onnxruntime(candle_dynquant::OnnxRuntimeOptions {
            weight_type,
            per_channel,
            reduce_range: false,
            weight_symmetric: Some(symmetric),
        })
    };
    for dtype in [QDType::QInt8, QDType::QUInt8] {
        for (per_channel, symmetric) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let config = onnx(dtype, per_channel, symmetric);
            let before = QWeight::from_float(&weight, Some(&bias), &config)?;
            let qscheme = before.qscheme().expect("int8");
            let (codes, scales) = (before.codes(), before.scales());
            let zero_points = before.zero_points();
            let shape = before.shape();
            let after = QWeight::from_codes(
                shape,
                &codes,
                &scales,
                &zero_points,
                Some(&bias),
                dtype,
                qscheme,
            )?;
            let values =
                |weight: &QWeight| Ok::<_, anyhow::Error>(weight.dequantize()?.to_vec2::<f32>()?);
            assert_eq!(values(&before)?, values(&after)?);
            assert_eq!(after.codes(), codes);
            assert_eq!((after.scales(), after.zero_points()), (scales, zero_points));
            let QConfig::Int8 { weight: table, .. } = config else {
                unreachable!("codes");
            };
            let before = QTable::from_float(&weight, &QConfig::Table(table))?;
            let zeros = before.zero_points().expect("int8").clone();
            let codes = before.codes();
            let after = QTable::from_codes(shape, &codes, before.scales(), zeros, dtype, qscheme)?;
            let values =
                |table: &QTable| Ok::<_, anyhow::Error>(table.dequantize()?.to_vec2::<f32>()?);
            assert_eq!(values(&before)?, values(&after)?);
        }
    }
    Ok(())
}

#[test]
fn wrong_arguments_are_refused() -> Result<()> {
    use QDType::{QInt8, QUInt8};
    use QScheme::{PerChannelAffineFloatQParams, PerChannelSymmetric, PerTensorAffine};
    let bias = Tensor::new(&[1f32, f32::NAN], &Device::Cpu)?;
    #[derive(Clone, Copy)]
    struct Parts<'a> {
        shape: [usize; 2],
        codes: &'a [i32],
        scales: &'a [f32],
        zeros: &'a [i32],
        bias: Option<&'a Tensor>,
        dtype: QDType,
        qscheme: QScheme,
    }
    let fit = Parts {
        shape: [2, 1],
        codes: &[1; 2],
        scales: &[1., 2.],
        zeros: &[0; 2],
        bias: None,
        dtype: QInt8,
        qscheme: PerChannelSymmetric,
    };
    let refused = |parts: Parts<'_>, expected: &str| {
        let Parts { shape, codes, scales, zeros, bias, dtype, qscheme } = parts;
        let qweight = QWeight::from_codes(shape, codes, scales, zeros, bias, dtype, qscheme);
        let error = qweight.expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    let with_codes = |codes, dtype| Parts { codes, dtype, ..fit };
    let with_scales = |scales| Parts { scales, ..fit };
    let with_scheme = |dtype, qscheme| Parts { dtype, qscheme, ..fit };
    let with_bias = |bias| Parts { bias: Some(bias), ..fit };
    refused(with_codes(&[1; 3], QInt8), "number of codes: expected 2, got 3");
    refused(with_codes(&[1, 128], QInt8), "code: expected -128 to 127, got 128 at index 1");
    refused(with_codes(&[1, -1], QUInt8), "code: expected 0 to 255, got -1 at index 1");
    refused(with_scales(&[1.]), "number of scales: expected 2, got 1");
    refused(with_scales(&[1., -2.]), "scale: expected a finite positive number, got -2 at index 1");
    refused(with_scales(&[1., 0.]), "got 0 at index 1");
    refused(with_scheme(QInt8, PerTensorAffine), "number of scales: expected 1, got 2");
    refused(with_scheme(QUInt8, PerChannelAffineFloatQParams), "integer zero points");
    refused(Parts { zeros: &[0], ..fit }, "number of zero points: expected 2, got 1");
    refused(Parts { zeros: &[0, 200], ..fit }, "zero point: expected -128 to 127, got 200");
    refused(with_bias(&bias), "non-finite bias");
    refused(with_bias(&bias.narrow(0, 0, 1)?), "expected [2], got [1]");
    refused(Parts { shape: [usize::MAX, 2], ..fit }, "elements");
    let (codes, scales, zeros) = (&[127; 70_000][..], &[1.][..], &[0][..]);
    let long =
        Parts { shape: [1, 70_000], codes, scales, zeros, ..with_scheme(QInt8, PerTensorAffine) };
    refused(long, "can overflow");
    let table = |zeros, dtype, qscheme| {
        let table = QTable::from_codes([2, 1], &[1, 1], &[1., 2.], zeros, dtype, qscheme);
        table.err().map_or(String::new(), |error| error.to_string())
    };
    let float = |zeros: &[f32]| ZeroPoints::Float(zeros.to_vec());
    let cases = [
        (
            table(float(&[0., f32::NAN]), QUInt8, PerChannelAffineFloatQParams),
            "a finite number, got NaN",
        ),
        (table(float(&[0.]), QUInt8, PerChannelAffineFloatQParams), "number of zero points"),
        (
            table(float(&[0., 0.]), QInt8, PerChannelAffineFloatQParams),
            "float zero points for quint8",
        ),
        (table(float(&[0., 0.]), QUInt8, PerChannelSymmetric), "integers for all else"),
        (
            table(ZeroPoints::Int(vec![0, 0]), QUInt8, PerChannelAffineFloatQParams),
            "float zero points",
        ),
        (table(ZeroPoints::Int(vec![0, 256]), QUInt8, PerChannelSymmetric), "0 to 255"),
    ];
    for (got, expected) in cases {
        assert!(got.contains(expected), "{expected}: {got}");
    }
    Ok(())
}
