//! Float tensors outside of layers: a report names them, strict types refuse them, and nothing else
//! that walks sees them.
#![allow(missing_docs, dead_code, reason = "models whose fields are looked at by walks only")]

mod common;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_dynquant::{FloatTensor, TuningConfig, WeightDType, tune};
use common::toy::{Toy, assert_walks};
use common::*;

/// A layer of `outputs` by 100 inputs: 400 bytes an output.
fn linear(outputs: usize) -> nn::Linear {
    nn::Linear::new(ones(&[outputs, 100]), None)
}

/// The message that refuses a strict type.
#[track_caller]
fn refused(model: &mut dyn Quantizable, spec: &QConfigSpec) -> String {
    let error = quantize_dynamic(model, spec).expect_err("strict");
    assert!(error.kind() == ErrorKind::FloatTensors, "{error}");
    error.to_string()
}

fn named(report: &Report) -> Vec<(&str, usize)> {
    let tensors = report.float_tensors.iter();
    tensors.map(|t| (t.path.as_str(), t.bytes)).collect()
}

/// A Linear that a project defines: nothing in it is a layer.
#[derive(Quantizable, Clone)]
struct OwnLinear {
    weight: Tensor,
    bias: Option<Tensor>,
}

fn own_linear(outputs: usize) -> OwnLinear {
    OwnLinear { weight: ones(&[outputs, 100]), bias: Some(ones(&[outputs])) }
}

/// A norm that a project defines.
#[derive(Quantizable, Clone)]
struct OwnNorm {
    weight: Tensor,
    eps: f64,
}

#[test]
fn the_matrices_of_a_linear_of_ones_own_are_named_first() {
    let mut model = model!(Model {
        layers: Vec<OwnLinear> = vec![own_linear(100), own_linear(100)],
        norm: OwnNorm = OwnNorm { weight: ones(&[100]), eps: 1e-6 },
        head: nn::Linear = linear(100),
    });
    let report = quantize(&mut model);
    assert_eq!(named(&report), [("layers.0.weight", 40_000), ("layers.1.weight", 40_000)]);
    let FloatTensor { shape, dtype, held_by, .. } = &report.float_tensors[0];
    assert_eq!((&shape[..], *dtype, held_by.as_deref()), (&[100, 100][..], WeightDType::F32, None));
    let text = report.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].ends_with("; 2 tensors of 80.0 kB in no layer: layers.{0-1}.weight"),
        "{text}"
    );
    assert!(lines[1].starts_with("float tensors in no layer ("), "{text}");
    assert_eq!(lines[2], "  layers.{0-1}.weight: f32 [100, 100], 40.0 kB", "{text}");
    let each = format!("{report:#}");
    assert!(each.contains("\n  layers.1.weight: f32 [100, 100], 40.0 kB\n"), "{each}");
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(
        json["float_tensors"][1],
        serde_json::json!({"path": "layers.1.weight", "shape": [100, 100], "dtype": "f32", "bytes": 40_000})
    );
}

#[test]
fn tensors_are_seen_in_whatever_holds_them() {
    let matrix = || ones(&[3, 2]);
    let shared = Arc::new(matrix());
    let mut model = model!(Model {
        experts: Tensor = ones(&[4, 3, 2]),
        option: Option<Tensor> = Some(matrix()),
        list: Vec<Tensor> = vec![matrix(), matrix()],
        pair: (Tensor, Tensor) = (matrix(), matrix()),
        cache: Option<(Tensor, Tensor)> = None,
        by_name: HashMap<String, Tensor> = [("a".to_owned(), matrix())].into(),
        shared: Arc<Tensor> = Arc::clone(&shared),
        again: Arc<Tensor> = shared,
        cell: RefCell<Tensor> = RefCell::new(matrix()),
        lock: Mutex<Option<Tensor>> = Mutex::new(Some(matrix())),
        var: Var = Var::from_tensor(&matrix()).expect("a variable"),
        product: QMatMul = QMatMul::Tensor(matrix()),
        layer: Toy = Toy::new(),
    });
    // Neither a layer nor an opaque field.
    assert_walks("tensors", &mut model, "layer: Linear", &["again = shared"]);
    let report = quantize(&mut model);
    let others = "option list.0 list.1 pair.0 pair.1 by_name.a shared cell lock var product";
    let mut expected = vec![("experts", 96)];
    expected.extend(others.split(' ').map(|path| (path, 24)));
    assert_eq!(named(&report), expected, "the largest first: {report}");
    assert!(report.opaque.is_empty(), "{report}");
}

