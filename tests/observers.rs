//! Observers against torch 2.9.1 and onnxruntime 1.31.1, by the fixtures of `assets/reference`,
//! and the arguments that they refuse.

mod common;

use candle_dynquant::observer::{
    CustomObserver, HistogramObserver, Observer, ObserverConfig, ObserverKind, WeightQParams,
    ZeroPoints,
};
use candle_dynquant::qparams::{Rounding, onnxruntime_activation, quantize};
use candle_dynquant::{DynamicConfig, Error, QDType, QScheme, QWeight, Result};
use common::fixture::{Failures, Fixture, difference, size, sizes};
use common::generator::{self, made};
use common::*;
use serde_json::Value;

fn named<T: serde::de::DeserializeOwned>(name: &Value) -> T {
    let name = name.as_str().expect("a name").to_lowercase();
    serde_json::from_value(name.into()).expect("a known name")
}

fn config(kind: ObserverKind, dtype: QDType, qscheme: QScheme) -> ObserverConfig {
    ObserverConfig::new(kind, dtype, qscheme)
}

fn min_max(dtype: QDType, qscheme: QScheme) -> ObserverConfig {
    config(ObserverKind::MinMax, dtype, qscheme)
}

fn tensor<T: candle_core::WithDType>(values: &[T]) -> Tensor {
    Tensor::new(values, CPU).expect("a tensor")
}

/// An observer of this configuration that has seen a tensor.
fn observed(config: &ObserverConfig, tensor: &Tensor) -> Result<Box<dyn Observer>> {
    let mut observer = config.build()?;
    observer.observe(tensor)?;
    Ok(observer)
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
        "Histogram" => ObserverKind::Histogram { bins: size(&value["bins"]) },
        kind => panic!("{kind}"),
    };
    let mut config = config(kind, named(&value["dtype"]), named_scheme(&value["qscheme"]));
    config.ch_axis = value["ch_axis"].as_i64().expect("an axis") as isize;
    config.reduce_range = value["reduce_range"].as_bool().expect("a flag");
    config.eps = value["eps"].as_f64().expect("a float") as f32;
    let range = value["quant_range"].as_array();
    config.quant_range =
        range.map(|range| [0, 1].map(|end| range[end].as_i64().expect("a code") as i32));
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
    let by_channel = values(&tensor.transpose(0, ch_axis.unwrap_or(0))?);
    let channels = by_channel.chunks(by_channel.len() / qparams.scales().len()).enumerate();
    let codes = channels.flat_map(|(channel, values)| qparams.quantize(channel, values));
    Ok(codes.map(|code| code as u8).collect())
}

/// The sum of all bits, each times its index from 1.
fn checksum(counts: &[f32]) -> i32 {
    let bits = (1u32..).zip(counts).map(|(i, count)| i.wrapping_mul(count.to_bits()));
    bits.fold(0, u32::wrapping_add) as i32
}

/// Bytes of a contiguous tensor with axes 0 and `axis` swapped.
fn swapped(bytes: Vec<u8>, shape: &[usize], axis: usize) -> Result<Vec<u8>> {
    let tensor = Tensor::from_vec(bytes, shape, CPU)?.transpose(0, axis)?;
    Ok(tensor.contiguous()?.flatten_all()?.to_vec1()?)
}

