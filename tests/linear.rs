//! `nn::Linear`, float and quantized: shapes, dtypes, layouts, rows and mistakes.

mod common;

use std::collections::BTreeMap;

use candle_core::Result;
use candle_dynquant::observer::{
    CustomObserver, Observer, ObserverConfig, ObserverKind, WeightQParams, ZeroPoints,
};
use candle_dynquant::{DynamicConfig, QDType, QScheme};
use common::fixture::difference;
use common::*;

const PRESETS: [QConfig; 3] = [QConfig::pytorch(), QConfig::per_channel(), QConfig::int8()];

fn layer(n: usize, k: usize) -> nn::Linear {
    nn::Linear::new(randn(&[n, k]), Some(randn(&[n])))
}

fn bias(layer: &nn::Linear) -> &Tensor {
    layer.bias().expect("a bias")
}

fn int8_of(kind: ObserverKind, dtype: QDType, qscheme: QScheme) -> QConfig {
    let weight = ObserverConfig::new(kind, dtype, qscheme);
    QConfig::Int8 { weight, activation: DynamicConfig::default() }
}

fn greatest(tensor: &Tensor) -> Result<f64> {
    tensor.abs()?.max_all()?.to_dtype(DType::F64)?.to_scalar()
}

fn quantized(layer: &nn::Linear, qconfig: &QConfig) -> nn::Linear {
    let mut layer = layer.clone();
    let spec = QConfigSpec::new().kind(LayerKind::Linear, qconfig.clone());
    quantize_dynamic(&mut layer, &spec).expect("quantizes");
    layer
}

#[test]
fn float_equals_candle() -> Result<()> {
    let ours = layer(5, 7);
    let candle = candle_nn::Linear::new(ours.weight().clone(), ours.bias().cloned());
    for shape in [&[3, 7][..], &[2, 3, 7], &[2, 2, 3, 7]] {
        let xs = randn(shape);
        let (ours, candle) = (ours.forward(&xs)?, candle.forward(&xs)?);
        assert_eq!(ours.dims(), candle.dims());
        assert!(greatest(&(ours - candle)?)? < 1e-5);
    }
    for dtype in [DType::F16, DType::F64] {
        let cast = |tensor: &Tensor| tensor.to_dtype(dtype);
        let bias = ours.bias().map(cast).transpose()?;
        let candle = candle_nn::Linear::new(cast(ours.weight())?, bias);
        let (ours, xs) = (nn::Linear::from(candle.clone()), cast(&randn(&[3, 7]))?);
        assert_same(&ours.forward(&xs)?, &candle.forward(&xs)?, dtype.as_str());
    }
    // A weight that is stored as its transpose.
    let candle = candle_nn::Linear::new(randn(&[7, 5]).t()?, None);
    let (ours, xs) = (nn::Linear::from(candle.clone()), randn(&[3, 7]));
    assert_same(&ours.forward(&xs)?, &candle.forward(&xs)?, "transposed");
    Ok(())
}

#[test]
fn float_gradients_are_those_of_candle() -> Result<()> {
    let [weight, bias, xs] = [&[6, 9][..], &[6], &[2, 4, 9]].map(randn);
    let [weight, bias, xs] = [weight, bias, xs].map(|tensor| Var::from_tensor(&tensor));
    let (weight, bias, xs) = (weight?, bias?, xs?);
    let bias_or_not = [Some(bias.as_tensor().clone()), None];
    for bias in bias_or_not {
        let float = candle_nn::Linear::new(weight.as_tensor().clone(), bias);
        let ours = nn::Linear::from(float.clone()).with_activation(FusedActivation::Relu);
        let losses = [ours.forward(&xs)?, float.forward(&xs)?.relu()?];
        let [ours, candle] = losses.map(|ys| ys.sqr()?.sum_all()?.backward());
        let (ours, candle) = (ours?, candle?);
        let vars = [Some(weight.as_tensor()), float.bias(), Some(xs.as_tensor())];
        for var in vars.into_iter().flatten() {
            let [a, b] = [&ours, &candle].map(|all| all.get(var).expect("a gradient"));
            assert!(greatest(&(a - b)?)? < 1e-4);
        }
    }
    Ok(())
}