#[test]
fn vectors_codes_and_skipped_tensors_are_not_named() {
    let mut cache = candle_nn::kv_cache::KvCache::new(2, 16);
    let keys = ones(&[1, 4, 8, 16]);
    cache.append(&keys, &keys).expect("a filled cache");
    let norm = candle_nn::LayerNorm::new(ones(&[100]), ones(&[100]), 1e-5);
    let mut model = model!(Model {
        norm: OwnNorm = OwnNorm { weight: ones(&[1_000]), eps: 1e-6 },
        class_token: Tensor = ones(&[1, 1, 1_000]),
        ids: Tensor = Tensor::zeros((100, 100), DType::U32, CPU).expect("a tensor"),
        #[quantizable(skip)]
        rotary: Tensor = ones(&[1_000, 100]),
        layer_norm: candle_nn::LayerNorm = norm,
        cache: candle_nn::kv_cache::KvCache = cache,
        head: nn::Linear = linear(1),
    });
    let report = quantize(&mut model);
    assert_eq!(named(&report), []);
    assert!(!report.to_string().contains("in no layer"), "{report}");
    let report = |outputs| quantize(&mut (linear(99), own_linear(1), own_linear(outputs)));
    assert_eq!(named(&report(0)), [], "a matrix of one row is a vector");
    // They are named from one hundredth of the bytes on.
    let report = |shape: [usize; 2]| quantize(&mut (linear(990), ones(&shape)));
    assert_eq!(named(&report([10, 100])), [], "1 % exactly");
    assert_eq!(named(&report([11, 100])), [("1", 4_400)]);
}

#[test]
fn a_convolution_is_named_with_its_type() {
    let conv1d = candle_nn::Conv1d::new(ones(&[8, 4, 3]), None, Default::default());
    let conv2d = candle_nn::Conv2d::new(ones(&[8, 4, 3, 3]), None, Default::default());
    let back1d = candle_nn::ConvTranspose1d::new(ones(&[8, 4, 3]), None, Default::default());
    let back2d = candle_nn::ConvTranspose2d::new(ones(&[8, 4, 3, 3]), None, Default::default());
    let mut model = (linear(1), (conv1d, conv2d), (back1d, back2d));
    let report = quantize(&mut model);
    let of = report.float_tensors.iter();
    let of: Vec<_> = of.map(|t| (&*t.path, t.held_by.as_deref().unwrap_or("none"))).collect();
    let expected = [
        ("1.1.weight", "candle_nn::Conv2d"),
        ("2.1.weight", "candle_nn::ConvTranspose2d"),
        ("1.0.weight", "candle_nn::Conv1d"),
        ("2.0.weight", "candle_nn::ConvTranspose1d"),
    ];
    assert_eq!(of, expected);
    let line = "\n  1.0.weight: f32 [8, 4, 3], 384 B, of a candle_nn::Conv1d\n";
    assert_parts(&report.to_string(), &[line]);
}

#[test]
fn memory_counts_once() {
    let weight = ones(&[100, 100]);
    let view = weight.narrow(0, 0, 50).expect("a view");
    // Two clones and a view of one memory.
    let mut model = (linear(100), vec![weight.clone(), weight.clone(), view]);
    assert_eq!(named(&quantize(&mut model)), [("1.0", 40_000)]);

    // A layer that stays float is named in the table.
    let table = nn::Embedding::new(weight.clone(), 100);
    let report = quantize(&mut (linear(100), table, weight.clone()));
    assert_eq!(named(&report), []);
    assert_eq!(report.layers[1].bytes_before, 40_000);

    // The memory of a quantized layer is freed, unless a tensor holds it.
    let mut tied = (nn::Linear::new(weight.clone(), None), weight);
    let report = quantize(&mut tied);
    assert_eq!(named(&report), [("1", 40_000)]);
    assert_eq!((report.bytes_before(), report.layers[0].tied_to.as_deref()), (0, Some("1")));
    let kept = "0: its float weight stays in memory, because 1 still holds it";
    assert_parts(&report.to_string(), &[kept]);

    // So does a map of variables, of all layers that it made.
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let head = nn::linear(10, 10, vb.pp("head")).expect("a layer");
    let table = nn::embedding(10, 10, vb.pp("table")).expect("a table");
    let report = quantize(&mut (head, table, vars));
    assert_eq!((named(&report), report.bytes_before()), (vec![("2.head.weight", 400)], 0));
}

