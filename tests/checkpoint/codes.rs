//! Weights and tables of codes that were made elsewhere.

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
    let make = |shape, codes: &[i32], scales: &[f32], zeros: &[i32], bias, dtype, qscheme| {
        let made = QWeight::from_codes(shape, codes, scales, zeros, bias, dtype, qscheme);
        made.err().map_or(String::new(), |error| error.to_string())
    };
    let (one, two, zeros) = (&[1i32; 2][..], &[1f32, 2.][..], &[0i32; 2][..]);
    let cases = [
        (
            make(
                [2, 1],
                &[1; 3],
                two,
                zeros,
                None,
                QInt8,
                PerChannelSymmetric,
            ),
            "number of codes: expected 2, got 3",
        ),
        (
            make([2, 1], one, &[1.], zeros, None, QInt8, PerChannelSymmetric),
            "number of scales: expected 2, got 1",
        ),
        (
            make([2, 1], one, two, zeros, None, QInt8, PerTensorAffine),
            "number of scales: expected 1, got 2",
        ),
        (
            make([2, 1], one, two, &[0], None, QInt8, PerChannelSymmetric),
            "number of zero points: expected 2, got 1",
        ),
        (
            make(
                [2, 1],
                &[1, 128],
                two,
                zeros,
                None,
                QInt8,
                PerChannelSymmetric,
            ),
            "code: expected -128 to 127, got 128 at index 1",
        ),
        (
            make(
                [2, 1],
                &[1, -1],
                two,
                zeros,
                None,
                QUInt8,
                PerChannelSymmetric,
            ),
            "code: expected 0 to 255, got -1 at index 1",
        ),
        (
            make(
                [2, 1],
                one,
                two,
                &[0, 200],
                None,
                QInt8,
                PerChannelSymmetric,
            ),
            "zero point: expected -128 to 127, got 200",
        ),
        (
            make(
                [2, 1],
                one,
                &[1., -2.],
                zeros,
                None,
                QInt8,
                PerChannelSymmetric,
            ),
            "scale: expected a finite positive number, got -2 at index 1",
        ),
        (
            make(
                [2, 1],
                one,
                &[1., 0.],
                zeros,
                None,
                QInt8,
                PerChannelSymmetric,
            ),
            "got 0 at index 1",
        ),
        (
            make(
                [2, 1],
                one,
                two,
                zeros,
                Some(&bias),
                QInt8,
                PerChannelSymmetric,
            ),
            "non-finite bias",
        ),
        (
            make(
                [2, 1],
                one,
                two,
                zeros,
                Some(&bias.narrow(0, 0, 1)?),
                QInt8,
                PerChannelSymmetric,
            ),
            "expected [2], got [1]",
        ),
        (
            make(
                [2, 1],
                one,
                two,
                zeros,
                None,
                QUInt8,
                PerChannelAffineFloatQParams,
            ),
            "integer zero points",
        ),
        (
            make(
                [usize::MAX, 2],
                one,
                two,
                zeros,
                None,
                QInt8,
                PerChannelSymmetric,
            ),
            "elements",
        ),
        (
            make(
                [1, 70_000],
                &[127; 70_000],
                &[1.],
                &[0],
                None,
                QInt8,
                PerTensorAffine,
            ),
            "can overflow",
        ),
    ];
    for (got, expected) in cases {
        assert!(got.contains(expected), "{expected}: {got}");
    }
    let table = |zeros, dtype, qscheme| {
        let made = QTable::from_codes([2, 1], &[1, 1], &[1., 2.], zeros, dtype, qscheme);
        made.err().map_or(String::new(), |error| error.to_string())
    };
    let float = |zeros: &[f32]| ZeroPoints::Float(zeros.to_vec());
    let cases = [
        (
            table(float(&[0., f32::NAN]), QUInt8, PerChannelAffineFloatQParams),
            "a finite number, got NaN",
        ),
        (
            table(float(&[0.]), QUInt8, PerChannelAffineFloatQParams),
            "number of zero points",
        ),
        (
            table(float(&[0., 0.]), QInt8, PerChannelAffineFloatQParams),
            "float zero points for quint8",
        ),
        (
            table(float(&[0., 0.]), QUInt8, PerChannelSymmetric),
            "integers for all else",
        ),
        (
            table(
                ZeroPoints::Int(vec![0, 0]),
                QUInt8,
                PerChannelAffineFloatQParams,
            ),
            "float zero points",
        ),
        (
            table(ZeroPoints::Int(vec![0, 256]), QUInt8, PerChannelSymmetric),
            "0 to 255",
        ),
    ];
    for (got, expected) in cases {
        assert!(got.contains(expected), "{expected}: {got}");
    }
    Ok(())
}