#[test]
fn any_rank_and_any_size_float_and_quantized() -> Result<()> {
    for (n, k) in [(1, 1), (5, 7), (64, 32), (3, 0), (0, 4), (0, 0), (129, 33)] {
        let float = layer(n, k);
        for qconfig in PRESETS {
            let int8 = quantized(&float, &qconfig);
            for batch in [&[][..], &[1], &[0], &[6], &[2, 0], &[2, 3], &[2, 1, 3, 2]] {
                let xs = randn(&[batch, &[k]].concat());
                let (a, b) = (float.forward(&xs)?, int8.forward(&xs)?);
                assert_eq!(a.dims(), [batch, &[n]].concat(), "{n}x{k} {batch:?}");
                assert_eq!(a.dims(), b.dims(), "{n}x{k} {batch:?}");
                let pairs = values(&a).into_iter().zip(values(&b));
                let error = pairs.fold(0f32, |error, (a, b)| error.max((a - b).abs()));
                assert!(error <= 0.12 * (k as f32).sqrt(), "{n}x{k} {batch:?} {qconfig}: {error}");
            }
        }
    }
    Ok(())
}

#[test]
fn answers_in_the_dtype_of_the_input() -> Result<()> {
    let float = layer(8, 16);
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let half = nn::Linear::new(float.weight().to_dtype(dtype)?, None);
        let half = quantized(&half, &QConfig::pytorch());
        for layer in [&float, &half] {
            // Of a view, too.
            let xs = randn(&[16, 3]).to_dtype(dtype)?.t()?;
            assert_eq!(layer.forward(&xs)?.dtype(), dtype);
        }
    }
    Ok(())
}

#[test]
fn a_row_has_the_same_bits_alone_and_beside_others() -> Result<()> {
    let float = layer(70, 500).with_activation(FusedActivation::Gelu);
    let mut rows = vec![randn(&[1, 500]); 201];
    rows[4] = (randn(&[1, 500]) * 1e4)?;
    rows[5] = (randn(&[1, 500]) * 1e-6)?;
    let xs = Tensor::cat(&rows, 0)?;
    for layer in [quantized(&float, &QConfig::int8()), float] {
        let together = layer.forward(&xs)?;
        let parts = [(7, 3), (100, 5), (1, 200)].into_iter().chain((0..9).map(|row| (row, 1)));
        for (first, count) in parts {
            let some = layer.forward(&xs.narrow(0, first, count)?)?;
            let expected = together.narrow(0, first, count)?;
            assert_same(&some, &expected, format_args!("{first} {count}"));
        }
    }
    Ok(())
}

#[test]
fn a_row_that_is_not_finite_is_nan_and_touches_no_other() -> Result<()> {
    let float = layer(11, 40);
    let clean = randn(&[5, 40]);
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut data = clean.to_vec2::<f32>()?;
        data[2][17] = poison;
        let data: Vec<f32> = data.into_iter().flatten().collect();
        let xs = Tensor::from_vec(data, (5, 40), CPU)?;
        let others = Tensor::cat(&[clean.narrow(0, 0, 2)?, clean.narrow(0, 3, 2)?], 0)?;
        for qconfig in PRESETS {
            let int8 = quantized(&float, &qconfig);
            let ys = int8.forward(&xs)?.to_vec2::<f32>()?;
            let expected = int8.forward(&others)?.to_vec2::<f32>()?;
            assert!(ys[2].iter().all(|y| y.is_nan()), "{qconfig} {poison}");
            let got = [&ys[0], &ys[1], &ys[3], &ys[4]].map(Vec::clone);
            assert_eq!(got.to_vec(), expected, "{qconfig} {poison}");
        }
    }
    Ok(())
}

#[test]
fn all_zero_input_gives_the_bias_exactly() -> Result<()> {
    let float = layer(6, 20);
    for qconfig in PRESETS {
        let ys = quantized(&float, &qconfig).forward(&zeros(&[2, 20]))?;
        for row in ys.to_vec2::<f32>()? {
            assert_eq!(row, values(bias(&float)), "{qconfig}");
        }
    }
    Ok(())
}