#[test]
fn a_vector_that_is_a_view_counts_the_memory_that_it_keeps() {
    let weight = ones(&[100, 100]);
    let row = weight.get(0).expect("a row");
    let mut model = (nn::Linear::new(weight.clone(), None), row);
    let report = quantize(&mut model);
    assert_eq!(named(&report), [("1", 40_000)]);
    assert_eq!(report.bytes_before(), 0);
    let lines = [
        "0: its float weight stays in memory, because 1 still holds it",
        "\n  1: f32 [100], a view that keeps 40.0 kB (hold `force_contiguous` of it)\n",
    ];
    assert_parts(&report.to_string(), &lines);

    let alone = |view: Tensor| named(&quantize(&mut (linear(1), view))).len();
    let large = ones(&[10_000, 100]);
    assert_eq!(alone(large.get(0).expect("a row")), 1);
    assert_eq!(alone(large.narrow(0, 7, 0).expect("no row")), 1);
    // Nothing of that is kept.
    assert_eq!(alone(large.get(0).and_then(|row| row.force_contiguous()).expect("a row")), 0);
    assert_eq!(alone(large.get(0).and_then(|row| row.get(0)).expect("one")), 1);
    assert_eq!(alone(ones(&[1_000]).expand((1, 1_000)).expect("one row")), 0);
}

#[test]
fn floats_of_other_forms_are_named_too() {
    let eights = |shape: &[usize]| ones(shape).to_dtype(DType::F8E4M3).expect("eights");
    let report = quantize(&mut (linear(1), eights(&[100, 100])));
    assert_eq!(named(&report), [("1", 10_000)]);
    assert_parts(&report.to_string(), &["\n  1: f8e4m3 [100, 100], 10.0 kB\n"]);

    let matrix = ones(&[64, 64]);
    let quantized_tensor = |dtype| QTensor::quantize(&matrix, dtype).expect("a tensor");
    for (dtype, name, bytes) in [
        (GgmlDType::F32, WeightDType::F32, 16_384),
        (GgmlDType::F16, WeightDType::F16, 8_192),
        (GgmlDType::BF16, WeightDType::BF16, 8_192),
    ] {
        let shared = Arc::new(quantized_tensor(dtype));
        let products = [0, 1].map(|_| QMatMul::QTensor(Arc::clone(&shared)));
        let report = quantize(&mut (linear(1), products, quantized_tensor(dtype)));
        assert_eq!(named(&report), [("1.0", bytes), ("2", bytes)]);
        let tensor = &report.float_tensors[0];
        assert_eq!((tensor.dtype, &tensor.shape[..]), (name, &[64, 64][..]));
    }
    let product = QMatMul::QTensor(Arc::new(quantized_tensor(GgmlDType::Q8_0)));
    let report = quantize(&mut (linear(1), quantized_tensor(GgmlDType::Q4_0), product));
    assert_eq!(named(&report), []);

    #[derive(Quantizable)]
    #[quantizable(strict)]
    struct Strict(nn::Linear, QMatMul);
    let product = QMatMul::QTensor(Arc::new(quantized_tensor(GgmlDType::F16)));
    refused(&mut Strict(linear(1), product), &all_int8());
}

