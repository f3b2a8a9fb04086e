//! Weights and tables of codes from elsewhere.

use crate::kit::*;

#[test]
fn codes_that_are_read_make_the_same_weight() -> Result<()> {
    let (weight, bias) = (random(&[7, 9]), random(&[7]));
    for weight_type in [QDType::QInt8, QDType::QUInt8] {
        for (per_channel, symmetric) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let config = QConfig::onnxruntime(OnnxRuntimeOptions {
                weight_type,
                per_channel,
                reduce_range: false,
                weight_symmetric: Some(symmetric),
            });
            let QConfig::Int8 { weight: table, .. } = config.clone() else { unreachable!("codes") };
            let before = QWeight::from_float(&weight, Some(&bias), &config)?;
            let (shape, qscheme) = (before.shape(), before.qscheme().expect("int8"));
            let (codes, scales, zeros) = (before.codes(), before.scales(), before.zero_points());
            let (bias, dtype) = (Some(&bias), weight_type);
            let after = QWeight::from_codes(shape, &codes, &scales, &zeros, bias, dtype, qscheme)?;
            assert_eq!(values(&before.dequantize()?), values(&after.dequantize()?));
            assert_eq!(after.codes(), codes);
            assert_eq!((after.scales(), after.zero_points()), (scales, zeros));

            let before = QTable::from_float(&weight, &QConfig::Table(table))?;
            let zeros = before.zero_points().expect("int8").clone();
            let (codes, scales) = (before.codes(), before.scales());
            let after = QTable::from_codes(shape, &codes, scales, zeros, dtype, qscheme)?;
            assert_eq!(values(&before.dequantize()?), values(&after.dequantize()?));
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
        fault(qweight).has(expected);
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
    let (float_qparams, nan) = (PerChannelAffineFloatQParams, [0., f32::NAN]);
    let table = |zeros, dtype, qscheme, expected: &str| {
        let table = QTable::from_codes([2, 1], &[1, 1], &[1., 2.], zeros, dtype, qscheme);
        fault(table).has(expected);
    };
    let float = |zeros: &[f32]| ZeroPoints::Float(zeros.to_vec());
    let int = |zeros: [i32; 2]| ZeroPoints::Int(zeros.to_vec());
    table(float(&nan), QUInt8, float_qparams, "a finite number, got NaN");
    table(float(&[0.]), QUInt8, float_qparams, "number of zero points");
    table(float(&[0., 0.]), QInt8, float_qparams, "float zero points for quint8");
    table(float(&[0., 0.]), QUInt8, PerChannelSymmetric, "integers for all else");
    table(int([0, 0]), QUInt8, float_qparams, "float zero points");
    table(int([0, 256]), QUInt8, PerChannelSymmetric, "0 to 255");
    Ok(())
}
