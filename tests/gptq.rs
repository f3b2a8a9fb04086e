//! GPTQ: smaller errors on the calibration inputs, named layers, and a model that is unchanged
//! after an error.

use candle_core::Result;
use candle_dynquant::{GptqConfig, GptqReport, GroupConfig, GroupScheme, QWeight, gptq};
use common::*;

mod common;

fn seeded(n: usize, k: usize, seed: u64) -> nn::Linear {
    nn::Linear::new(tensor(&[n, k], seed).unwrap(), None)
}

/// Inputs along a few directions, with little noise.
fn correlated(rows: usize, k: usize) -> Tensor {
    let [few, directions, rest] = [([rows, 6], 1), ([6, k], 2), ([rows, k], 3)]
        .map(|(shape, seed)| tensor(&shape, seed).unwrap());
    (few.matmul(&directions).unwrap() + (rest * 0.5).unwrap()).unwrap()
}

fn spec(scheme: GroupScheme, group_size: Option<usize>) -> QConfigSpec {
    let mut groups = GroupConfig::INT4;
    groups.scheme = scheme;
    groups.group_size = group_size;
    QConfigSpec::int4().kind(LayerKind::Linear, QConfig::Groups(groups))
}

fn int4() -> GptqConfig {
    GptqConfig::new(QConfigSpec::int4())
}

/// The sum of the squares of errors of products.
fn error(float: &nn::Linear, quantized: &nn::Linear, xs: &Tensor) -> f32 {
    let products = |layer: &nn::Linear| xs.matmul(&value(layer).t().unwrap()).unwrap();
    let errors = (products(float) - products(quantized)).unwrap();
    values(&errors).iter().map(|error| error * error).sum()
}

fn value(layer: &nn::Linear) -> Tensor {
    layer.projection().value().unwrap()
}

fn weight(layer: &nn::Linear) -> &QWeight {
    layer.projection().qweight().expect("a quantized weight")
}

fn same(a: &nn::Linear, b: &nn::Linear) -> bool {
    let parts = |l| (weight(l).codes(), weight(l).scales(), weight(l).zero_points());
    parts(a) == parts(b)
}

#[test]
fn errors_on_the_inputs_are_smaller_than_without_them() {
    let xs = correlated(128, 96);
    for (n, scheme, group_size) in [
        (48, GroupScheme::Symmetric, Some(32)),
        (48, GroupScheme::Affine, Some(32)),
        (17, GroupScheme::Symmetric, Some(64)),
        (48, GroupScheme::Affine, None),
    ] {
        let float = seeded(n, 96, 4);
        let (mut rounded, mut by_inputs) = (float.clone(), float.clone());
        let spec = spec(scheme, group_size);
        quantize_dynamic(&mut rounded, &spec).unwrap();
        let config = GptqConfig::new(spec);
        let mut runs = 0;
        let run = |model: &nn::Linear| {
            runs += 1;
            model.forward(&xs)
        };
        let report = gptq(&mut by_inputs, &config, run).unwrap();
        assert_eq!((report.fed_back[""], runs), (128, 1));
        let (before, after) = (error(&float, &rounded, &xs), error(&float, &by_inputs, &xs));
        assert!(after < 0.3 * before, "{scheme} {group_size:?}: {after} of {before}");
    }
}

#[test]
fn bits_do_not_depend_on_threads_and_memory() {
    let xs = correlated(300, 200);
    let model = || vec![seeded(130, 200, 5), seeded(200, 130, 6), seeded(64, 200, 7)];
    let run = |model: &Vec<nn::Linear>| model.iter().try_fold(xs.clone(), |xs, l| l.forward(&xs));
    let mut known = model();
    gptq(&mut known, &int4(), run).unwrap();
    for (threads, memory, runs) in [(1, 0, 3), (2, 250_000, 2), (5, 1 << 30, 1)] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let mut got = model();
        let config = int4().memory(memory);
        let mut counted = 0;
        let run = |model: &Vec<nn::Linear>| {
            counted += 1;
            run(model)
        };
        pool.unwrap().install(|| gptq(&mut got, &config, run)).unwrap();
        assert_eq!(counted, runs);
        assert!(known.iter().zip(&got).all(|(a, b)| same(a, b)), "{threads} threads");
    }
}

#[test]
fn dead_dependent_and_few_inputs_are_no_fault() {
    let all = correlated(40, 64);
    let column = Tensor::arange(0u32, 64, CPU).unwrap();
    let alive = column.ne(9u32).unwrap().to_dtype(DType::F32).unwrap();
    let dead = all.broadcast_mul(&alive).unwrap();
    let twice = Tensor::cat(&[&all.narrow(1, 0, 32).unwrap(); 2], 1).unwrap();
    let huge = (&all * 1e15).unwrap();
    for xs in [dead, twice, all.narrow(0, 0, 1).unwrap(), all.zeros_like().unwrap(), huge] {
        let float = seeded(24, 64, 8);
        let mut model = float.clone();
        gptq(&mut model, &int4(), |model| model.forward(&xs)).unwrap();
        let off = (value(&model) - value(&float)).unwrap().abs().unwrap();
        let off = off.max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(off < 8., "{off}");
    }
}