#[test]
fn constructors_load_and_remember_the_prefix() -> Result<()> {
    let vb = variables();
    let with_bias = nn::linear(4, 3, vb.pp("a.b"))?;
    assert!(with_bias.bias().is_some());
    assert!(nn::linear_no_bias(4, 3, vb.pp("c"))?.bias().is_none());
    assert!(nn::linear_b(4, 3, false, vb.pp("d"))?.bias().is_none());
    assert!(nn::linear_b(4, 3, true, vb.pp("e"))?.bias().is_some());
    assert_eq!(with_bias.checkpoint_name(), Some("a.b"));

    assert_fails(with_bias.forward(&randn(&[2, 5])), &["a.b", "[.., 4]", "[2, 5]"]);
    Ok(())
}

#[test]
fn a_quantized_layer_still_shows_weight_and_bias() -> Result<()> {
    let float = layer(6, 5);
    let int8 = quantized(&float, &QConfig::int8());
    assert_eq!(int8.weight().dims(), [6, 5]);
    assert!(greatest(&(int8.weight() - float.weight())?)? < 0.03);
    assert_eq!(values(bias(&int8)), values(bias(&float)));
    // Quantizing again is reported, and changes nothing.
    let mut model = int8;
    let again = quantize_dynamic(&mut model, &QConfigSpec::pytorch())?;
    assert_eq!(again.swapped().count(), 0);
    assert_parts(&again.to_string(), &["already quantized"]);
    Ok(())
}

/// A fault in the second layer is an error that names it and leaves the first unchanged.
#[test]
fn a_bad_weight_is_an_error_and_changes_nothing() -> Result<()> {
    let mut poisoned = values(&randn(&[4, 3]));
    poisoned[2 * 3 + 1] = f32::NAN;
    let poisoned = Tensor::from_vec(poisoned, (4, 3), CPU)?;
    let huge = Tensor::full(1e300f64, (4, 3), CPU)?;
    let bytes = Tensor::zeros((4, 3), DType::U8, CPU)?;
    let good = || randn(&[4, 3]);
    let bias = |value: f32| Tensor::new(&[0., value, 0., 0.], CPU).map(Some);
    let cases: [(Tensor, Option<Tensor>, &[&str]); 8] = [
        (good(), bias(f32::NAN)?, &["non-finite bias", "NaN", "index 1"]),
        (good(), bias(f32::NEG_INFINITY)?, &["non-finite bias", "-inf", "index 1"]),
        (poisoned, None, &["non-finite", "NaN", "[2, 1]"]),
        (huge, None, &["non-finite", "inf", "[0, 0]"]),
        (randn(&[4, 3, 2]), None, &["[out_features, in_features]", "[4, 3, 2]"]),
        (good(), Some(randn(&[5])), &["bias", "[4]", "[5]"]),
        (bytes, None, &["f32, f16, bf16 or f64", "U8"]),
        (ones(&[1, 70_000]), None, &["channel 0", "overflow"]),
    ];
    for (weight, bias, words) in cases {
        let mut model =
            BTreeMap::from([("bad", nn::Linear::new(weight, bias)), ("a good one", layer(4, 3))]);
        // An exact name makes an overflow an error, too.
        let spec = all_int8().name("bad", QConfig::int8());
        let error = assert_fails(quantize_dynamic(&mut model, &spec), words);
        assert!(error.starts_with("bad: "), "{error}");
        assert!(model["a good one"].projection().qweight().is_none(), "{error}");
    }
    Ok(())
}

#[test]
fn a_bad_input_is_an_error() -> Result<()> {
    let float = layer(4, 3);
    for layer in [quantized(&float, &QConfig::int8()), float] {
        for (xs, words) in [
            (Tensor::new(1f32, CPU)?, ["[.., 3]", "[]"]),
            (randn(&[3, 4]), ["[.., 3]", "[3, 4]"]),
            (Tensor::zeros((2, 3), DType::I64, CPU)?, ["f32, f16, bf16 or f64", "I64"]),
        ] {
            assert_fails(layer.forward(&xs), &words);
        }
    }
    Ok(())
}

