//! `nn::Linear`, float and quantized: shapes, dtypes, layouts, rows and mistakes.

mod common;

use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_dynquant::observer::{
    CustomObserver, Observer, ObserverConfig, ObserverKind, WeightQParams, ZeroPoints,
};
use candle_dynquant::{
    DynamicConfig, FusedActivation, LayerKind, QConfig, QConfigSpec, QDType, QScheme, Quantizable,
    nn, quantize_dynamic,
};
use candle_nn::{VarBuilder, VarMap};
use common::fixture::difference;

const PRESETS: [QConfig; 3] = [QConfig::pytorch(), QConfig::per_channel(), QConfig::int8()];

fn randn(shape: &[usize]) -> Result<Tensor> {
    // Zero-sized tensors cannot be drawn.
    match shape.iter().product() {
        0 => Tensor::zeros(shape, DType::F32, &Device::Cpu),
        _ => Tensor::randn(0f32, 1., shape, &Device::Cpu),
    }
}

fn layer(n: usize, k: usize) -> Result<nn::Linear> {
    Ok(nn::Linear::new(randn(&[n, k])?, Some(randn(&[n])?)))
}

fn quantized(layer: &nn::Linear, qconfig: &QConfig) -> nn::Linear {
    let mut layer = layer.clone();
    let spec = QConfigSpec::new().kind(LayerKind::Linear, qconfig.clone());
    quantize_dynamic(&mut layer, &spec).expect("quantizes");
    layer
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_dtype(DType::F32).and_then(|t| t.flatten_all());
    tensor.and_then(|t| t.to_vec1()).expect("values")
}

#[test]
fn float_equals_candle() -> Result<()> {
    let ours = layer(5, 7)?;
    let candle = candle_nn::Linear::new(ours.weight().clone(), ours.bias().cloned());
    for shape in [vec![3, 7], vec![2, 3, 7], vec![2, 2, 3, 7]] {
        let xs = randn(&shape)?;
        let (ours, candle) = (ours.forward(&xs)?, candle.forward(&xs)?);
        assert_eq!(ours.dims(), candle.dims());
        let error = (ours - candle)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(error < 1e-5, "{error:e}");
    }
    for dtype in [DType::F16, DType::F64] {
        let cast = |tensor: &Tensor| tensor.to_dtype(dtype);
        let bias = ours.bias().map(cast).transpose()?;
        let candle = candle_nn::Linear::new(cast(ours.weight())?, bias);
        let (ours, xs) = (nn::Linear::from(candle.clone()), cast(&randn(&[3, 7])?)?);
        let (ours, candle) = (ours.forward(&xs)?, candle.forward(&xs)?);
        assert_eq!(difference(&values(&ours), &values(&candle)), None);
    }
    // A weight that is stored as its transpose.
    let weight = randn(&[7, 5])?.t()?;
    let candle = candle_nn::Linear::new(weight, None);
    let (ours, xs) = (nn::Linear::from(candle.clone()), randn(&[3, 7])?);
    let (ours, candle) = (ours.forward(&xs)?, candle.forward(&xs)?);
    assert_eq!(difference(&values(&ours), &values(&candle)), None);
    Ok(())
}

#[test]
fn a_float_row_has_the_same_bits_beside_others() -> Result<()> {
    let layer = layer(70, 500)?.with_activation(FusedActivation::Gelu);
    let xs = randn(&[201, 500])?;
    let together = layer.forward(&xs)?;
    for (first, count) in [(0, 1), (7, 3), (100, 5), (1, 200)] {
        let some = layer.forward(&xs.narrow(0, first, count)?)?;
        let expected = together.narrow(0, first, count)?;
        assert_eq!(difference(&values(&some), &values(&expected)), None, "{first} {count}");
    }
    Ok(())
}

#[test]
fn float_gradients_are_those_of_candle() -> Result<()> {
    let [weight, bias] = [randn(&[6, 9])?, randn(&[6])?].map(|tensor| Var::from_tensor(&tensor));
    let (weight, bias, xs) = (weight?, bias?, Var::from_tensor(&randn(&[2, 4, 9])?)?);
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
            let error = (a - b)?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(error < 1e-4, "{error:e}");
        }
    }
    Ok(())
}

