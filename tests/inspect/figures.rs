//! The figures of an inspection are those computed by hand.

use candle_dynquant::inspect::{Deviation, Inspection, inspect};

use crate::inspect_quantized;
use crate::kit::*;

fn random(shape: &[usize], deviation: f32) -> Tensor {
    Tensor::randn(0f32, deviation, shape, &Device::Cpu).unwrap()
}

#[derive(Quantizable, Clone)]
struct Model {
    table: nn::Embedding,
    up: nn::Linear,
    down: nn::Linear,
    lstm: nn::LSTM,
    unused: nn::Linear,
}

impl Model {
    fn new() -> Self {
        let linear = || nn::Linear::new(random(&[16, 16], 0.3), Some(random(&[16], 0.1)));
        Self {
            table: nn::Embedding::new(random(&[20, 16], 1.), 16),
            up: linear(),
            down: linear(),
            lstm: nn::LSTM::new(16, 8, nn::RecurrentConfig::default(), new_vb()).unwrap(),
            unused: linear(),
        }
    }

    fn forward(&self, ids: &Tensor) -> candle_core::Result<Tensor> {
        let xs = self.table.forward(ids)?;
        let xs = self.down.forward(&self.up.forward(&xs)?.relu()?)?;
        Ok(self.lstm.forward(&xs, None)?.0)
    }
}

fn ids() -> Tensor {
    Tensor::new(&[[3u32, 19, 0], [7, 7, 1]], &Device::Cpu).unwrap()
}

fn inspected(spec: &QConfigSpec) -> (Model, Model, Inspection) {
    let mut float = Model::new();
    let (quantized, inspection) = inspect_quantized(&mut float, spec, |model| {
        model.forward(&ids())?;
        model.forward(&ids())
    });
    (float, quantized, inspection)
}

/// Inspects a Linear by one call.
fn of_linear(
    weight: Tensor,
    spec: &QConfigSpec,
    xs: &Tensor,
) -> (nn::Linear, nn::Linear, Inspection) {
    let mut float = nn::Linear::new(weight, None);
    let (quantized, inspection) = inspect_quantized(&mut float, spec, |model| model.forward(xs));
    (float, quantized, inspection)
}

fn sqnr_db(expected: &Tensor, got: &Tensor) -> f64 {
    let sum = |tensor: Tensor| {
        let squares = tensor.to_dtype(DType::F64).unwrap().sqr().unwrap();
        squares.sum_all().unwrap().to_scalar::<f64>().unwrap()
    };
    10. * (sum(expected.clone()) / sum((expected - got).unwrap())).log10()
}