/// The activation of a whole layer: applied to the same sums, within the stated bound in f64.
#[test]
fn an_activation_is_applied_to_the_output_float_and_quantized() -> Result<()> {
    let plain = layer(70, 33);
    let xs = randn(&[9, 33]);
    let erf_gelu = |x: f64| x * 0.5 * (1. + candle_core::cpu::erf::erf_f64(x / 2f64.sqrt()));
    let tanh_gelu = |x: f64| {
        let inner = (2. / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        x * 0.5 * (1. + inner.tanh())
    };
    let functions: [(FusedActivation, &dyn Fn(f64) -> f64); 8] = [
        (FusedActivation::Relu, &|x| x.max(0.)),
        (FusedActivation::Gelu, &erf_gelu),
        (FusedActivation::GeluTanh, &tanh_gelu),
        (FusedActivation::QuickGelu, &|x| x / (1. + (-1.702 * x).exp())),
        (FusedActivation::Silu, &|x| x / (1. + (-x).exp())),
        (FusedActivation::Tanh, &f64::tanh),
        (FusedActivation::Sigmoid, &|x| 1. / (1. + (-x).exp())),
        (FusedActivation::Elu, &|x| x.max(0.) + x.min(0.).exp_m1()),
    ];
    for (activation, function) in functions {
        let fused = plain.clone().with_activation(activation);
        assert_eq!(plain.projection().activation(), None);
        let check = |fused: &nn::Linear, plain: &nn::Linear, case: &str| -> Result<()> {
            assert_eq!(fused.projection().activation(), Some(activation));
            let (got, sums) = (values(&fused.forward(&xs)?), values(&plain.forward(&xs)?));
            for (got, x) in got.into_iter().zip(sums) {
                let expected = function(x.into());
                let is_near = (f64::from(got) - expected).abs() <= 1e-6 * (1. + expected.abs());
                assert!(is_near, "{activation:?} {case}: {got} at {x}, expected {expected}");
            }
            Ok(())
        };
        check(&fused, &plain, "float")?;
        let halves = [QConfig::float16(), QConfig::bfloat16()];
        for qconfig in PRESETS.into_iter().chain(halves) {
            let case = qconfig.to_string();
            check(&quantized(&fused, &qconfig), &quantized(&plain, &qconfig), &case)?;
        }
    }
    Ok(())
}

/// Facts of a quantized weight: codes, scales and zero points make the dequantized tensor.
#[test]
fn codes_scales_and_zero_points_give_the_dequantized_weight() -> Result<()> {
    let float = layer(37, 21);
    let tensor = [QScheme::PerTensorSymmetric, QScheme::PerTensorAffine];
    let channel = [QScheme::PerChannelSymmetric, QScheme::PerChannelAffine];
    let schemes = [(ObserverKind::MinMax, tensor), (ObserverKind::PerChannelMinMax, channel)];
    for (kind, qscheme) in
        schemes.into_iter().flat_map(|(kind, all)| all.map(|it| (kind.clone(), it)))
    {
        for dtype in [QDType::QInt8, QDType::QUInt8] {
            let qconfig = int8_of(kind.clone(), dtype, qscheme);
            let int8 = quantized(&float, &qconfig);
            let qweight = int8.projection().qweight().expect("quantized");
            assert_eq!((qweight.dtype(), qweight.qscheme()), (Some(dtype), Some(qscheme)));
            let read = int8.projection().codes().expect("int8");
            let (codes, scales) = (read.codes, read.scales);
            let ZeroPoints::Int(zeros) = read.zero_points else {
                panic!("{qconfig}: zero points are integers");
            };
            assert_eq!(read.shape, [37, 21], "{qconfig}");
            let count = if qscheme.is_per_channel() { 37 } else { 1 };
            assert_eq!((scales.len(), zeros.len()), (count, count), "{qconfig}");
            let [least, greatest] = dtype.codes();
            assert!(codes.iter().all(|c| (least..=greatest).contains(c)), "{qconfig}");
            let expected: Vec<f32> = (codes.iter().enumerate())
                .map(|(i, code)| {
                    let channel = (i / 21).min(count - 1);
                    (code - zeros[channel]) as f32 * scales[channel]
                })
                .collect();
            assert_eq!(difference(&values(int8.weight()), &expected), None, "{qconfig}");
        }
    }
    Ok(())
}

#[test]
fn halves_saturate_and_are_counted() -> Result<()> {
    let (max_f16, max_bf16) = (65_504., 3.389_531_4e38);
    let subnormal = 1.192_092_9e-7;
    for (qconfig, name, max, weight, expected) in [
        (
            QConfig::float16(),
            "float16 range and were clamped to ±65504",
            max_f16,
            [1e6f32, -7e4, 65_504., 1e-7],
            [max_f16, subnormal],
        ),
        (
            QConfig::bfloat16(),
            "bfloat16 range and were clamped to ±3.39e38",
            max_bf16,
            [3.4e38, -3.4e38, 1., 1e-39],
            [1., 0.],
        ),
    ] {
        let weight = Tensor::new(&[weight], CPU)?;
        let (mut model, before) = (nn::Linear::new(weight.clone(), None), values(&weight));
        let spec = QConfigSpec::new().kind(LayerKind::Linear, qconfig);
        let report = quantize_dynamic(&mut model, &spec)?;
        assert_eq!(report.layers[0].saturated, 2);
        assert_parts(&report.to_string(), &[&format!("2 weights exceeded the {name}")]);
        assert_eq!(values(model.weight()), [max, -max, expected[0], expected[1]]);
        assert_eq!(values(&weight), before, "the caller's tensor is as it was");
        let again = quantize_dynamic(&mut model, &spec)?;
        assert_eq!(again.swapped().count(), 0, "{again}");
    }
    Ok(())
}

#[test]
fn layers_of_one_input_give_what_each_gives() -> Result<()> {
    let float = [layer(70, 33), layer(5, 33), layer(64, 33).with_activation(FusedActivation::Gelu)];
    let affine = int8_of(ObserverKind::PerChannelMinMax, QDType::QUInt8, QScheme::PerChannelAffine);
    let (per_row, per_tensor) = (QConfig::int8(), QConfig::pytorch());
    let (half, bfloat) = (QConfig::float16(), QConfig::bfloat16());
    // Alike, alike except for the weights, different, and not quantized at all.
    let qconfigs = [
        [Some(&per_row), Some(&per_row), Some(&per_row)],
        [Some(&per_row), Some(&affine), Some(&per_row)],
        [Some(&per_row), Some(&per_tensor), Some(&half)],
        [Some(&bfloat), Some(&half), Some(&bfloat)],
        [None, Some(&per_row), None],
    ];
    for qconfigs in qconfigs {
        let layers: Vec<_> = (float.iter().zip(qconfigs))
            .map(|(layer, qconfig)| qconfig.map_or(layer.clone(), |it| quantized(layer, it)))
            .collect();
        for shape in [&[33][..], &[7, 33], &[2, 3, 33], &[0, 33]] {
            let xs = randn(shape);
            for xs in [xs.clone(), xs.to_dtype(DType::F16)?] {
                let outs = nn::Linear::forward_each([&layers[0], &layers[1], &layers[2]], &xs)?;
                for (out, layer) in outs.iter().zip(&layers) {
                    let expected = layer.forward(&xs)?;
                    assert_eq!((out.dims(), out.dtype()), (expected.dims(), expected.dtype()));
                    assert_same(out, &expected, "");
                }
            }
        }
        let wrong = nn::Linear::forward_each([&layers[0], &layers[1]], &randn(&[2, 34]));
        assert_fails(wrong, &["expected [.., 33], got [2, 34]"]);
    }
    Ok(())
}

/// `x @ W.half().float().T + b` and `x.bfloat16().float() @ W.bfloat16().float().T + b`: sums of `k`
/// terms in f32, each rounded once. Those of bfloat16 are within the stated bound of the float
/// product, and independent of the other rows of a call.
#[test]
fn halves_give_the_product_of_what_is_rounded() -> Result<()> {
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64);
    for (n, k) in [(5, 1), (70, 33), (64, 300), (130, 1030)] {
        let float = layer(n, k);
        let halves = [(DType::F16, QConfig::float16()), (DType::BF16, QConfig::bfloat16())];
        for (dtype, qconfig) in halves {
            let is_bfloat = dtype == DType::BF16;
            let half = quantized(&float, &qconfig);
            let rounded = wide(&float.weight().to_dtype(dtype)?)?;
            assert_same(half.weight(), &rounded, "the weight");
            let all = randn(&[40, k]);
            let whole = half.forward(&all)?;
            for rows in [1, 4, 7, 17] {
                let xs = all.narrow(0, 40 - rows, rows)?;
                let inputs = wide(&if is_bfloat { xs.to_dtype(dtype)? } else { xs.clone() })?;
                let bias = wide(bias(&float))?;
                let expected = inputs.matmul(&rounded.t()?)?.broadcast_add(&bias)?;
                let terms = inputs.abs()?.matmul(&rounded.abs()?.t()?)?;
                let terms = terms.broadcast_add(&bias.abs()?)?;
                let got = half.forward(&xs)?;
                assert_same(&got, &whole.narrow(0, 40 - rows, rows)?, "alone");
                let got = wide(&got)?;
                // Each of k + 1 roundings is at most half a last place of a partial sum.
                let bound = (terms * ((k + 1) as f64 * f64::from(f32::EPSILON) / 2.))?;
                let excess = ((&got - expected)?.abs()? - bound)?.max_all()?;
                assert!(excess.to_scalar::<f64>()? <= 0., "{n} {k} {rows}");
                if is_bfloat {
                    let bound = k as f64 * greatest(&xs)? * greatest(half.weight())? / 126. + 1e-5;
                    let error = greatest(&(got - wide(&float.forward(&xs)?)?)?)?;
                    assert!(error <= bound, "{n} {k} {rows}");
                }
            }
        }
    }
    Ok(())
}