#[test]
fn any_rank_and_any_size_float_and_quantized() -> Result<()> {
    for (n, k) in [(1, 1), (5, 7), (64, 32), (3, 0), (0, 4), (0, 0), (129, 33)] {
        let float = layer(n, k)?;
        for qconfig in PRESETS {
            let int8 = quantized(&float, &qconfig);
            for batch in
                [vec![], vec![1], vec![0], vec![6], vec![2, 0], vec![2, 3], vec![2, 1, 3, 2]]
            {
                let xs = randn(&[&batch[..], &[k]].concat())?;
                let (a, b) = (float.forward(&xs)?, int8.forward(&xs)?);
                assert_eq!(a.dims(), [&batch[..], &[n]].concat(), "{n}x{k} {batch:?}");
                assert_eq!(a.dims(), b.dims(), "{n}x{k} {batch:?}");
                let error =
                    values(&a).iter().zip(values(&b)).fold(0f32, |e, (a, b)| e.max((a - b).abs()));
                assert!(error <= 0.12 * (k as f32).sqrt(), "{n}x{k} {batch:?} {qconfig}: {error}");
            }
        }
    }
    Ok(())
}

#[test]
fn non_contiguous_input_equals_contiguous() -> Result<()> {
    let float = layer(9, 6)?;
    let wide = randn(&[4, 5, 12])?;
    let views = [
        randn(&[6, 8])?.t()?,
        wide.narrow(D::Minus1, 3, 6)?,
        wide.narrow(1, 2, 2)?.narrow(2, 0, 6)?,
        randn(&[1, 6])?.broadcast_as((3, 6))?,
        randn(&[2, 6, 3])?.transpose(1, 2)?,
    ];
    for qconfig in PRESETS {
        let int8 = quantized(&float, &qconfig);
        for xs in &views {
            assert!(!xs.is_contiguous() || xs.layout().start_offset() > 0);
            let (a, b) = (int8.forward(xs)?, int8.forward(&xs.force_contiguous()?)?);
            assert_eq!(difference(&values(&a), &values(&b)), None, "{:?}", xs.shape());
            float.forward(xs)?;
        }
    }
    Ok(())
}

#[test]
fn answers_in_the_dtype_of_the_input() -> Result<()> {
    let float = layer(8, 16)?;
    let int8 = quantized(&float, &QConfig::int8());
    let xs = randn(&[3, 16])?;
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let xs = xs.to_dtype(dtype)?;
        // The result equals the rounded result of the widened input.
        let expected = int8.forward(&xs.to_dtype(DType::F32)?)?.to_dtype(dtype)?;
        let got = int8.forward(&xs)?;
        assert_eq!(got.dtype(), dtype);
        assert_eq!(difference(&values(&got), &values(&expected)), None, "{dtype:?}");
        assert_eq!(float.forward(&xs)?.dtype(), dtype);

        let half = nn::Linear::new(float.weight().to_dtype(dtype)?, None);
        let half = quantized(&half, &QConfig::pytorch());
        assert_eq!(half.forward(&xs)?.dtype(), dtype);
    }
    Ok(())
}

#[test]
fn a_row_alone_and_in_a_batch_has_the_same_bits() -> Result<()> {
    let int8 = quantized(&layer(70, 130)?, &QConfig::int8());
    let mut rows = vec![randn(&[1, 130])?; 9];
    rows[4] = (randn(&[1, 130])? * 1e4)?;
    rows[5] = (randn(&[1, 130])? * 1e-6)?;
    let batch = int8.forward(&Tensor::cat(&rows, 0)?)?;
    for (i, row) in rows.iter().enumerate() {
        let (alone, batched) = (int8.forward(row)?, batch.narrow(0, i, 1)?);
        assert_eq!(difference(&values(&alone), &values(&batched)), None, "row {i}");
    }
    Ok(())
}