#[test]
fn qparams_and_codes_equal_torch() -> Result<()> {
    let fixture = Fixture::open("observers");
    let (inputs, configs) = (fixture.json("inputs"), fixture.json("configs"));
    let floats = |name| Results::new(fixture.f32(name));
    let [mut scales, mut float_zero_points] = ["scale", "float_zero_point"].map(floats);
    let [mut mins, mut maxs, mut ranges] = ["min_val", "max_val", "range"].map(floats);
    let mut zero_points = Results::new(fixture.i32("zero_point"));
    let mut counts = Results::new(fixture.i32("counts"));
    let mut all_codes = Results::new(fixture.u8("codes"));
    let cases = fixture.cases();
    assert!(cases.len() > 2_000);
    let mut failures = Failures::default();
    let [mut histograms, mut coded_elements, mut refused] = [0; 3];
    for case in &cases {
        let [input, config, channels, coded] = [0, 1, 2, 3].map(|i| size(&case[i]));
        let batches = inputs[input].as_array().expect("a list").iter();
        let tensors: Vec<Tensor> =
            batches.map(|recipe| made(&sizes(&recipe["shape"]), recipe)).collect();
        let what = format!("{} {}", configs[config], inputs[input]);
        let config = parsed(&configs[config]);
        let mut observer = config.build()?;
        let mut histogram = match config.kind {
            ObserverKind::Histogram { bins } => Some(HistogramObserver::new(&config, bins)?),
            _ => None,
        };
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
        for (i, expected) in [mins.take(channels), maxs.take(channels)].into_iter().enumerate() {
            let got: Vec<_> = kept.iter().map(|range| range[i]).collect();
            failures.compare(format_args!("{what}: min_val or max_val"), &got, &expected);
        }
        let floats = config.qscheme == QScheme::PerChannelAffineFloatQParams;
        let expected_floats = float_zero_points.take(if floats { channels } else { 0 });
        if let Some(observer) = &histogram {
            histograms += 1;
            let range = observer.range().map_or(Vec::new(), |range| range.to_vec());
            failures.compare(format_args!("{what}: range"), &range, &ranges.take(2 * channels));
            let expected = counts.take(usize::from(channels > 0));
            let is_same = observer.histogram().map(checksum).as_slice() == expected;
            failures.check(is_same, format_args!("{what}: histogram differs"));
        }
        // Infinite scales of torch are errors here.
        if !expected.iter().all(|scale| scale.is_finite()) {
            refused += 1;
            let is_error = got.as_ref().is_err_and(|e| e.kind() == ErrorKind::InvalidArgument);
            failures.check(is_error, format_args!("{what}: got {got:?}, expected an error"));
            continue;
        }
        let got = got?;
        if channels == 0 {
            assert_eq!(got.scales(), [1.], "{what}");
            continue;
        }
        failures.compare(format_args!("{what}: scale"), got.scales(), &expected);
        match got.zero_points() {
            ZeroPoints::Int(got) if !floats && *got == expected_zeros => {}
            ZeroPoints::Float(got) if difference(got, &expected_floats).is_none() => {}
            got => {
                failures.add(format!("{what}: zero_point: {got:?}, expected {expected_zeros:?}"))
            }
        }
        if coded == 1 {
            let count = tensors[0].elem_count();
            coded_elements += count;
            let rank = tensors[0].rank();
            let axis = config.qscheme.is_per_channel();
            let axis = axis.then(|| config.ch_axis.rem_euclid(rank as isize) as usize);
            let expected = all_codes.take(count);
            let expected = swapped(expected, tensors[0].dims(), axis.unwrap_or(0))?;
            let is_same = codes(&got, &tensors[0], axis)? == expected;
            failures.check(is_same, format_args!("{what}: codes differ"));
        }
    }
    failures.report(cases.len());
    assert!(histograms >= 120 && coded_elements > 20_000 && refused > 5);
    assert_eq!((counts.0.len(), all_codes.0.len()), (0, 0));
    for rest in [scales.0, mins.0, maxs.0, ranges.0, float_zero_points.0] {
        assert_eq!(rest.len(), 0, "the fixture is longer than its cases");
    }
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
    let mut failures = Failures::default();
    for case in &cases {
        let (n, k) = (size(&case["n"]), size(&case["k"]));
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
        let got = observed(&config, &weight)?.calculate_qparams()?;
        let channels = if per_channel { n } else { 1 };
        failures.compare(format_args!("{case}: scale"), got.scales(), &scales.take(channels));
        let (zeros, expected) = (got.zero_points(), ZeroPoints::Int(zero_points.take(channels)));
        let failure = format_args!("{case}: got {zeros:?}, expected {expected:?}");
        failures.check(*zeros == expected, failure);
        let are_same = codes(&got, &weight, None)? == all_codes.take(n * k);
        failures.check(are_same, format_args!("{case}: codes differ"));
    }
    failures.report(cases.len());
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
    let mut failures = Failures::default();
    let activations = activations.as_array().expect("a list");
    assert!(activations.len() > 100);
    for (i, recipe) in activations.iter().enumerate() {
        let count = size(&recipe["count"]);
        let values = generator::tensor(&[count], recipe);
        let min = values.iter().copied().fold(f32::INFINITY, f32::min);
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let got = onnxruntime_activation(min, max, false);
        let is_same = (got.scale.to_bits(), got.zero_point) == (scale[i].to_bits(), zero_point[i]);
        let expected = (scale[i], zero_point[i]);
        failures.check(is_same, format_args!("{recipe}: got {got:?}, expected {expected:?}"));
        let expected = codes.take(count);
        // Zero divided by a scale that rounded to zero has no meaningful code.
        if got.scale > 0. {
            let got = quantize(&values, got.scale, got.zero_point, [0, 255], Rounding::Divide);
            let are_same = got.into_iter().eq(expected.into_iter().map(i32::from));
            failures.check(are_same, format_args!("{recipe}: codes differ"));
        }
    }
    failures.report(activations.len());
}