/// Parameters that a custom observer must not choose.
#[test]
fn an_observer_s_choice_has_to_fit_its_scheme() -> Result<()> {
    #[derive(Debug)]
    struct Chosen(usize);
    impl Observer for Chosen {
        fn observe(&mut self, _: &Tensor) -> candle_dynquant::Result<()> {
            Ok(())
        }
        fn calculate_qparams(&self) -> candle_dynquant::Result<WeightQParams> {
            let zero_points = ZeroPoints::Int(vec![0; self.0]);
            WeightQParams::new(QDType::QInt8, vec![0.1; self.0], zero_points)
        }
    }
    let choose = |count, qscheme| {
        let observer = CustomObserver::new("Chosen", move |_| Ok(Box::new(Chosen(count))));
        let qconfig = int8_of(ObserverKind::Custom(observer), QDType::QInt8, qscheme);
        let projection = nn::Projection::new(randn(&[4, 3]), None);
        projection.quantize(&qconfig).map(|_| ())
    };
    let (tensor, channel) = (QScheme::PerTensorSymmetric, QScheme::PerChannelSymmetric);
    assert!(choose(1, tensor).is_ok() && choose(4, channel).is_ok() && choose(1, channel).is_ok());
    for (count, qscheme, expected) in [
        (4, tensor, "expected one scale for per_tensor_symmetric, got 4"),
        (3, channel, "expected one scale, or one for each of 4 output channels, got 3"),
    ] {
        assert_fails(choose(count, qscheme), &[expected]);
    }
    Ok(())
}