#[test]
fn a_row_that_is_not_finite_is_nan_and_touches_no_other() -> Result<()> {
    let float = layer(11, 40)?;
    let clean = randn(&[5, 40])?;
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut data = clean.to_vec2::<f32>()?;
        data[2][17] = poison;
        let data: Vec<f32> = data.into_iter().flatten().collect();
        let xs = Tensor::from_vec(data, (5, 40), &Device::Cpu)?;
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
    let float = layer(6, 20)?;
    for qconfig in PRESETS {
        let ys = quantized(&float, &qconfig).forward(&Tensor::zeros(
            (2, 20),
            DType::F32,
            &Device::Cpu,
        )?)?;
        for row in ys.to_vec2::<f32>()? {
            assert_eq!(row, values(float.bias().expect("a bias")), "{qconfig}");
        }
    }
    Ok(())
}

#[test]
fn small_activations_keep_their_bits_per_row() -> Result<()> {
    let float = layer(16, 64)?;
    let int8 = quantized(&float, &QConfig::int8());
    let xs = (randn(&[4, 64])? * 1e-7)?;
    let no_bias = |ys: Tensor| ys.broadcast_sub(float.bias().expect("a bias"));
    let (float, int8) = (no_bias(float.forward(&xs)?)?, no_bias(int8.forward(&xs)?)?);
    let noise = (&float - int8)?.sqr()?.sum_all()?.to_scalar::<f32>()?;
    let signal = float.sqr()?.sum_all()?.to_scalar::<f32>()?;
    assert!(noise < 0.02 * signal, "{noise} of {signal}");
    Ok(())
}

#[test]
fn constructors_load_and_remember_the_prefix() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let with_bias = nn::linear(4, 3, vb.pp("a.b"))?;
    assert!(with_bias.bias().is_some());
    assert!(nn::linear_no_bias(4, 3, vb.pp("c"))?.bias().is_none());
    assert!(nn::linear_b(4, 3, false, vb.pp("d"))?.bias().is_none());
    assert!(nn::linear_b(4, 3, true, vb.pp("e"))?.bias().is_some());
    let layer = &with_bias as &dyn candle_dynquant::Layer;
    assert_eq!(layer.checkpoint_name(), Some("a.b"));

    let error = with_bias.forward(&randn(&[2, 5])?).unwrap_err().to_string();
    assert!(
        error.contains("a.b") && error.contains("[.., 4]") && error.contains("[2, 5]"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_quantized_layer_still_shows_weight_and_bias() -> Result<()> {
    let float = layer(6, 5)?;
    let int8 = quantized(&float, &QConfig::int8());
    assert_eq!(int8.weight().dims(), [6, 5]);
    let error = (int8.weight() - float.weight())?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(error < 0.03, "{error}");
    assert_eq!(values(int8.bias().expect("a bias")), values(float.bias().expect("a bias")));
    Ok(())
}

#[derive(Quantizable, Clone)]
struct Pair {
    good: nn::Linear,
    bad: nn::Linear,
}

/// A fault in the second layer is an error that names it and leaves the first unchanged.
#[test]
fn a_bad_weight_is_an_error_and_changes_nothing() -> Result<()> {
    let mut poisoned = randn(&[4, 3])?.to_vec2::<f32>()?;
    poisoned[2][1] = f32::NAN;
    let poisoned: Vec<f32> = poisoned.into_iter().flatten().collect();
    let huge = Tensor::full(1e300f64, (4, 3), &Device::Cpu)?;
    let bias = |value: f32| Tensor::new(&[0., value, 0., 0.], &Device::Cpu);
    let cases: [(Tensor, Option<Tensor>, &[&str]); 8] = [
        (randn(&[4, 3])?, Some(bias(f32::NAN)?), &["non-finite bias", "NaN", "index 1"]),
        (randn(&[4, 3])?, Some(bias(f32::NEG_INFINITY)?), &["non-finite bias", "-inf", "index 1"]),
        (Tensor::from_vec(poisoned, (4, 3), &Device::Cpu)?, None, &["non-finite", "NaN", "[2, 1]"]),
        (huge, None, &["non-finite", "inf", "[0, 0]"]),
        (randn(&[4, 3, 2])?, None, &["[out_features, in_features]", "[4, 3, 2]"]),
        (randn(&[4, 3])?, Some(randn(&[5])?), &["bias", "[4]", "[5]"]),
        (Tensor::zeros((4, 3), DType::U8, &Device::Cpu)?, None, &["f32, f16, bf16 or f64", "U8"]),
        (Tensor::ones((1, 70_000), DType::F32, &Device::Cpu)?, None, &["channel 0", "overflow"]),
    ];
    for (weight, bias, words) in cases {
        let mut model = Pair { good: layer(4, 3)?, bad: nn::Linear::new(weight, bias) };
        // An exact name makes an overflow an error, too.
        let spec = QConfigSpec::int8().min_params(0).name("bad", QConfig::int8());
        let result = quantize_dynamic(&mut model, &spec);
        let error = result.expect_err("must fail").to_string();
        assert!(error.starts_with("bad: "), "{error}");
        for word in words {
            assert!(error.contains(word), "{word} in {error}");
        }
        assert!(model.good.projection().qweight().is_none(), "{error}");
    }
    Ok(())
}

#[test]
fn a_bad_input_is_an_error() -> Result<()> {
    let float = layer(4, 3)?;
    for layer in [quantized(&float, &QConfig::int8()), float] {
        for (xs, words) in [
            (Tensor::new(1f32, &Device::Cpu)?, ["[.., 3]", "[]"]),
            (randn(&[3, 4])?, ["[.., 3]", "[3, 4]"]),
            (Tensor::zeros((2, 3), DType::I64, &Device::Cpu)?, ["f32, f16, bf16 or f64", "I64"]),
        ] {
            let error = layer.forward(&xs).expect_err("must fail").to_string();
            for word in words {
                assert!(error.contains(word), "{word} in {error}");
            }
        }
    }
    Ok(())
}

#[test]
fn quantizing_again_is_reported_and_changes_nothing() -> Result<()> {
    let mut model = layer(4, 3)?;
    let first = quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0))?;
    assert_eq!(first.swapped().count(), 1);
    let again = quantize_dynamic(&mut model, &QConfigSpec::pytorch())?;
    assert_eq!(again.swapped().count(), 0);
    assert!(again.to_string().contains("already quantized"), "{again}");
    Ok(())
}