/// A model with a layer that is not called, and a recurrent layer.
#[derive(Quantizable, Clone)]
struct Parts {
    used: nn::Linear,
    unused: nn::Linear,
    small: nn::Linear,
    rnn: nn::LSTM,
}

impl Parts {
    fn new() -> Self {
        Self {
            used: seeded(48, 64, 9),
            unused: seeded(48, 64, 10),
            small: seeded(2, 48, 11),
            rnn: common::lstm(64, 32).unwrap(),
        }
    }

    fn run(&self, xs: &Tensor) -> Result<Tensor> {
        self.small.forward(&self.used.forward(xs)?)
    }

    fn is_float(&self) -> bool {
        let layers = [&self.used, &self.unused, &self.small];
        layers.iter().all(|layer| layer.projection().qweight().is_none())
    }
}

#[test]
fn layers_without_inputs_are_rounded_and_named() {
    let (float, xs) = (Parts::new(), correlated(50, 64));
    let (mut model, mut rounded) = (float.clone(), float.clone());
    let report: GptqReport = gptq(&mut model, &int4(), |model| model.run(&xs)).unwrap();
    let names: Vec<_> = report.fed_back.keys().collect();
    assert_eq!(names, ["used"]);
    let mut reasons: Vec<_> = report.rounded.iter().map(|l| (&l.path[..], &l.reason[..])).collect();
    reasons.sort_by_key(|(path, _)| path.len());
    let (rnn, unused) = ("its kind has no form for given inputs", "the run does not reach it");
    assert_eq!(reasons, [("rnn", rnn), ("unused", unused)]);
    assert_eq!(report.quantized.swapped().count(), 3);
    let text = report.to_string();
    assert!(text.starts_with("1 of 3 layers in groups quantized by their inputs"), "{text}");
    assert!(text.contains("unused rounded: the run does not reach it"), "{text}");
    quantize_dynamic(&mut rounded, &QConfigSpec::int4()).unwrap();
    assert!(same(&model.unused, &rounded.unused) && !same(&model.used, &rounded.used));
}

#[test]
fn a_layer_whose_sums_no_memory_holds_is_rounded_and_named() {
    let xs = correlated(9, 64);
    for (memory, [n, k, rows]) in [(0, [4, 65_536, 2]), (1 << 30, [0, 1 << 40, 0])] {
        let wide = nn::Linear::new(zeros(&[n, k]), None);
        let mut model = (seeded(8, 64, 5), wide);
        let run = |model: &(nn::Linear, nn::Linear)| {
            model.1.forward(&zeros(&[rows, k]))?;
            model.0.forward(&xs)
        };
        let config = GptqConfig::new(QConfigSpec::int4().min_params(0)).memory(memory);
        let report = gptq(&mut model, &config, run).unwrap();
        let expected = format!("more than GptqConfig::memory and than 4 GiB: {k} inputs");
        assert!(report.rounded[0].reason.ends_with(&expected), "{report}");
        assert!(report.fed_back.contains_key("0"), "{report}");
    }
}

#[test]
fn an_error_leaves_the_model_as_it_was() {
    let xs = correlated(5, 64);
    let nan = (&xs / 0.).unwrap();
    let mut model = Parts::new();
    let no_files = |_: &Parts| -> Result<()> { candle_core::bail!("no files") };
    assert_fails(gptq(&mut model, &int4(), no_files), &["no files"]);
    let error = gptq(&mut model, &int4(), |model| model.run(&nan)).unwrap_err();
    assert_eq!(error.path(), Some("used"));
    assert!(error.to_string().contains("inputs: expected finite numbers, got"), "{error}");
    for damping in [0., -1., f64::NAN, f64::INFINITY] {
        let config = int4().damping(damping);
        assert_fails(gptq(&mut model, &config, |model| model.run(&xs)), &["damping"]);
    }
    let config = GptqConfig::new(QConfigSpec::int8());
    assert_fails(gptq(&mut model, &config, |model| model.run(&xs)), &["in groups"]);
    let error = gptq(&mut model, &int4(), |_| Ok(())).unwrap_err();
    assert!(error.to_string().starts_with("invalid run: expected inputs"), "{error}");
    assert!(model.is_float());
    let mut none: Vec<nn::Linear> = Vec::new();
    assert!(gptq(&mut none, &int4(), |_| Ok(())).is_err());
}

#[test]
fn a_model_is_saved_and_loaded() {
    let (mut model, xs) = (seeded(48, 64, 12), correlated(50, 64));
    let folder = tempfile::tempdir().unwrap();
    let [float, int4_file] =
        ["a", "b"].map(|name| folder.path().join(format!("{name}.safetensors")));
    candle_core::safetensors::save(&[("weight", value(&model))].into(), &float).unwrap();
    gptq(&mut model, &int4(), |model| model.forward(&xs)).unwrap();
    checkpoint::save(&model, &Checkpoint::open(&float).unwrap(), &int4_file).unwrap();
    let saved = Checkpoint::open(&int4_file).unwrap();
    let loaded = nn::linear_no_bias(64, 48, saved.var_builder(DType::F32, CPU)).unwrap();
    assert!(same(&model, &loaded));
}