#[test]
fn each_layer_is_compared_on_its_own_inputs_and_along_the_run() {
    let (float, quantized, inspection) = inspected(&all_int8());
    let paths: Vec<_> = inspection.layers.iter().map(|layer| layer.path.as_str()).collect();
    assert_eq!(paths, ["table", "up", "down", "lstm", "unused"]);
    let [table, up, down, lstm, unused] = &inspection.layers[..] else { panic!("five layers") };

    let xs = float.table.forward(&ids()).unwrap();
    let hidden = |model: &Model| model.up.forward(&xs).unwrap();
    let close = |deviation: &candle_dynquant::inspect::Deviation, expected: f64| {
        let db = deviation.sqnr_db();
        assert!((db - expected).abs() < 1e-3, "{db}, {expected}");
    };
    close(&up.output.unwrap(), sqnr_db(&hidden(&float), &hidden(&quantized)));
    // No earlier layer is quantized.
    close(&up.along.unwrap(), up.output.unwrap().sqnr_db());
    let relu = hidden(&float).relu().unwrap();
    let alone = quantized.down.forward(&relu).unwrap();
    let expected = float.down.forward(&relu).unwrap();
    close(&down.output.unwrap(), sqnr_db(&expected, &alone));
    let after = quantized.down.forward(&hidden(&quantized).relu().unwrap()).unwrap();
    close(&down.along.unwrap(), sqnr_db(&expected, &after));
    let ends = [&float, &quantized].map(|model| model.forward(&ids()).unwrap());
    close(&inspection.output, sqnr_db(&ends[0], &ends[1]));
    close(&lstm.along.unwrap(), inspection.output.sqnr_db());

    // 2 calls of 6 tokens.
    assert_eq!(up.output.unwrap().count(), 2 * 6 * 16);
    let input = up.input.as_ref().unwrap();
    let extreme = |tensor: Tensor| tensor.to_scalar::<f32>().unwrap();
    assert_eq!(
        (input.min, input.max),
        (extreme(xs.min_all().unwrap()), extreme(xs.max_all().unwrap()))
    );
    let counts = input.histogram.bins().into_iter().map(|(_, count)| count);
    assert_eq!(counts.sum::<u64>(), 2 * 6 * 16);
    // Rows of 16 elements with separate ranges clip nothing, and use few codes.
    assert_eq!(input.clipped, Some(0.));
    assert!(input.unused_codes.is_some_and(|share| share > 0.5 && share < 1.));

    let weight = &up.weights[0];
    let error = float.up.projection();
    let error = quantized.up.projection().weight_error(error).unwrap();
    close(&weight.error, error.sqnr_db());
    assert_eq!((weight.clipped, &weight.name[..]), (0., "weight"));
    assert!(weight.unused_codes.is_some_and(|share| share > 0. && share < 0.9));
    let names: Vec<_> = lstm.weights.iter().map(|weight| weight.name.as_str()).collect();
    assert_eq!(names, ["weight_ih_l0", "weight_hh_l0"]);

    // Not quantized, not called.
    assert!(!table.quantized && table.output.is_none() && table.input.is_none());
    assert_eq!(table.along.unwrap().sqnr_db(), f64::INFINITY);
    assert!(unused.quantized && unused.output.is_none() && unused.along.is_none());
    let [up_bytes, table_bytes] = [up, table].map(crate::bytes);
    assert!(up_bytes[1] < up_bytes[0] / 2);
    assert_eq!(table_bytes[0], table_bytes[1]);
    assert_eq!(table.bits, Some(32.));
    assert!(up.bits.is_some_and(|bits| (8. ..16.).contains(&bits)));
}

#[test]
fn formats_without_codes_have_none_that_are_unused() {
    let (_, _, inspection) = inspected(&QConfigSpec::float16());
    let up = &inspection.layers[1];
    assert!(up.weights[0].unused_codes.is_none());
    let input = up.input.as_ref().unwrap();
    assert!(input.clipped.is_none() && input.unused_codes.is_none());
    assert!(up.output.unwrap().sqnr_db() > 60.);
}

#[test]
fn a_table_is_inspected_too() {
    let (_, _, inspection) = inspected(&all_int8().embeddings());
    let table = &inspection.layers[0];
    assert!(table.quantized && table.weights[0].error.sqnr_db() > 30.);
    assert!(table.output.unwrap().sqnr_db() > 30.);
}

#[test]
fn it_is_a_table_and_json() {
    let (_, _, inspection) = inspected(&all_int8());
    let text = inspection.to_string();
    let up = text.lines().find(|line| line.contains("up ")).unwrap();
    assert!(up.contains("Linear"), "{text}");
    let layer = &inspection.layers[1];
    for deviation in [layer.output.unwrap(), layer.weights[0].error] {
        let decibels = deviation.sqnr_db();
        assert!(up.contains(&format!("{decibels:.1}")), "{text}");
    }
    // Layers that are not called or not quantized have rows too.
    for name in [" unused ", " table "] {
        assert!(text.lines().any(|line| line.contains(name)), "{text}");
    }
    assert!(text.contains("\nend to end: "), "{text}");
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    let json: serde_json::Value = serde_json::to_value(&inspection).unwrap();
    assert_eq!(json["layers"][1]["path"], "up");
    assert!(json["layers"][1]["output"]["sqnr_db"].as_f64().unwrap() > 20.);
    assert!(json["layers"][0]["along"]["sqnr_db"].is_null(), "an exact layer");
    assert_eq!(json["layers"][0]["along"]["cosine"], 1.);
}

