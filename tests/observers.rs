//! Observers against torch 2.9.1 and onnxruntime 1.31.1, by the fixtures of `assets/reference`,
//! and the arguments that they refuse.

mod common;

use candle_core::{DType, Device, Tensor};
use candle_dynquant::observer::{
    CustomObserver, HistogramObserver, Observer, ObserverConfig, ObserverKind, WeightQParams,
    ZeroPoints,
};
use candle_dynquant::qparams::{Rounding, onnxruntime_activation};
use candle_dynquant::{DynamicConfig, Error, ErrorKind, QConfig, QDType, QScheme, QWeight, Result};
use common::fixture::{Fixture, difference, report};
use common::generator;
use serde_json::Value;

fn int(value: &Value) -> usize {
    let int = value.as_u64().unwrap_or_else(|| panic!("no size: {value}"));
    int as usize
}

fn named<T: serde::de::DeserializeOwned>(name: &Value) -> T {
    let name = name.as_str().expect("a name").to_lowercase();
    serde_json::from_value(name.into()).expect("a known name")
}

fn made(shape: &[usize], recipe: &Value) -> Tensor {
    let values = generator::tensor(shape, recipe);
    Tensor::from_vec(values, shape, &Device::Cpu).expect("a tensor")
}

fn config(kind: ObserverKind, dtype: QDType, qscheme: QScheme) -> ObserverConfig {
    ObserverConfig::new(kind, dtype, qscheme)
}

fn min_max(dtype: QDType, qscheme: QScheme) -> ObserverConfig {
    config(ObserverKind::MinMax, dtype, qscheme)
}

fn tensor<T: candle_core::WithDType>(values: &[T]) -> Tensor {
    Tensor::new(values, &Device::Cpu).expect("a tensor")
}

/// The configuration that a fixture describes.
fn parsed(value: &Value) -> ObserverConfig {
    let averaging_constant = value["averaging_constant"].as_f64().unwrap_or_default() as f32;
    let kind = match value["kind"].as_str().expect("a kind") {
        "MinMax" => ObserverKind::MinMax,
        "PerChannelMinMax" => ObserverKind::PerChannelMinMax,
        "MovingAverageMinMax" => ObserverKind::MovingAverageMinMax { averaging_constant },
        "MovingAveragePerChannelMinMax" => {
            ObserverKind::MovingAveragePerChannelMinMax { averaging_constant }
        }
        "Histogram" => ObserverKind::Histogram { bins: int(&value["bins"]) },
        kind => panic!("{kind}"),
    };
    let mut config = config(kind, named(&value["dtype"]), named_scheme(&value["qscheme"]));
    config.ch_axis = value["ch_axis"].as_i64().expect("an axis") as isize;
    config.reduce_range = value["reduce_range"].as_bool().expect("a flag");
    config.eps = value["eps"].as_f64().expect("a float") as f32;
    config.quant_range = value["quant_range"]
        .as_array()
        .map(|range| [0, 1].map(|end| range[end].as_i64().expect("a code") as i32));
    config
}

fn named_scheme(name: &Value) -> QScheme {
    match name.as_str() {
        Some("per_channel_affine_float_qparams") => QScheme::PerChannelAffineFloatQParams,
        _ => named(name),
    }
}

/// Takes consecutive parts of a fixture's list.
struct Results<T>(std::vec::IntoIter<T>);

impl<T> Results<T> {
    fn new(values: Vec<T>) -> Self {
        Self(values.into_iter())
    }

    fn take(&mut self, count: usize) -> Vec<T> {
        let taken: Vec<T> = self.0.by_ref().take(count).collect();
        assert_eq!(taken.len(), count, "the fixture is longer");
        taken
    }
}

/// The codes of a tensor, in row order of the tensor with axis `ch_axis` first, modulo 256.
fn codes(qparams: &WeightQParams, tensor: &Tensor, ch_axis: Option<usize>) -> Result<Vec<u8>> {
    let channels = qparams.scales().len();
    let by_channel = tensor.transpose(0, ch_axis.unwrap_or(0))?.contiguous()?;
    let values = by_channel.flatten_all()?.to_vec1::<f32>()?;
    let width = values.len() / channels;
    let codes = values.chunks(width).enumerate();
    Ok(codes
        .flat_map(|(channel, values)| qparams.quantize(channel, values))
        .map(|code| code as u8)
        .collect())
}

