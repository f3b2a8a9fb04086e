//! The formulas at their seams, by values that torch and onnxruntime gave or that are exact.

use super::*;

const EPS: f32 = f32::EPSILON;

fn params(scale: f32, zero_point: i32) -> QParams {
    QParams { scale, zero_point }
}

#[test]
fn schemes_and_dtypes_say_what_they_are() {
    for (scheme, per_channel, symmetric) in [
        (QScheme::PerTensorSymmetric, false, true),
        (QScheme::PerTensorAffine, false, false),
        (QScheme::PerChannelSymmetric, true, true),
        (QScheme::PerChannelAffine, true, false),
        (QScheme::PerChannelAffineFloatQParams, true, false),
    ] {
        let got = (scheme.is_per_channel(), scheme.is_symmetric());
        assert_eq!(got, (per_channel, symmetric), "{scheme}");
    }
    assert_eq!(QDType::QInt8.codes(), [-128, 127]);
    assert_eq!(QDType::QUInt8.codes(), [0, 255]);
}

#[test]
fn weights_scales_are_those_of_the_stretched_range() {
    // The zero point is given, and the greater magnitude decides the range.
    for (min, max) in [(-2.55, 1.), (-1., 2.55), (1., 2.55), (-2.55, -1.)] {
        assert_eq!(symmetric(min, max, [-128, 127], 7, EPS), params(0.02, 7));
    }
    assert_eq!(symmetric(0., 0., [0, 255], 128, EPS), params(EPS, 128));

    for (min, max, range, expected) in [
        (-1., 1.55, [0, 255], params(0.01, 100)),
        (-1.55, 1., [0, 255], params(0.01, 155)),
        (-1., 1.55, [-128, 127], params(0.01, -28)),
        (-64., 191., [0, 255], params(1., 64)),
        // Stretched to 0.
        (0.5, 2.55, [0, 255], params(0.01, 0)),
        (-2.55, -0.5, [-128, 127], params(0.01, 127)),
        (0., 0., [-128, 127], params(EPS, -128)),
        // Far below the minimum code, and no overflow.
        (f32::MIN / 2., 0., [-128, 127], params(f32::MIN / -510., 127)),
    ] {
        assert_eq!(affine(min, max, range, EPS), expected, "[{min}, {max}] {range:?}");
    }

    assert_eq!(affine_float(1., 256., [0, 255], EPS), (1., -1.));
    assert_eq!(affine_float(-51., 459., [0, 255], EPS), (2., 25.5));
    assert_eq!(affine_float(3., 3., [0, 255], EPS), (1., -3.));
    assert_eq!(affine_float(-6., 504., [0, 255], 2.), (1., 6.));
}

#[test]
fn onnxruntimes_weights_have_its_scales_and_codes() {
    let smallest = f32::MIN_POSITIVE;
    for (min, max, range, symmetric, expected) in [
        (-2.54, 1., [-127, 127], true, params(0.02, 0)),
        (-1., 2.54, [-127, 127], true, params(0.02, 0)),
        // Half of an odd number of codes: to even.
        (-2., 255., [0, 255], true, params(2., 128)),
        (-1., 126., [0, 127], true, params(252. / 127., 64)),
        (-64., 191., [0, 255], false, params(1., 64)),
        (-64., 446., [-128, 127], false, params(2., -96)),
        (0.5, 255., [0, 255], false, params(1., 0)),
        (-255., -0.5, [0, 255], false, params(1., 255)),
        (0., 255. * smallest, [0, 255], false, params(smallest, 0)),
        (0., 254. * smallest, [0, 255], false, params(1., 0)),
        (0., 0., [-127, 127], true, params(1., 0)),
    ] {
        let got = onnxruntime_weight(min, max, range, symmetric);
        assert_eq!(got, expected, "[{min}, {max}] {range:?} {symmetric}");
    }
    for (dtype, symmetric, reduce_range, expected) in [
        (QDType::QInt8, true, true, [-64, 64]),
        (QDType::QInt8, true, false, [-127, 127]),
        (QDType::QInt8, false, true, [-64, 64]),
        (QDType::QInt8, false, false, [-128, 127]),
        (QDType::QUInt8, true, true, [0, 127]),
        (QDType::QUInt8, true, false, [0, 255]),
        (QDType::QUInt8, false, true, [0, 127]),
        (QDType::QUInt8, false, false, [0, 255]),
    ] {
        let got = onnxruntime_quant_range(dtype, symmetric, reduce_range);
        assert_eq!(got, expected, "{dtype} {symmetric} {reduce_range}");
    }
}