#[test]
fn the_cosine_of_equal_tensors_is_1() {
    let mut deviation = Deviation::default();
    // The root of 2 times itself is more than 2.
    let ones = Tensor::ones(2, DType::F32, &Device::Cpu).unwrap();
    deviation.add(&ones, &ones).unwrap();
    assert_eq!((deviation.cosine(), deviation.sqnr_db()), (1., f64::INFINITY));
}

#[test]
fn deviations_are_those_by_hand() {
    let tensor = |values: [f32; 2]| Tensor::new(&values, &Device::Cpu).unwrap();
    let mut deviation = Deviation::default();
    deviation.add(&tensor([3., 4.]), &tensor([3., 3.])).unwrap();
    assert!((deviation.sqnr_db() - 10. * 25f64.log10()).abs() < 1e-9);
    assert!((deviation.cosine() - 21. / (5. * 18f64.sqrt())).abs() < 1e-9);
    let mut other = Deviation::default();
    other.add(&tensor([1., 0.]), &tensor([-1., 0.])).unwrap();
    assert_eq!((other.cosine(), other.max_abs()), (-1., 2.));
    // Together they equal a call with all elements.
    deviation.add(&tensor([1., 0.]), &tensor([-1., 0.])).unwrap();
    assert!((deviation.sqnr_db() - 10. * (26f64 / 5.).log10()).abs() < 1e-9);
    assert!((deviation.cosine() - 20. / (26f64 * 19.).sqrt()).abs() < 1e-9);
    assert_eq!((deviation.count(), deviation.max_abs()), (4, 2.));
}

#[test]
fn values_that_an_observer_cuts_off_are_counted() {
    // The many other values are more precise if the range ends before 3 and -4.
    let mut numbers: Vec<f32> = (0..1 << 20).map(|i| (i % 2_001) as f32 / 1e3 - 1.).collect();
    (numbers[7], numbers[77]) = (3., -4.);
    let weight = Tensor::from_vec(numbers, (1 << 10, 1 << 10), &Device::Cpu).unwrap();
    let kind = ObserverKind::Histogram { bins: 2_048 };
    let qconfig = QConfig::Int8 {
        weight: ObserverConfig::new(kind, QDType::QInt8, QScheme::PerTensorAffine),
        activation: DynamicConfig::new(Granularity::PerTensor, true),
    };
    let spec = QConfigSpec::new().kind(LayerKind::Linear, qconfig);
    let (float, quantized, inspection) = of_linear(weight, &spec, &random(&[2, 1 << 10], 1.));
    let clipped = inspection.layers[0].weights[0].clipped * f64::from(1 << 20);
    // Farther off than rounding takes any.
    let scale = quantized.projection().qweight().unwrap().scales()[0];
    let distance = values(&(float.weight() - quantized.weight()).unwrap().abs().unwrap());
    let farther = distance.iter().filter(|distance| **distance > 0.501 * scale);
    assert_eq!(clipped, farther.count() as f64);
    assert!(clipped > 1. && clipped < 10_000., "{clipped}");
}

#[test]
fn histograms_count_values_between_powers_of_two() {
    // Calls with growing values: the bins equal those of one call with all values.
    let calls = [[0f32, -0.01, 0.02, 0.3], [1., -0.999, 0.5, 0.24], [-3.5, 2.1, 2.9, -1.5]];
    let mut float = nn::Linear::new(random(&[8, 4], 1.), None);
    let (_, inspection) = inspect_quantized(&mut float, &all_int8(), |model| {
        let call = |call: &[f32; 4]| model.forward(&Tensor::new(&[*call], &Device::Cpu)?);
        calls.iter().map(call).fold(None, |_, ys| Some(ys)).expect("a call")
    });
    let input = inspection.layers[0].input.as_ref().unwrap();
    let histogram = &input.histogram;
    let bins = 128;
    let width = 8. / bins as f32;
    let mut expected = vec![0; bins];
    for value in calls.as_flattened() {
        expected[((value + 4.) / width).floor() as usize] += 1;
    }
    // From the first bin with values to the last, by their middles.
    let first = expected.iter().position(|count| *count > 0).unwrap();
    let last = expected.iter().rposition(|count| *count > 0).unwrap();
    let middle = |bin: usize| (bin as f32 + 0.5) * width - 4.;
    let shown: Vec<_> = (first..=last).map(|bin| (middle(bin), expected[bin])).collect();
    assert_eq!(histogram.bins(), shown);
    // Each row of four values uses at most four of 256 codes.
    let unused = input.unused_codes.unwrap() * 256.;
    assert!(unused.fract() == 0. && (244. ..256.).contains(&unused), "{unused}");
}