/// The sum of all bits, each times its index from 1.
fn checksum(counts: &[f32]) -> i32 {
    let bits = counts.iter().map(|count| count.to_bits());
    let sum =
        (1u32..).zip(bits).fold(0u32, |sum, (i, bits)| sum.wrapping_add(i.wrapping_mul(bits)));
    sum as i32
}

/// Bytes of a contiguous tensor with axes 0 and `axis` swapped.
fn swapped(bytes: Vec<u8>, shape: &[usize], axis: usize) -> Result<Vec<u8>> {
    let tensor = Tensor::from_vec(bytes, shape, &Device::Cpu)?.transpose(0, axis)?;
    Ok(tensor.contiguous()?.flatten_all()?.to_vec1()?)
}

#[test]
fn qparams_and_codes_equal_torch() -> Result<()> {
    let fixture = Fixture::open("observers");
    let (inputs, configs) = (fixture.json("inputs"), fixture.json("configs"));
    let mut scales = Results::new(fixture.f32("scale"));
    let mut zero_points = Results::new(fixture.i32("zero_point"));
    let mut float_zero_points = Results::new(fixture.f32("float_zero_point"));
    let mut mins = Results::new(fixture.f32("min_val"));
    let mut maxs = Results::new(fixture.f32("max_val"));
    let mut ranges = Results::new(fixture.f32("range"));
    let mut counts = Results::new(fixture.i32("counts"));
    let mut all_codes = Results::new(fixture.u8("codes"));
    let cases = fixture.cases();
    assert!(cases.len() > 2_000);
    let (mut failures, mut histograms, mut coded_elements, mut refused) = (Vec::new(), 0, 0, 0);
    for case in &cases {
        let [input, config, channels, coded] = [0, 1, 2, 3].map(|i| int(&case[i]));
        let batches = inputs[input].as_array().expect("a list");
        let tensors: Vec<Tensor> = batches
            .iter()
            .map(|recipe| {
                let shape = recipe["shape"].as_array().expect("a shape");
                made(&shape.iter().map(int).collect::<Vec<_>>(), recipe)
            })
            .collect();
        let what = format!("{} {}", configs[config], inputs[input]);
        let config = parsed(&configs[config]);
        let mut observer = config.build()?;
        let mut histogram = match config.kind {
            ObserverKind::Histogram { bins } => Some(HistogramObserver::new(&config, bins)?),
            _ => None,
        };
        let mut fail = |message: String| failures.push(format!("{what}: {message}"));
        for tensor in &tensors {
            observer.observe(tensor)?;
            if let Some(histogram) = &mut histogram {
                histogram.observe(tensor)?;
            }
        }
        let got = observer.calculate_qparams();
        let expected = scales.take(channels);
        let expected_zeros = zero_points.take(channels);
        let kept = observer.ranges();
        for (end, i, expected) in [("min", 0, mins.take(channels)), ("max", 1, maxs.take(channels))]
        {
            let got: Vec<_> = kept.iter().map(|range| range[i]).collect();
            if let Some(difference) = difference(&got, &expected) {
                fail(format!("{end}_val: {difference}"));
            }
        }
        let floats = config.qscheme == QScheme::PerChannelAffineFloatQParams;
        let expected_floats = float_zero_points.take(if floats { channels } else { 0 });
        if let Some(observer) = &histogram {
            histograms += 1;
            let range = observer.range().map_or(Vec::new(), |range| range.to_vec());
            if let Some(difference) = difference(&range, &ranges.take(2 * channels)) {
                fail(format!("range: {difference}"));
            }
            let expected = counts.take(usize::from(channels > 0));
            let got = observer.histogram().map(checksum);
            if got.as_slice() != expected {
                fail("histogram differs".into());
            }
        }
        // Infinite scales of torch are errors here.
        if !expected.iter().all(|scale| scale.is_finite()) {
            refused += 1;
            if !got.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidArgument) {
                fail(format!("got {got:?}, expected an error"));
            }
            continue;
        }
        let got = got?;
        if channels == 0 {
            assert_eq!(got.scales(), [1.], "{what}");
            continue;
        }
        if let Some(difference) = difference(got.scales(), &expected) {
            fail(format!("scale: {difference}"));
        }
        match got.zero_points() {
            ZeroPoints::Int(got) if !floats && *got == expected_zeros => {}
            ZeroPoints::Float(got) if difference(got, &expected_floats).is_none() => {}
            got => fail(format!("zero_point: got {got:?}, expected {expected_zeros:?}")),
        }
        if coded == 1 {
            let count = tensors[0].elem_count();
            coded_elements += count;
            let rank = tensors[0].rank();
            let axis = config.qscheme.is_per_channel();
            let axis = axis.then(|| config.ch_axis.rem_euclid(rank as isize) as usize);
            let expected = all_codes.take(count);
            let expected = swapped(expected, tensors[0].dims(), axis.unwrap_or(0))?;
            if codes(&got, &tensors[0], axis)? != expected {
                fail("codes differ".into());
            }
        }
    }
    report(&failures, cases.len());
    assert!(histograms >= 120 && coded_elements > 20_000 && refused > 5);
    assert_eq!(counts.0.len(), 0);
    for rest in [scales.0, mins.0, maxs.0, ranges.0, float_zero_points.0] {
        assert_eq!(rest.len(), 0, "the fixture is longer than its cases");
    }
    assert_eq!(all_codes.0.len(), 0);
    Ok(())
}