#[test]
fn codes_are_rounded_half_to_even_and_clamped() {
    use Rounding::{Divide, Multiply};
    let codes = |x, scale, zero, range, rounding| quantize(&[x], scale, zero, range, rounding)[0];
    for rounding in [Multiply, Divide] {
        let values = [-50., 0., 0.75, 1.25, 1000., f32::NEG_INFINITY, f32::INFINITY];
        let got = quantize(&values, 0.5, 100, [0, 255], rounding);
        assert_eq!(got, [0, 100, 102, 102, 255, 0, 255], "{rounding:?}");
        assert_eq!(codes(3., 1., -128, [-128, 127], rounding), -125);
    }
    // Just beside a tie, on either side of it by the two ways.
    for (x, scale, multiplied) in [(2.25, 0.3, 8), (10.849_999, 0.7, 16)] {
        assert_eq!(codes(x, scale, 0, [0, 255], Multiply), multiplied);
        assert_eq!(codes(x, scale, 0, [0, 255], Divide), multiplied - 1);
    }
    // A float zero point is added before rounding.
    let got = quantize_float(&[-1., 0.25, 0.75, 1.25, 9., -9.], 0.5, 2.5, [0, 15]);
    assert_eq!(got, [0, 3, 4, 5, 15, 0]);
}

/// The end with the greater error would give 212. What torch gives elsewhere is in tests/pytorch.rs.
#[test]
fn the_end_with_the_lesser_error_has_the_zero_point_of_a_whole_call() {
    assert_eq!(per_tensor_activation(-6_863.75, 1_372.75, false), params(32.3, 213));
}

#[test]
fn activations_of_rows_and_of_onnxruntime_are_affine() {
    let smallest = f32::MIN_POSITIVE;
    for (min, max, reduce_range, expected) in [
        (-64., 191., false, params(1., 64)),
        (-64., 63., true, params(1., 64)),
        (10., 255., false, params(1., 0)),
        (-255., -10., false, params(1., 255)),
        // 2.5 and 3.5 are rounded to even.
        (-2.5, 252.5, false, params(1., 2)),
        (-3.5, 251.5, false, params(1., 4)),
        (0., 0., false, params(smallest, 0)),
        (-1e-39, 0., true, params(smallest, 0)),
        // The span alone leaves f32.
        (-3e38, 3e38, false, params((6e38 / 255.) as f32, 128)),
    ] {
        let got = per_row_activation(min, max, reduce_range);
        assert_eq!(got, expected, "[{min:e}, {max:e}] {reduce_range}");
    }
    for (min, max, reduce_range, expected) in [
        (-1., 1.55, false, params(0.01, 100)),
        (-64., 63., true, params(1., 64)),
        (10., 255., false, params(1., 0)),
        (-255., -10., false, params(1., 255)),
        (-2.5, 252.5, false, params(1., 2)),
        (0., 0., false, params(1., 0)),
        // The scale is 0, and 0 / 0 the maximum code.
        (0., 1e-45, false, params(0., 255)),
    ] {
        let got = onnxruntime_activation(min, max, reduce_range);
        assert_eq!(got, expected, "[{min:e}, {max:e}] {reduce_range}");
    }
}

#[test]
fn per_row_keeps_zero_exact_and_ends_in_range() {
    for (min, max) in [
        (0., 0.),
        (-1., 1.),
        (0., 1e-40),
        (-1e-40, 0.),
        (-3e38, 3e38),
        (f32::MIN, f32::MAX),
        (0.001, 0.002),
        (-7., -3.),
        (-0.1, 25.4),
    ] {
        for reduce_range in [false, true] {
            let q = per_row_activation(min, max, reduce_range);
            let top = if reduce_range { 127 } else { 255 };
            assert!(q.scale.is_finite() && q.scale > 0., "{min} {max}: {q:?}");
            assert!((1. / q.scale).is_finite(), "{min} {max}: {q:?}");
            assert!((0..=top).contains(&q.zero_point), "{min} {max}: {q:?}");
            for end in [min.min(0.), max.max(0.)] {
                let code = end.mul_add(1. / q.scale, q.zero_point as f32);
                let slack = 0.51;
                assert!(code > -slack && code < top as f32 + slack, "{min} {max}: {code}");
            }
        }
    }
}