#[test]
fn senseless_configurations_are_refused() {
    use ObserverKind::*;
    use QDType::{QInt8, QUInt8};
    use QScheme::*;
    let average = |averaging_constant| MovingAverageMinMax { averaging_constant };
    let averages = |averaging_constant| MovingAveragePerChannelMinMax { averaging_constant };
    let histogram = |bins| Histogram { bins };
    let with = |mut config: ObserverConfig, change: &dyn Fn(&mut ObserverConfig)| {
        change(&mut config);
        config
    };
    let range = |dtype, range| {
        with(min_max(dtype, PerTensorAffine), &|config| config.quant_range = Some(range))
    };
    let eps = |eps| with(min_max(QInt8, PerTensorAffine), &|config| config.eps = eps);
    let reduced = |config| with(config, &|config| config.reduce_range = true);
    let onnxruntime = || config(OnnxRuntime, QInt8, PerTensorAffine);
    let int8 = |kind| config(kind, QInt8, PerTensorAffine);
    let cases = [
        (
            min_max(QInt8, PerChannelSymmetric),
            "a scheme per tensor for the MinMax observer, got per_channel_symmetric",
        ),
        (int8(PerChannelMinMax), "a scheme per channel"),
        (config(average(0.1), QInt8, PerChannelAffine), "per tensor"),
        (int8(averages(0.1)), "per channel"),
        (config(histogram(2_048), QInt8, PerChannelAffine), "per tensor"),
        (int8(average(0.)), "got 0"),
        (int8(average(1.5)), "got 1.5"),
        (int8(average(-0.1)), "got -0.1"),
        (int8(average(f32::NAN)), "averaging_constant: expected above 0 and at most 1, got NaN"),
        (config(averages(f32::INFINITY), QInt8, PerChannelAffine), "got inf"),
        (int8(histogram(0)), "bins: expected 1 to 1048576, got 0"),
        (int8(histogram(usize::MAX)), "got 1844"),
        (range(QInt8, [1, 100]), "includes 0, got 1 to 100"),
        (range(QInt8, [-100, -1]), "includes 0"),
        (range(QInt8, [0, 0]), "min below"),
        (range(QInt8, [3, -3]), "includes 0"),
        (range(QInt8, [0, 255]), "both in -128 to 127, got 0 to 255"),
        (range(QUInt8, [-1, 100]), "0 to 255"),
        (range(QUInt8, [0, 256]), "0 to 255"),
        (range(QUInt8, [i32::MIN, i32::MAX]), "0 to 255"),
        (reduced(range(QUInt8, [0, 1])), "got 0 to 0"),
        (reduced(min_max(QUInt8, PerTensorSymmetric)), "got symmetric quint8 with reduce_range"),
        (reduced(config(histogram(9), QUInt8, PerTensorSymmetric)), "symmetric quint8"),
        (eps(0.), "eps: expected a positive normal number, got 0"),
        (eps(-1.), "eps"),
        (eps(f32::NAN), "eps"),
        (eps(f32::INFINITY), "eps"),
        (eps(1e-40), "eps"),
        (config(OnnxRuntime, QInt8, PerChannelAffineFloatQParams), "integer zero points"),
        (
            with(onnxruntime(), &|config| config.quant_range = Some([-8, 7])),
            "no quant_range for the OnnxRuntime observer, got [-8, 7]",
        ),
        (with(onnxruntime(), &|config| config.eps = 0.5), "eps"),
    ];
    for (config, message) in cases {
        assert_fails(config.build(), &[message]);
    }
}