/// Of as many inputs as codes each uses one; of 0 and 1 the least and the largest are used.
#[test]
fn codes_of_activations_are_counted_of_all_that_their_range_has() {
    for (spec, codes) in [(all_int8(), 256), (QConfigSpec::pytorch(), 128)] {
        let rising = (0..codes).map(|code| code as f32);
        let cases = [(rising.collect(), 0), (vec![0., 1.], codes - 2)];
        for (xs, unused) in cases {
            let weight = random(&[8, xs.len()], 1.);
            let xs = Tensor::new(xs, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
            let (_, _, inspection) = of_linear(weight, &spec, &xs);
            let input = inspection.layers[0].input.as_ref().unwrap();
            assert_eq!(input.unused_codes, Some(unused as f64 / codes as f64), "{spec}");
        }
    }
}

/// A row without a range has no codes either.
#[test]
fn rows_that_are_not_finite_use_no_codes() {
    let unused = |last: [f32; 4]| {
        let xs = Tensor::new(&[[2f32, 3., 4., 5.], last], &Device::Cpu).unwrap();
        let (_, _, inspection) = of_linear(random(&[8, 4], 1.), &all_int8(), &xs);
        inspection.layers[0].input.as_ref().unwrap().unused_codes
    };
    let finite = unused([2., 3., 4., 5.]);
    for other in [f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(unused([-1., 0., 1., other]), finite);
    }
}

#[test]
fn the_table_has_the_means_of_a_layers_weights() {
    let (_, _, inspection) = inspected(&all_int8());
    let lstm = &inspection.layers[3];
    let unused = lstm.weights.iter().map(|weight| weight.unused_codes.unwrap());
    let mean = format!("{:.2} %", 100. * unused.sum::<f64>() / 2.);
    let text = inspection.to_string();
    let line = text.lines().find(|line| line.contains("lstm ")).unwrap();
    assert!(line.contains(&mean) && line.contains(" 0 % "), "{mean}: {text}");
}

#[test]
fn a_far_value_leaves_few_codes_to_all_others() {
    let mut numbers: Vec<f32> = (0..4096).map(|at| ((at * 37) % 101) as f32 / 101. - 0.5).collect();
    numbers[7] = 500.;
    let weight = Tensor::from_vec(numbers, (64, 64), &Device::Cpu).unwrap();
    let spec = QConfigSpec::new().kind(LayerKind::Linear, QConfig::pytorch());
    let (_, _, inspection) = of_linear(weight, &spec, &random(&[3, 64], 1.));
    let weight = &inspection.layers[0].weights[0];
    // A range of 500 leaves two codes to all other values.
    assert!(weight.unused_codes.is_some_and(|share| share > 0.98), "{weight:?}");
    // Bins as wide as those of a bound of 512.
    let bins = weight.histogram.bins();
    assert_eq!(bins[1].0 - bins[0].0, 512. / 64.);
}

#[test]
fn other_models_and_other_calls_are_errors() {
    let mut float = Model::new();
    let mut quantized = float.clone();
    quantize_dynamic(&mut quantized, &all_int8()).unwrap();
    let calls = std::cell::Cell::new(0);
    fault(inspect(&mut float, &mut quantized, |model| {
        calls.set(calls.get() + 1);
        for _ in 0..calls.get() {
            model.forward(&ids())?;
        }
        model.forward(&ids())
    }))
    .has("the float model's 2 calls");

    let mut more: Vec<nn::Linear> = vec![float.up.clone(), float.down.clone()];
    let mut less = vec![float.up.clone()];
    fault(inspect(&mut more, &mut less, |model| Ok(model[0].weight().clone())))
        .has("the 2 layers of the float one, got 1");
    fault(inspect(&mut float, &mut quantized, |_| candle_core::bail!("no data"))).has("no data");
}