/// Every way to share a product between threads: the crate's pool, callers that find it taken, a
/// rayon pool, and a caller inside a rayon task.
#[test]
fn many_callers_and_rayon_pools_give_the_same_bits() -> Result<()> {
    let int8 = quantized(&layer(300, 256)?, &QConfig::int8());
    let xs = randn(&[64, 256])?;
    let expected = values(&int8.forward(&xs)?);
    let check = || {
        let got = int8.forward(&xs).expect("forward");
        assert_eq!(difference(&values(&got), &expected), None);
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| check()));
        }
    });
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.expect("a pool");
        pool.install(|| {
            check();
            rayon::scope(|scope| (0..20).for_each(|_| scope.spawn(|_| check())));
        });
    }
    Ok(())
}

/// The activation of a whole layer: applied to the same sums, within the stated bound in f64.
#[test]
fn an_activation_is_applied_to_the_output_float_and_quantized() -> Result<()> {
    let plain = layer(70, 33)?;
    let xs = randn(&[9, 33])?;
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
        let check = |fused: &nn::Linear, plain: &nn::Linear, case: &str| -> Result<()> {
            let (got, sums) = (values(&fused.forward(&xs)?), values(&plain.forward(&xs)?));
            for (got, x) in got.into_iter().zip(sums) {
                let expected = function(f64::from(x));
                let bound = 1e-6 * (1. + expected.abs());
                assert!(
                    (f64::from(got) - expected).abs() <= bound,
                    "{activation:?} {case}: {got} at {x}, expected {expected}"
                );
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
    let float = layer(37, 21)?;
    for dtype in [QDType::QInt8, QDType::QUInt8] {
        for qscheme in [
            QScheme::PerTensorSymmetric,
            QScheme::PerTensorAffine,
            QScheme::PerChannelSymmetric,
            QScheme::PerChannelAffine,
        ] {
            let kind = if qscheme.is_per_channel() {
                ObserverKind::PerChannelMinMax
            } else {
                ObserverKind::MinMax
            };
            let qconfig = QConfig::Int8 {
                weight: ObserverConfig::new(kind, dtype, qscheme),
                activation: DynamicConfig::default(),
            };
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
            let error = int8.projection().weight_error(float.projection())?;
            assert!(error.sqnr_db() > 30., "{qconfig}: {error:?}");
            // The product uses the dequantized weight, and quantized activations: each is
            // at most half a code away, and a code is 1/255 of its row's range.
            let xs = randn(&[5, 21])?;
            let near = nn::Linear::new(int8.weight().clone(), int8.bias().cloned());
            let (got, near) = (values(&int8.forward(&xs)?), values(&near.forward(&xs)?));
            let xs = values(&xs);
            for (i, (got, near)) in got.iter().zip(near).enumerate() {
                let (row, channel) = (&xs[i / 37 * 21..][..21], &expected[i % 37 * 21..][..21]);
                let max = row.iter().fold(0f32, |max, x| max.max(*x));
                let min = row.iter().fold(0f32, |min, x| min.min(*x));
                let weight: f32 = channel.iter().map(|w| w.abs()).sum();
                let bound = 0.501 * (max - min) / 255. * weight + 1e-4;
                assert!((got - near).abs() <= bound, "{qconfig}: {got}, float {near}");
            }
        }
    }
    Ok(())
}

#[test]
fn float16_weights_saturate_and_are_counted() -> Result<()> {
    let weight = Tensor::new(&[[1e6f32, -7e4, 65_504., 1e-7]], &Device::Cpu)?;
    let mut model = nn::Linear::new(weight.clone(), None);
    let spec = QConfigSpec::new().kind(LayerKind::Linear, QConfig::float16());
    let report = quantize_dynamic(&mut model, &spec)?;
    assert_eq!(report.layers[0].saturated, 2);
    assert!(
        report
            .to_string()
            .contains("2 weights exceeded the float16 range and were clamped to ±65504"),
        "{report}"
    );
    let subnormal = 1.192_092_9e-7;
    assert_eq!(values(model.weight()), [65_504., -65_504., 65_504., subnormal]);
    assert_eq!(values(&weight)[0], 1e6, "the caller's tensor is as it was");
    let again = quantize_dynamic(&mut model, &spec)?;
    assert_eq!(again.swapped().count(), 0, "{again}");
    Ok(())
}

#[test]
fn layers_of_one_input_give_what_each_gives() -> Result<()> {
    let float =
        [layer(70, 33)?, layer(5, 33)?, layer(64, 33)?.with_activation(FusedActivation::Gelu)];
    let affine = ObserverConfig::new(
        ObserverKind::PerChannelMinMax,
        QDType::QUInt8,
        QScheme::PerChannelAffine,
    );
    let affine = QConfig::Int8 { weight: affine, activation: DynamicConfig::default() };
    let per_row = QConfig::int8();
    let per_tensor = QConfig::pytorch();
    let half = QConfig::float16();
    let bfloat = QConfig::bfloat16();
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
            .map(|(layer, qconfig)| match qconfig {
                Some(qconfig) => quantized(layer, qconfig),
                None => layer.clone(),
            })
            .collect();
        for shape in [&[33][..], &[7, 33], &[2, 3, 33], &[0, 33]] {
            let xs = randn(shape)?;
            for xs in [xs.clone(), xs.to_dtype(DType::F16)?] {
                let outs = nn::Linear::forward_each([&layers[0], &layers[1], &layers[2]], &xs)?;
                for (out, layer) in outs.iter().zip(&layers) {
                    let expected = layer.forward(&xs)?;
                    assert_eq!((out.dims(), out.dtype()), (expected.dims(), expected.dtype()));
                    assert_eq!(difference(&values(out), &values(&expected)), None);
                }
            }
        }
        let wrong = nn::Linear::forward_each([&layers[0], &layers[1]], &randn(&[2, 34])?);
        let message = wrong.expect_err("another size").to_string();
        assert!(message.contains("expected [.., 33], got [2, 34]"), "{message}");
    }
    Ok(())
}

/// `x @ W.half().float().T + b`: sums of `k` terms in f32, each rounded once.
#[test]
fn float16_is_the_product_of_the_rounded_weight() -> Result<()> {
    for (n, k) in [(5, 1), (70, 33), (64, 300), (130, 1030)] {
        let float = layer(n, k)?;
        let half = quantized(&float, &QConfig::float16());
        let rounded = float.weight().to_dtype(DType::F16)?.to_dtype(DType::F64)?;
        assert_eq!(difference(&values(half.weight()), &values(&rounded)), None);
        for rows in [1, 4, 7] {
            let xs = randn(&[rows, k])?;
            let exact =
                |xs: &Tensor, weight: &Tensor| xs.to_dtype(DType::F64)?.matmul(&weight.t()?);
            let bias = float.bias().expect("a bias").to_dtype(DType::F64)?;
            let expected = exact(&xs, &rounded)?.broadcast_add(&bias)?;
            let terms = exact(&xs.abs()?, &rounded.abs()?)?.broadcast_add(&bias.abs()?)?;
            let got = half.forward(&xs)?.to_dtype(DType::F64)?;
            // Each of k + 1 roundings is at most half a last place of a partial sum.
            let bound = (terms * ((k + 1) as f64 * f64::from(f32::EPSILON) / 2.))?;
            let excess = ((got - expected)?.abs()? - bound)?.max_all()?;
            assert!(excess.to_scalar::<f64>()? <= 0., "{n} {k} {rows}");
        }
    }
    Ok(())
}

/// `x.bfloat16().float() @ W.bfloat16().float().T + b`, within the stated bound of the float
/// product, and independent of the other rows of a call.
#[test]
fn bfloat16_is_the_product_of_what_is_rounded() -> Result<()> {
    for (n, k) in [(5, 1), (70, 33), (64, 300), (130, 1030)] {
        let float = layer(n, k)?;
        let bfloat = quantized(&float, &QConfig::bfloat16());
        let rounded = float.weight().to_dtype(DType::BF16)?.to_dtype(DType::F64)?;
        assert_eq!(difference(&values(bfloat.weight()), &values(&rounded)), None);
        let all = randn(&[40, k])?;
        let whole = bfloat.forward(&all)?;
        for rows in [1, 4, 17] {
            let xs = all.narrow(0, 40 - rows, rows)?;
            let exact =
                |xs: &Tensor, weight: &Tensor| xs.to_dtype(DType::F64)?.matmul(&weight.t()?);
            let bias = float.bias().expect("a bias").to_dtype(DType::F64)?;
            let inputs = xs.to_dtype(DType::BF16)?.to_dtype(DType::F64)?;
            let expected = exact(&inputs, &rounded)?.broadcast_add(&bias)?;
            let terms = exact(&inputs.abs()?, &rounded.abs()?)?.broadcast_add(&bias.abs()?)?;
            let got = bfloat.forward(&xs)?;
            assert_eq!(values(&got), values(&whole.narrow(0, 40 - rows, rows)?));
            let got = got.to_dtype(DType::F64)?;
            // Each of k + 1 roundings is at most half a last place of a partial sum.
            let bound = (terms * ((k + 1) as f64 * f64::from(f32::EPSILON) / 2.))?;
            let excess = ((&got - expected)?.abs()? - bound)?.max_all()?;
            assert!(excess.to_scalar::<f64>()? <= 0., "{n} {k} {rows}");
            let float = float.forward(&xs)?.to_dtype(DType::F64)?;
            let max = |of: &Tensor| of.abs()?.max_all()?.to_dtype(DType::F64)?.to_scalar::<f64>();
            let bound = k as f64 * max(&xs)? * max(bfloat.weight())? / 126. + 1e-5;
            assert!(max(&(got - float)?)? <= bound, "{n} {k} {rows}");
        }
    }
    Ok(())
}

#[test]
fn bfloat16_weights_saturate_and_are_counted() -> Result<()> {
    let weight = Tensor::new(&[[3.4e38f32, -3.4e38, 1., 1e-39]], &Device::Cpu)?;
    let mut model = nn::Linear::new(weight, None);
    let report = quantize_dynamic(&mut model, &QConfigSpec::bfloat16())?;
    assert_eq!(report.layers[0].saturated, 2);
    let text = report.to_string();
    let line = "2 weights exceeded the bfloat16 range and were clamped to ±3.39e38";
    assert!(text.contains(line), "{text}");
    let max = 3.389_531_4e38;
    assert_eq!(values(model.weight()), [max, -max, 1., 0.]);
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
        let qconfig = QConfig::Int8 {
            weight: ObserverConfig::new(ObserverKind::Custom(observer), QDType::QInt8, qscheme),
            activation: DynamicConfig::default(),
        };
        let projection = nn::Projection::new(randn(&[4, 3])?, None);
        projection.quantize(&qconfig).map(|_| ())
    };
    let (tensor, channel) = (QScheme::PerTensorSymmetric, QScheme::PerChannelSymmetric);
    assert!(choose(1, tensor).is_ok() && choose(4, channel).is_ok() && choose(1, channel).is_ok());
    for (count, qscheme, expected) in [
        (4, tensor, "expected one scale for per_tensor_symmetric, got 4"),
        (3, channel, "expected one scale, or one for each of 4 output channels, got 3"),
    ] {
        let error = choose(count, qscheme).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    Ok(())
}

#[test]
fn errors_of_weights_are_those_by_hand() -> Result<()> {
    let float = layer(5, 7)?;
    let int8 = float.projection().quantize(&QConfig::int8())?;
    let got = int8.weight_error(float.projection())?;
    let differences = (float.weight() - int8.weight())?.to_dtype(DType::F64)?;
    let mean = |tensor: Tensor| tensor.mean_all()?.to_scalar::<f64>();
    let noise = mean(differences.sqr()?)?;
    let signal = mean(float.weight().to_dtype(DType::F64)?.sqr()?)?;
    let expected =
        [differences.abs()?.max_all()?.to_scalar::<f64>()?, 10. * (signal / noise).log10()];
    let got = [got.max_abs(), got.sqnr_db()];
    for (got, expected) in got.into_iter().zip(expected) {
        assert!((got / expected - 1.).abs() < 1e-5, "{got}, {expected}");
    }
    Ok(())
}

/// Whatever the weight is, and before anything is computed.
#[test]
fn a_bias_of_another_shape_is_named() -> Result<()> {
    for bias in [randn(&[4])?, randn(&[1])?, randn(&[5, 1])?] {
        let mut wrong = nn::Linear::new(randn(&[5, 7])?, Some(bias.clone()));
        let expected = format!("bias: expected [5], got {:?}", bias.dims());
        let error = wrong.forward(&randn(&[2, 7])?).unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
        let error = quantize_dynamic(&mut wrong, &QConfigSpec::int8().min_params(0)).unwrap_err();
        assert!(error.to_string().contains(&expected), "{error}");
    }
    Ok(())
}

#[test]
fn a_projection_tells_its_activation_float_and_quantized() -> Result<()> {
    let mut plain = layer(3, 4)?;
    let mut gelu = layer(3, 4)?.with_activation(FusedActivation::Gelu);
    for _ in ["float", "int8"] {
        assert_eq!(plain.projection().activation(), None);
        assert_eq!(gelu.projection().activation(), Some(FusedActivation::Gelu));
        quantize_dynamic(&mut plain, &QConfigSpec::int8().min_params(0))?;
        quantize_dynamic(&mut gelu, &QConfigSpec::int8().min_params(0))?;
    }
    Ok(())
}

#[test]
fn new_parameters_are_drawn_as_pytorch_draws_them() -> Result<()> {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let layer = nn::linear(100, 400, vb)?;
    // Both uniform up to 1 / sqrt(100) at most.
    let bias = values(layer.bias().expect("a bias"));
    let greatest = bias.iter().fold(0f32, |max, value| max.max(value.abs()));
    assert!((0.09..=0.1).contains(&greatest), "{greatest}");
    Ok(())
}