/// An observer of each kind that observes.
fn observers() -> Vec<Box<dyn Observer>> {
    use ObserverKind::*;
    let averaging_constant = 0.5;
    let tensor = |kind| config(kind, QDType::QUInt8, QScheme::PerTensorAffine);
    let channel = |kind| config(kind, QDType::QUInt8, QScheme::PerChannelAffine);
    [
        tensor(MinMax),
        channel(PerChannelMinMax),
        tensor(MovingAverageMinMax { averaging_constant }),
        channel(MovingAveragePerChannelMinMax { averaging_constant }),
        tensor(Histogram { bins: 64 }),
        tensor(OnnxRuntime),
        channel(OnnxRuntime),
    ]
    .map(|config| config.build().expect("an observer"))
    .into()
}

#[test]
fn a_tensor_that_is_refused_changes_nothing() -> Result<()> {
    for mut observer in observers() {
        // Before the first element.
        let qparams = observer.calculate_qparams()?;
        assert_eq!(qparams.scales(), [1.], "{observer:?}");
        assert_eq!(*qparams.zero_points(), ZeroPoints::Int(vec![0]));
        let good = Tensor::new(&[[1f32, -2.], [0.5, 4.]], CPU)?;
        observer.observe(&good)?;
        let before = observer.calculate_qparams()?;
        for (value, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-f32::INFINITY, "-inf")] {
            let bad = Tensor::new(&[[1f32, 9.], [value, value]], CPU)?;
            assert_fails(observer.observe(&bad), &[&format!("{text} at index [1, 0]")]);
            assert_fails(observer.observe(&bad.t()?), &["[0, 1]"]);
        }
        assert_kind(observer.observe(&tensor(&[1u32, 2])), ErrorKind::Unsupported, &[]);
        // Empty tensors are ignored, whatever their rank.
        for shape in [&[0][..], &[0, 3], &[3, 0], &[2, 0, 2]] {
            observer.observe(&zeros(shape))?;
        }
        assert_eq!(observer.calculate_qparams()?, before, "{observer:?}");
    }
    Ok(())
}

#[test]
fn the_number_of_channels_stays() -> Result<()> {
    let mut config =
        config(ObserverKind::PerChannelMinMax, QDType::QInt8, QScheme::PerChannelSymmetric);
    let mut observer = observed(&config, &zeros(&[2, 3]))?;
    let other = zeros(&[3, 2]);
    assert_kind(observer.observe(&other), ErrorKind::ShapeMismatch, &[]);
    observer.observe(&zeros(&[2, 5, 7]))?;
    for ch_axis in [2, -3, isize::MAX, isize::MIN] {
        config.ch_axis = ch_axis;
        assert_fails(config.build()?.observe(&other), &[&format!("rank 2, got {ch_axis}")]);
    }
    config.ch_axis = 0;
    let scalar = Tensor::new(1f32, CPU)?;
    assert_fails(config.build()?.observe(&scalar), &["rank 0"]);
    Ok(())
}