#[test]
fn errors_of_weights_are_those_by_hand() -> Result<()> {
    let float = layer(5, 7);
    let int8 = float.projection().quantize(&QConfig::int8())?;
    let got = int8.weight_error(float.projection())?;
    let differences = (float.weight() - int8.weight())?.to_dtype(DType::F64)?;
    let mean = |tensor: Tensor| tensor.mean_all()?.to_scalar::<f64>();
    let noise = mean(differences.sqr()?)?;
    let signal = mean(float.weight().to_dtype(DType::F64)?.sqr()?)?;
    let expected = [greatest(&differences)?, 10. * (signal / noise).log10()];
    let got = [got.max_abs(), got.sqnr_db()];
    for (got, expected) in got.into_iter().zip(expected) {
        assert!((got / expected - 1.).abs() < 1e-5, "{got}, {expected}");
    }
    Ok(())
}

/// Whatever the weight is, and before anything is computed.
#[test]
fn a_bias_of_another_shape_is_named() -> Result<()> {
    for bias in [randn(&[4]), randn(&[1]), randn(&[5, 1])] {
        let mut wrong = nn::Linear::new(randn(&[5, 7]), Some(bias.clone()));
        let expected = format!("bias: expected [5], got {:?}", bias.dims());
        assert_fails(wrong.forward(&randn(&[2, 7])), &[&expected]);
        assert_fails(quantize_dynamic(&mut wrong, &all_int8()), &[&expected]);
    }
    Ok(())
}

#[test]
fn new_parameters_are_drawn_as_pytorch_draws_them() -> Result<()> {
    let vb = variables();
    let layer = nn::linear(100, 400, vb)?;
    // Both uniform up to 1 / sqrt(100) at most.
    let bias = values(bias(&layer));
    let greatest = bias.iter().fold(0f32, |max, value| max.max(value.abs()));
    assert!((0.09..=0.1).contains(&greatest), "{greatest}");
    Ok(())
}