#[test]
fn weights_equal_onnxruntime() -> Result<()> {
    let fixture = Fixture::open("onnxruntime_linear");
    assert_eq!(fixture.text("onnxruntime"), "1.31.1");
    let mut scales = Results::new(fixture.f32("scale"));
    let mut zero_points = Results::new(fixture.i32("zero_point"));
    let mut all_codes = Results::new(fixture.u8("codes"));
    let cases = fixture.cases();
    assert!(cases.len() > 400);
    let mut failures = Vec::new();
    for case in &cases {
        let (n, k) = (int(&case["n"]), int(&case["k"]));
        let dtype: QDType = named(&case["weight_type"]);
        let flag = |key: &str| case[key].as_bool();
        // By default, signed weights are symmetric.
        let symmetric = flag("symmetric").unwrap_or(dtype == QDType::QInt8);
        let per_channel = flag("per_channel") == Some(true);
        let qscheme = match (per_channel, symmetric) {
            (false, true) => QScheme::PerTensorSymmetric,
            (false, false) => QScheme::PerTensorAffine,
            (true, true) => QScheme::PerChannelSymmetric,
            (true, false) => QScheme::PerChannelAffine,
        };
        let mut config = config(ObserverKind::OnnxRuntime, dtype, qscheme);
        config.reduce_range = flag("reduce_range") == Some(true);
        let weight = made(&[n, k], &case["weight"]);
        let mut observer = config.build()?;
        observer.observe(&weight)?;
        let got = observer.calculate_qparams()?;
        let channels = if per_channel { n } else { 1 };
        if let Some(difference) = difference(got.scales(), &scales.take(channels)) {
            failures.push(format!("{case}: scale: {difference}"));
        }
        let expected = ZeroPoints::Int(zero_points.take(channels));
        if *got.zero_points() != expected {
            let got = got.zero_points();
            failures.push(format!("{case}: got {got:?}, expected {expected:?}"));
        }
        if codes(&got, &weight, None)? != all_codes.take(n * k) {
            failures.push(format!("{case}: codes differ"));
        }
    }
    report(&failures, cases.len());
    assert_eq!((scales.0.len(), all_codes.0.len()), (0, 0));
    Ok(())
}