#[test]
fn a_var_builder_is_said_to_keep_what_it_loads_from() {
    #[derive(Quantizable)]
    struct Model {
        head: nn::Linear,
        vb: Option<VarBuilder<'static>>,
    }
    #[derive(Quantizable)]
    #[quantizable(strict)]
    struct Strict(Model);
    let model = |keep: bool| {
        let vb = weights([("weight", ones(&[100, 100]))]);
        let head = nn::linear_no_bias(100, 100, vb.clone()).expect("a layer");
        Model { head, vb: keep.then_some(vb) }
    };
    let report = quantize(&mut model(true));
    let paths: Vec<_> = report.opaque.iter().map(|field| &*field.path).collect();
    assert_eq!((paths, report.hidden.len()), (vec!["vb"], 0), "{report}");
    let note = "SimpleBackend>> (may keep all tensors that it loads: do not hold it)";
    assert_parts(&report.to_string(), &[note]);
    assert!(quantize(&mut model(false)).opaque.is_empty());

    quantize(&mut Strict(model(false)));
    let message = refused(&mut Strict(model(true)), &QConfigSpec::int8());
    let got = "got 0.vb, a VarBuilder, which may keep all tensors that it loads: do not hold it";
    assert_parts(&message, &[got]);
    // Also if it was visited before.
    let shared = Arc::new((linear(100), model(true).vb));
    #[derive(Quantizable)]
    #[quantizable(strict)]
    struct Again(Arc<(nn::Linear, Option<VarBuilder<'static>>)>);
    let mut again = (Arc::clone(&shared), Again(shared));
    assert_fails(quantize_dynamic(&mut again, &QConfigSpec::int8()), &["got 1.0.1, a VarBuilder"]);
}

#[test]
fn a_strict_type_refuses_what_a_report_would_name() {
    #[derive(Quantizable)]
    #[quantizable(strict)]
    struct Strict {
        body: Vec<OwnLinear>,
        head: nn::Linear,
    }
    let model = |outputs| Strict { body: vec![own_linear(outputs)], head: linear(1_000) };
    assert_eq!(named(&quantize(&mut model(10))), []);
    let mut model_at_fault = model(20);
    assert_eq!(
        refused(&mut model_at_fault, &QConfigSpec::int8()),
        "float tensors in no layer, in a type marked #[quantizable(strict)]: expected none, got \
         body.0.weight: f32 [20, 100], 8.0 kB; hold a weight in a candle_dynquant::nn::Linear or a \
         layer of your own, or mark the field #[quantizable(skip)]"
    );
    let weights = Layer::weight_infos(&model_at_fault.head);
    assert!(!weights[0].quantized, "the model is as it was");

    // Beside a strict type, nothing is refused.
    let report = quantize(&mut (model(0), own_linear(200)));
    assert_eq!(named(&report), [("1.weight", 80_000)]);

    let mut skips = model!(
        #[quantizable(strict)]
        Skips {
            #[quantizable(skip)]
            body: Vec<OwnLinear> = vec![own_linear(200)],
            head: nn::Linear = linear(1),
        }
    );
    assert_eq!(named(&quantize(&mut skips)), []);

    #[derive(Quantizable)]
    #[quantizable(strict)]
    enum Either {
        Fused(OwnLinear),
        Plain(nn::Linear),
    }
    refused(&mut (linear(1), Either::Fused(own_linear(9))), &all_int8());
}

#[test]
fn a_strict_type_refuses_memory_that_other_places_hold_too() {
    #[derive(Quantizable, Clone)]
    struct Inner {
        weight: Tensor,
        nested: Arc<Tensor>,
    }
    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    struct Strict {
        weight: Option<Tensor>,
        inner: Option<Arc<Inner>>,
        head: nn::Linear,
    }
    fn refused_at(path: &str, mut model: impl Quantizable) {
        assert_parts(&refused(&mut model, &all_int8()), &[&format!(" got {path}: ")]);
    }
    let weight = ones(&[100, 100]);
    let strict = Strict { weight: Some(weight.clone()), inner: None, head: linear(100) };
    refused_at("1.weight", (weight.clone(), strict.clone()));
    refused_at("0.weight", (strict.clone(), weight.clone()));
    let view = weight.narrow(0, 0, 60).expect("a view");
    refused_at("1.weight", (view, strict));

    let strict = |inner: &Arc<Inner>| Strict {
        weight: None,
        inner: Some(Arc::clone(inner)),
        head: linear(100),
    };
    let inner = |weight: &Tensor, nested: &Tensor| {
        let (weight, nested) = (weight.clone(), Arc::new(nested.clone()));
        Arc::new(Inner { weight, nested })
    };
    let (vector, matrix) = (ones(&[100]), weight);
    let found = inner(&matrix, &vector);
    refused_at("1.inner.weight", (Arc::clone(&found), strict(&found)));
    refused_at("0.inner.weight", (strict(&found), Arc::clone(&found)));
    let found = inner(&vector, &matrix);
    let outside = (Arc::clone(&found.nested), Arc::clone(&found));
    refused_at("1.inner.nested", (outside, strict(&found), strict(&found)));

    // A layer that is visited twice counts once.
    let layers = Arc::new((linear(100), ones(&[1])));
    #[derive(Quantizable)]
    #[quantizable(strict)]
    struct Again(Arc<(nn::Linear, Tensor)>);
    let report = quantize(&mut (Arc::clone(&layers), Again(layers)));
    let [layer] = &report.layers[..] else { panic!("one layer: {report}") };
    assert_eq!(layer.shared_as, ["1.0.0"]);
}

#[test]
fn where_nothing_is_quantized_they_are_named_too() {
    let message = |model: &mut dyn Quantizable| {
        quantize_dynamic(model, &QConfigSpec::int8()).expect_err("nothing").to_string()
    };
    let none = message(&mut (0..5).map(|_| own_linear(100)).collect::<Vec<_>>());
    let start = "nothing to quantize: the model has no layers, but float tensors in none: \
        0.weight: f32 [100, 100], 40.0 kB; 1.weight";
    assert!(none.starts_with(start), "{none}");
    assert_parts(&none, &["; and 2 more; hold a weight in a candle_dynquant::nn::Linear"]);
    let table = nn::Embedding::new(ones(&[10, 10]), 10);
    let left = message(&mut (table, own_linear(100)));
    let start = "nothing to quantize: no rule gives a qconfig to any of the model's 1 layers, such \
        as 0 (Embedding); float tensors in no layer: 1.weight: f32 [100, 100], 40.0 kB; hold";
    assert!(left.starts_with(start), "{left}");
}

#[test]
fn a_tuned_model_names_them_too() {
    #[derive(Quantizable)]
    struct Model {
        body: OwnLinear,
        head: nn::Linear,
        hidden: Option<candle_nn::Linear>,
    }
    let mut model = Model { body: own_linear(100), head: linear(100), hidden: None };
    let always = |_: &Model| candle_core::Result::Ok(1.);
    let outcome = tune(&mut model, &TuningConfig::default(), always).expect("tunes");
    let paths: Vec<_> = outcome.float_tensors.iter().map(|t| &*t.path).collect();
    assert_eq!(paths, ["body.weight"]);
    let lines = [
        "\n  body.weight: f32 [100, 100], 40.0 kB\n",
        "\n  hidden: core::option::Option<candle_nn::linear::Linear> (use",
    ];
    assert_parts(&outcome.to_string(), &lines);

    #[derive(Quantizable)]
    #[quantizable(strict)]
    struct Strict(OwnLinear, nn::Linear);
    let mut strict = Strict(own_linear(100), linear(100));
    let always = |_: &Strict| candle_core::Result::Ok(1.);
    let error = tune(&mut strict, &TuningConfig::default(), always);
    assert!(error.as_ref().is_err_and(|error| error.kind() == ErrorKind::FloatTensors));
}

#[test]
fn tensors_that_cannot_be_counted_are_said_to_be() {
    let report = quantize(&mut model!(Model {
        masks: HashMap<(usize, usize), Tensor> = HashMap::new(),
        shared: Arc<Mutex<Tensor>> = Arc::new(Mutex::new(ones(&[3, 2]))),
        label: Arc<str> = "label".into(),
        head: nn::Linear = linear(1),
    }));
    let text = report.to_string();
    let opaque = text.split("opaque fields (not visited):\n").nth(1).expect("fields");
    let lines: Vec<_> = opaque.lines().collect();
    let ends = [
        ("  masks: ", "Tensor> (its tensors are not counted)"),
        ("  shared: ", "Tensor>> (its tensors are not counted)"),
        ("  label: ", "Arc<str>"),
    ];
    for (line, (start, end)) in lines.iter().zip(ends) {
        assert!(line.starts_with(start) && line.ends_with(end), "{text}");
    }
    assert_eq!(lines.len(), 3);
}