#[test]
fn any_float_dtype_rank_and_layout() -> Result<()> {
    let values = [-1f32, 0.25, 1.5, 0.5, -0.75, 2.];
    let ranges = |tensor: &Tensor| -> Result<_> {
        Ok(observed(&min_max(QDType::QUInt8, QScheme::PerTensorAffine), tensor)?.ranges())
    };
    let mut seen = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for shape in [vec![6], vec![2, 3], vec![1, 2, 3]] {
            seen.push(ranges(&tensor(&values).reshape(shape)?.to_dtype(dtype)?)?);
        }
    }
    assert_eq!(ranges(&Tensor::new(-1f32, CPU)?)?, [[-1., -1.]]);
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
fn numbers_too_far_apart_and_placeholders_are_errors_not_scales() -> Result<()> {
    let far = tensor(&[-3e38f32, 3e38]);
    let affine = min_max(QDType::QUInt8, QScheme::PerTensorAffine);
    assert_fails(observed(&affine, &far)?.calculate_qparams(), &["got inf"]);
    let kind = ObserverKind::MovingAverageMinMax { averaging_constant: 0.5 };
    let average = config(kind, QDType::QUInt8, QScheme::PerTensorAffine);
    let mut observer = observed(&average, &tensor(&[-3e38f32]))?;
    observer.observe(&tensor(&[3e38f32]))?;
    assert_fails(observer.calculate_qparams(), &["finite ends"]);

    let mut observer = HistogramObserver::new(&affine, 2_048)?;
    observer.observe(&tensor(&[1f32, 2.]))?;
    let before = observer.calculate_qparams()?;
    assert_fails(observer.observe(&far), &["2048 bins"]);
    assert_eq!(observer.calculate_qparams()?, before);

    // Nothing is observed.
    let placeholder = config(ObserverKind::Placeholder, QDType::QUInt8, QScheme::PerTensorAffine);
    let observer = observed(&placeholder, &far)?;
    assert_fails(observer.calculate_qparams(), &["PlaceholderObserver"]);

    // Symmetric schemes and ONNX Runtime, which subtracts in f64, have a scale for these values.
    for kind in [ObserverKind::MinMax, ObserverKind::OnnxRuntime] {
        let config = config(kind, QDType::QInt8, QScheme::PerTensorSymmetric);
        assert!(observed(&config, &far)?.calculate_qparams()?.scales()[0].is_finite());
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
    let qparams = observed(&config, &tensor(&[1f32]))?.calculate_qparams()?;
    let scale = qparams.scales()[0];
    // About halfway between two codes, and beyond the codes.
    let xs: Vec<_> = (-140..140).map(|x| (x as f32 + 0.5) * scale).collect();
    let of = |rounding| quantize(&xs, scale, 0, [-128, 127], rounding);
    assert_ne!(of(Rounding::Divide), of(Rounding::Multiply));
    assert_eq!(qparams.quantize(0, &xs), of(Rounding::Divide));
    Ok(())
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
        assert_fails(got, &[message]);
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
    let per_channel = config(kind, QDType::QInt8, QScheme::PerChannelSymmetric);
    let weight = Tensor::new(&[[1f32, -0.5, 0.25], [100., 3., -127.]], CPU)?;
    let qweight = QWeight::from_float(&weight, None, &int8(per_channel))?;
    assert_eq!(qweight.scales(), [1. / 64., 1.]);
    assert_eq!(qweight.codes(), [64, -32, 16, 100, 3, -127]);

    // Invalid parameters are rejected, wherever they come from.
    let custom = |name: &str, scale: f32, dtype, zero_points: ZeroPoints| {
        let qparams = WeightQParams::new(dtype, vec![scale], zero_points).ok();
        CustomObserver::new(name, move |_| Ok(Box::new(Fixed(qparams.clone()))))
    };
    let int = || ZeroPoints::Int(vec![0]);
    let nan = Tensor::new(&[[1f32, f32::NAN]], CPU)?;
    for (custom, weight) in [
        (custom("none", -1., QDType::QInt8, int()), &weight),
        (custom("quint8", 1., QDType::QUInt8, int()), &weight),
        (custom("floats", 1., QDType::QInt8, ZeroPoints::Float(vec![0.])), &weight),
        (custom("blind", 1., QDType::QInt8, int()), &nan),
    ] {
        let kind = ObserverKind::Custom(custom);
        let config = int8(config(kind, QDType::QInt8, QScheme::PerTensorSymmetric));
        assert!(QWeight::from_float(weight, None, &config).is_err(), "{config:?}");
    }
    Ok(())
}

#[test]
fn any_symmetric_qint8_observer_quantizes_a_weight() -> Result<()> {
    let recipe = serde_json::json!({"kind": "student_t", "seed": 7, "exponent": -9, "constant": 0});
    let weight = made(&[4, 50], &recipe);
    for kind in
        [ObserverKind::MinMax, ObserverKind::Histogram { bins: 2_048 }, ObserverKind::OnnxRuntime]
    {
        let config = config(kind, QDType::QInt8, QScheme::PerTensorSymmetric);
        let qparams = observed(&config, &weight)?.calculate_qparams()?;
        let qweight = QWeight::from_float(&weight, None, &int8(config))?;
        assert_eq!(qweight.scales(), qparams.scales());
        let got: Vec<u8> = qweight.codes().into_iter().map(|code| code as u8).collect();
        assert_eq!(got, codes(&qparams, &weight, None)?);
    }
    Ok(())
}