#[test]
fn activation_qparams_equal_onnxruntime() {
    let fixture = Fixture::open("onnxruntime_linear");
    let activations = fixture.json("activations");
    let (scale, zero_point) =
        (fixture.f32("activation_scale"), fixture.i32("activation_zero_point"));
    let mut codes = Results::new(fixture.u8("activation_codes"));
    let mut failures = Vec::new();
    let activations = activations.as_array().expect("a list");
    assert!(activations.len() > 100);
    for (i, recipe) in activations.iter().enumerate() {
        let count = int(&recipe["count"]);
        let values = generator::tensor(&[count], recipe);
        let min = values.iter().copied().fold(f32::INFINITY, f32::min);
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let got = onnxruntime_activation(min, max, false);
        if (got.scale.to_bits(), got.zero_point) != (scale[i].to_bits(), zero_point[i]) {
            let expected = (scale[i], zero_point[i]);
            failures.push(format!("{recipe}: got {got:?}, expected {expected:?}"));
        }
        let expected = codes.take(count);
        // Zero divided by a scale that rounded to zero has no meaningful code.
        if got.scale > 0. {
            let (scale, zero) = (got.scale, got.zero_point);
            let divide = Rounding::Divide;
            let got = candle_dynquant::qparams::quantize(&values, scale, zero, [0, 255], divide);
            if !got.iter().eq(expected
                .iter()
                .map(|code| i32::from(*code))
                .collect::<Vec<_>>()
                .iter())
            {
                failures.push(format!("{recipe}: codes differ"));
            }
        }
    }
    report(&failures, activations.len());
}

#[test]
fn senseless_configurations_are_refused() {
    use QDType::{QInt8, QUInt8};
    use QScheme::*;
    let average = |averaging_constant| ObserverKind::MovingAverageMinMax { averaging_constant };
    let averages =
        |averaging_constant| ObserverKind::MovingAveragePerChannelMinMax { averaging_constant };
    let histogram = |bins| ObserverKind::Histogram { bins };
    let with = |mut config: ObserverConfig, change: &dyn Fn(&mut ObserverConfig)| {
        change(&mut config);
        config
    };
    let range = |dtype, qscheme, range| {
        with(min_max(dtype, qscheme), &|config| {
            config.quant_range = Some(range);
        })
    };
    let eps = |eps| with(min_max(QInt8, PerTensorAffine), &|config| config.eps = eps);
    let reduced = |config| with(config, &|config| config.reduce_range = true);
    let onnxruntime = |qscheme| config(ObserverKind::OnnxRuntime, QInt8, qscheme);
    let cases = [
        (
            min_max(QInt8, PerChannelSymmetric),
            "a scheme per tensor for the MinMax observer, got per_channel_symmetric",
        ),
        (config(ObserverKind::PerChannelMinMax, QInt8, PerTensorAffine), "a scheme per channel"),
        (config(average(0.1), QInt8, PerChannelAffine), "per tensor"),
        (config(averages(0.1), QInt8, PerTensorAffine), "per channel"),
        (config(histogram(2_048), QInt8, PerChannelAffine), "per tensor"),
        (config(average(0.), QInt8, PerTensorAffine), "got 0"),
        (config(average(1.5), QInt8, PerTensorAffine), "got 1.5"),
        (config(average(-0.1), QInt8, PerTensorAffine), "got -0.1"),
        (
            config(average(f32::NAN), QInt8, PerTensorAffine),
            "averaging_constant: expected above 0 and at most 1, got NaN",
        ),
        (config(averages(f32::INFINITY), QInt8, PerChannelAffine), "got inf"),
        (config(histogram(0), QInt8, PerTensorAffine), "bins: expected 1 to 1048576, got 0"),
        (config(histogram(usize::MAX), QInt8, PerTensorAffine), "got 1844"),
        (range(QInt8, PerTensorAffine, [1, 100]), "includes 0, got 1 to 100"),
        (range(QInt8, PerTensorAffine, [-100, -1]), "includes 0"),
        (range(QInt8, PerTensorAffine, [0, 0]), "min below"),
        (range(QInt8, PerTensorAffine, [3, -3]), "includes 0"),
        (range(QInt8, PerTensorAffine, [0, 255]), "both in -128 to 127, got 0 to 255"),
        (range(QUInt8, PerTensorAffine, [-1, 100]), "0 to 255"),
        (range(QUInt8, PerTensorAffine, [0, 256]), "0 to 255"),
        (range(QUInt8, PerTensorAffine, [i32::MIN, i32::MAX]), "0 to 255"),
        (reduced(range(QUInt8, PerTensorAffine, [0, 1])), "got 0 to 0"),
        (reduced(min_max(QUInt8, PerTensorSymmetric)), "got symmetric quint8 with reduce_range"),
        (reduced(config(histogram(9), QUInt8, PerTensorSymmetric)), "symmetric quint8"),
        (eps(0.), "eps: expected a positive normal number, got 0"),
        (eps(-1.), "eps"),
        (eps(f32::NAN), "eps"),
        (eps(f32::INFINITY), "eps"),
        (eps(1e-40), "eps"),
        (onnxruntime(PerChannelAffineFloatQParams), "integer zero points"),
        (
            with(onnxruntime(PerTensorAffine), &|config| {
                config.quant_range = Some([-8, 7]);
            }),
            "no quant_range for the OnnxRuntime observer, got [-8, 7]",
        ),
        (with(onnxruntime(PerTensorAffine), &|config| config.eps = 0.5), "eps"),
    ];
    for (config, message) in cases {
        let error = config.build().expect_err(message).to_string();
        assert!(error.contains(message), "{config:?}: {error:?}, not {message:?}");
    }
}

/// An observer of each kind that observes.
fn observers() -> Vec<Box<dyn Observer>> {
    let (dtype, tensor, channel) =
        (QDType::QUInt8, QScheme::PerTensorAffine, QScheme::PerChannelAffine);
    let averaging_constant = 0.5;
    [
        config(ObserverKind::MinMax, dtype, tensor),
        config(ObserverKind::PerChannelMinMax, dtype, channel),
        config(ObserverKind::MovingAverageMinMax { averaging_constant }, dtype, tensor),
        config(ObserverKind::MovingAveragePerChannelMinMax { averaging_constant }, dtype, channel),
        config(ObserverKind::Histogram { bins: 64 }, dtype, tensor),
        config(ObserverKind::OnnxRuntime, dtype, tensor),
        config(ObserverKind::OnnxRuntime, dtype, channel),
    ]
    .map(|config| config.build().expect("an observer"))
    .into()
}

#[test]
fn a_tensor_that_is_refused_changes_nothing() -> Result<()> {
    for mut observer in observers() {
        let good = Tensor::new(&[[1f32, -2.], [0.5, 4.]], &Device::Cpu)?;
        observer.observe(&good)?;
        let before = observer.calculate_qparams()?;
        for (value, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-f32::INFINITY, "-inf")] {
            let bad = Tensor::new(&[[1f32, 9.], [value, value]], &Device::Cpu)?;
            let error = observer.observe(&bad).expect_err(text).to_string();
            assert!(error.contains(&format!("{text} at index [1, 0]")), "{error}");
            let bad = bad.t()?;
            let error = observer.observe(&bad).expect_err(text).to_string();
            assert!(error.contains("[0, 1]"), "{error}");
        }
        let integers = tensor(&[1u32, 2]);
        let error = observer.observe(&integers).expect_err("integers");
        assert!(error.kind() == ErrorKind::Unsupported, "{error}");
        // Empty tensors are ignored, whatever their rank.
        for shape in [vec![0], vec![0, 3], vec![3, 0], vec![2, 0, 2]] {
            observer.observe(&Tensor::zeros(shape, DType::F32, &Device::Cpu)?)?;
        }
        assert_eq!(observer.calculate_qparams()?, before, "{observer:?}");
    }
    Ok(())
}

#[test]
fn the_number_of_channels_stays() -> Result<()> {
    let mut config =
        config(ObserverKind::PerChannelMinMax, QDType::QInt8, QScheme::PerChannelSymmetric);
    let mut observer = config.build()?;
    observer.observe(&Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?)?;
    let other = Tensor::zeros((3, 2), DType::F32, &Device::Cpu)?;
    let error = observer.observe(&other).expect_err("3 channels");
    assert!(error.kind() == ErrorKind::ShapeMismatch, "{error}");
    observer.observe(&Tensor::zeros((2, 5, 7), DType::F32, &Device::Cpu)?)?;
    for ch_axis in [2, -3, isize::MAX, isize::MIN] {
        config.ch_axis = ch_axis;
        let error = config.build()?.observe(&other).expect_err("an axis");
        let expected = format!("rank 2, got {ch_axis}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    config.ch_axis = 0;
    let scalar = Tensor::new(1f32, &Device::Cpu)?;
    let error = config.build()?.observe(&scalar).expect_err("no axis");
    assert!(error.to_string().contains("rank 0"), "{error}");
    Ok(())
}

#[test]
fn any_float_dtype_rank_and_layout() -> Result<()> {
    let values = [-1f32, 0.25, 1.5, 0.5, -0.75, 2.];
    let mut seen = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for shape in [vec![6], vec![2, 3], vec![1, 2, 3]] {
            let tensor = tensor(&values).reshape(shape)?.to_dtype(dtype)?;
            let mut observer = min_max(QDType::QUInt8, QScheme::PerTensorAffine).build()?;
            observer.observe(&tensor)?;
            seen.push(observer.ranges());
        }
    }
    let scalar = Tensor::new(-1f32, &Device::Cpu)?;
    let mut observer = min_max(QDType::QUInt8, QScheme::PerTensorAffine).build()?;
    observer.observe(&scalar)?;
    assert_eq!(observer.ranges(), [[-1., -1.]]);
    // A view that starts and ends inside of its storage.
    let padded = tensor(&[9f32, -1., 0.5, 2., -9.]).narrow(0, 1, 3)?;
    let mut observer = HistogramObserver::new(
        &config(ObserverKind::Histogram { bins: 3 }, QDType::QUInt8, QScheme::PerTensorAffine),
        3,
    )?;
    observer.observe(&padded)?;
    assert_eq!(observer.histogram(), Some(&[1., 1., 1.][..]));
    seen.push(observer.ranges());
    assert!(seen.iter().all(|seen| *seen == [[-1., 2.]]), "{seen:?}");
    Ok(())
}

#[test]
fn before_the_first_element_scale_is_1_and_zero_point_0() -> Result<()> {
    for observer in observers() {
        let qparams = observer.calculate_qparams()?;
        assert_eq!(qparams.scales(), [1.], "{observer:?}");
        assert_eq!(*qparams.zero_points(), ZeroPoints::Int(vec![0]));
    }
    Ok(())
}

#[test]
fn numbers_too_far_apart_are_an_error_not_a_scale() -> Result<()> {
    let far = tensor(&[-3e38f32, 3e38]);
    let affine = min_max(QDType::QUInt8, QScheme::PerTensorAffine);
    let mut observer = affine.build()?;
    observer.observe(&far)?;
    let error = observer.calculate_qparams().expect_err("infinite");
    assert!(error.to_string().contains("got inf"), "{error}");

    let averaging_constant = 0.5;
    let kind = ObserverKind::MovingAverageMinMax { averaging_constant };
    let mut observer = config(kind, QDType::QUInt8, QScheme::PerTensorAffine).build()?;
    observer.observe(&tensor(&[-3e38f32]))?;
    observer.observe(&tensor(&[3e38f32]))?;
    let error = observer.calculate_qparams().expect_err("infinite");
    assert!(error.to_string().contains("finite ends"), "{error}");

    let mut observer = HistogramObserver::new(&affine, 2_048)?;
    observer.observe(&tensor(&[1f32, 2.]))?;
    let before = observer.calculate_qparams()?;
    let error = observer.observe(&far).expect_err("infinite");
    assert!(error.to_string().contains("2048 bins"), "{error}");
    assert_eq!(observer.calculate_qparams()?, before);

    // Symmetric schemes and ONNX Runtime, which subtracts in f64, have a scale for these values.
    for kind in [ObserverKind::MinMax, ObserverKind::OnnxRuntime] {
        let mut observer = config(kind, QDType::QInt8, QScheme::PerTensorSymmetric).build()?;
        observer.observe(&far)?;
        assert!(observer.calculate_qparams()?.scales()[0].is_finite());
    }
    // torch has no histogram of a single number that far from zero.
    let mut observer = HistogramObserver::new(&affine, 2_048)?;
    observer.observe(&tensor(&[1e30f32]))?;
    assert_eq!(observer.range(), Some([1e30, 1e30]));
    Ok(())
}

#[test]
fn onnxruntime_keeps_its_way_to_round() -> Result<()> {
    let config = config(ObserverKind::OnnxRuntime, QDType::QInt8, QScheme::PerTensorSymmetric);
    let mut observer = config.build()?;
    observer.observe(&tensor(&[1f32]))?;
    let qparams = observer.calculate_qparams()?;
    let scale = qparams.scales()[0];
    // About halfway between two codes, and beyond the codes.
    let xs: Vec<_> = (-140..140).map(|x| (x as f32 + 0.5) * scale).collect();
    let of = |rounding| candle_dynquant::qparams::quantize(&xs, scale, 0, [-128, 127], rounding);
    assert_ne!(of(Rounding::Divide), of(Rounding::Multiply));
    assert_eq!(qparams.quantize(0, &xs), of(Rounding::Divide));
    Ok(())
}

#[test]
fn placeholder_has_no_qparams() {
    let config = config(ObserverKind::Placeholder, QDType::QUInt8, QScheme::PerTensorAffine);
    let mut observer = config.build().expect("an observer");
    observer.observe(&tensor(&[1f32])).expect("ignored");
    let error = observer.calculate_qparams().expect_err("no scale");
    assert!(error.to_string().contains("PlaceholderObserver"), "{error}");
}

#[test]
fn hostile_qparams_are_refused() {
    let new = |scales: &[f32], zero_points| {
        WeightQParams::new(QDType::QUInt8, scales.to_vec(), zero_points)
    };
    let ints = |zero_points: &[i32]| ZeroPoints::Int(zero_points.to_vec());
    let floats = |zero_points: &[f32]| ZeroPoints::Float(zero_points.to_vec());
    let cases = [
        (new(&[], ints(&[])), "1, one for each scale, got 0"),
        (new(&[1., 1.], ints(&[0])), "2, one for each scale, got 1"),
        (new(&[1.], floats(&[])), "got 0"),
        (new(&[0.], ints(&[0])), "scale"),
        (new(&[-1.], ints(&[0])), "got -1"),
        (new(&[1., f32::NAN], ints(&[0, 0])), "got NaN"),
        (new(&[f32::INFINITY], ints(&[0])), "got inf"),
        (new(&[1e-40], ints(&[0])), "normal"),
        (new(&[1.], ints(&[-1])), "0 to 255, got -1"),
        (new(&[1.], ints(&[256])), "got 256"),
        (new(&[1.], floats(&[f32::NAN])), "a finite number, got NaN"),
    ];
    for (got, message) in cases {
        let error = got.expect_err(message).to_string();
        assert!(error.contains(message), "{error:?}, not {message:?}");
    }
    let qparams = new(&[0.5, 1.], ints(&[0, 10])).expect("qparams");
    for range in [[0, 0], [5, 1], [-1, 5], [0, 256], [i32::MIN, i32::MAX]] {
        assert!(qparams.clone().with_quant_range(range).is_err());
    }
    assert_eq!(qparams.quantize(1, &[f32::MAX, -1e30, 0.5]), [255, 0, 10]);
    assert_eq!(qparams.quantize(2, &[1.]), [0; 0], "no such channel");
}

/// An observer that a user defines: the maximum magnitude of each row, to the next power of two.
#[derive(Debug, Default)]
struct PowerOfTwo {
    scales: Vec<f32>,
}

impl Observer for PowerOfTwo {
    fn observe(&mut self, tensor: &Tensor) -> Result<()> {
        let max = tensor.abs()?.max(1)?.to_vec1::<f32>()?;
        let scale = |max: &f32| (max / 127.).log2().ceil().exp2();
        self.scales = max.iter().map(scale).collect();
        Ok(())
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        let zero_points = ZeroPoints::Int(vec![0; self.scales.len()]);
        WeightQParams::new(QDType::QInt8, self.scales.clone(), zero_points)
    }
}

/// An observer that returns the parameters it was built with.
#[derive(Debug)]
struct Fixed(Option<WeightQParams>);

impl Observer for Fixed {
    fn observe(&mut self, _: &Tensor) -> Result<()> {
        Ok(())
    }

    fn calculate_qparams(&self) -> Result<WeightQParams> {
        let qparams = self.0.clone();
        qparams.ok_or_else(|| Error::new(ErrorKind::Unsupported, "no parameters"))
    }
}

fn int8(weight: ObserverConfig) -> QConfig {
    let activation = DynamicConfig::default();
    QConfig::Int8 { weight, activation }
}

#[test]
fn a_users_own_observer_quantizes_a_weight() -> Result<()> {
    let custom = CustomObserver::new("PowerOfTwo", |_| Ok(Box::<PowerOfTwo>::default()));
    assert_eq!(format!("{custom:?}"), "CustomObserver(\"PowerOfTwo\")");
    let kind = ObserverKind::Custom(custom);
    assert_eq!(kind, kind.clone());
    let config = config(kind, QDType::QInt8, QScheme::PerChannelSymmetric);
    let weight = Tensor::new(&[[1f32, -0.5, 0.25], [100., 3., -127.]], &Device::Cpu)?;
    let qweight = QWeight::from_float(&weight, None, &int8(config))?;
    assert_eq!(qweight.scales(), [1. / 64., 1.]);
    assert_eq!(qweight.codes(), [64, -32, 16, 100, 3, -127]);

    // Invalid parameters are rejected, wherever they come from.
    let custom = |name: &str, scale: f32, dtype, zero_points: ZeroPoints| {
        let qparams = WeightQParams::new(dtype, vec![scale], zero_points).ok();
        CustomObserver::new(name, move |_| Ok(Box::new(Fixed(qparams.clone()))))
    };
    let int = || ZeroPoints::Int(vec![0]);
    let nan = Tensor::new(&[[1f32, f32::NAN]], &Device::Cpu)?;
    for (custom, weight) in [
        (custom("none", -1., QDType::QInt8, int()), &weight),
        (custom("quint8", 1., QDType::QUInt8, int()), &weight),
        (custom("floats", 1., QDType::QInt8, ZeroPoints::Float(vec![0.])), &weight),
        (custom("blind", 1., QDType::QInt8, int()), &nan),
    ] {
        let mut config = min_max(QDType::QInt8, QScheme::PerTensorSymmetric);
        config.kind = ObserverKind::Custom(custom);
        let config = int8(config);
        let got = QWeight::from_float(weight, None, &config);
        assert!(got.is_err(), "{config:?}");
    }
    Ok(())
}

#[test]
fn any_symmetric_qint8_observer_quantizes_a_weight() -> Result<()> {
    let weight = made(
        &[4, 50],
        &serde_json::json!({"kind": "student_t", "seed": 7, "exponent": -9, "constant": 0}),
    );
    for kind in
        [ObserverKind::MinMax, ObserverKind::Histogram { bins: 2_048 }, ObserverKind::OnnxRuntime]
    {
        let config = config(kind, QDType::QInt8, QScheme::PerTensorSymmetric);
        let mut observer = config.build()?;
        observer.observe(&weight)?;
        let qparams = observer.calculate_qparams()?;
        let qweight = QWeight::from_float(&weight, None, &int8(config))?;
        assert_eq!(qweight.scales(), qparams.scales());
        let got: Vec<u8> = qweight.codes().into_iter().map(|code| code as u8).collect();
        assert_eq!(got, codes(&qparams, &weight, None)?);
    }
    Ok(())
}
