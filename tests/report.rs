//! A report as text: totals first, layers folded into ranges, units, notes, opaque fields.
#![allow(missing_docs)]

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candle_dynquant::{QConfigSpec, Quantizable, Report, nn, quantize_dynamic};

fn linear(out: usize, inputs: usize) -> nn::Linear {
    let weight = Tensor::ones((out, inputs), DType::F32, &Device::Cpu).expect("a weight");
    nn::Linear::new(weight, None)
}

fn embedding(rows: usize, size: usize) -> nn::Embedding {
    let table = Tensor::ones((rows, size), DType::F32, &Device::Cpu).expect("a table");
    nn::Embedding::new(table, size)
}

#[derive(Quantizable, Clone)]
struct Attention {
    query: nn::Linear,
    key: nn::Linear,
    value: nn::Linear,
    heads: Arc<str>,
    head_size: Arc<str>,
}

#[derive(Quantizable, Clone)]
struct Block {
    attention: Attention,
    up: nn::Linear,
    activation: fn(f32) -> f32,
}

#[derive(Quantizable, Clone)]
struct Model {
    embedding: nn::Embedding,
    layer: Vec<Block>,
    head: nn::Linear,
}

fn model(layers: usize) -> Model {
    let block = || Block {
        attention: Attention {
            query: linear(32, 32),
            key: linear(32, 32),
            value: linear(32, 32),
            heads: "4".into(),
            head_size: "8".into(),
        },
        up: linear(64, 32),
        activation: f32::tanh,
    };
    Model {
        embedding: embedding(10, 32),
        layer: (0..layers).map(|_| block()).collect(),
        head: linear(3, 32),
    }
}

fn report<M: Quantizable>(mut model: M, spec: &QConfigSpec) -> Report {
    quantize_dynamic(&mut model, spec).expect("quantizes")
}

/// The rows of the table without header and rules: the name, and the count if there is one.
fn rows(report: &str) -> Vec<String> {
    let rule = |line: &str| line.trim_start().starts_with('─');
    let mut lines = report.lines().skip_while(|line| !rule(line)).skip(1);
    let rows = lines.by_ref().take_while(|line| !rule(line));
    rows.map(|row| {
        let kind = ["Linear", "Embedding"].iter().find_map(|k| row.find(k));
        let name = &row[..kind.expect("a kind")];
        name.split_whitespace().collect::<Vec<_>>().join(" ")
    })
    .collect()
}

/// The lines below the table.
fn notes(report: &str) -> Vec<&str> {
    let rule = |line: &str| line.trim_start().starts_with('─');
    let end = report.lines().enumerate().filter(|(_, line)| rule(line));
    let end = end.last().map_or(0, |(index, _)| index);
    report.lines().skip(end + 1).collect()
}

#[test]
fn the_totals_come_first() {
    let report = report(model(12), &QConfigSpec::int8().min_params(0));
    let text = report.to_string();
    let first = text.lines().next().expect("a line");
    let (before, after) = (report.bytes_before(), report.bytes_after());
    assert_eq!(before, 4 * (12 * 5 * 32 * 32 + 3 * 32));
    let expected = format!(
        "49 of 50 layers swapped, weights {:.1} kB -> {:.1} kB ({:.1} %), running on {}",
        before as f64 / 1e3,
        after as f64 / 1e3,
        100. * after as f64 / before as f64,
        report.isa,
    );
    assert_eq!(first, expected, "{text}");
}

#[test]
fn layers_that_differ_in_their_paths_only_share_a_row() {
    let report = report(model(12), &QConfigSpec::int8().min_params(0));
    let text = report.to_string();
    let expected = [
        "embedding",
        "layer.{0-11}.attention.{query,key,value} x36",
        "layer.{0-11}.up x12",
        "head",
    ];
    assert_eq!(rows(&text), expected, "{text}");
    // A row gives the bytes of all its layers.
    let row = text.lines().find(|line| line.contains("x36"));
    let bytes = |of: fn(&candle_dynquant::LayerReport) -> usize| -> f64 {
        let layers = report.layers.iter().filter(|l| l.path.contains("attention"));
        layers.map(of).sum::<usize>() as f64 / 1e3
    };
    let (before, after) = (bytes(|l| l.bytes_before), bytes(|l| l.bytes_after));
    let row: Vec<_> = row.expect("a row").split_whitespace().collect();
    let expected = format!("{before:.1} kB {after:.1} kB");
    assert!(row.join(" ").ends_with(&expected), "{text}\n{expected}");
}

#[test]
fn ranges_have_gaps_where_layers_differ() {
    let spec = QConfigSpec::int8()
        .min_params(0)
        .exclude(["layer.3", "layer.9.attention.key", "layer.11"])
        .embeddings();
    let text = report(model(12), &spec).to_string();
    let expected = [
        "embedding",
        "layer.{0-2,4-8,10}.attention.{query,key,value} x27",
        "layer.{0-2,4-10}.up x10",
        "layer.3.attention.{query,key,value} x3",
        "layer.3.up",
        "layer.9.attention.{query,value} x2",
        "layer.9.attention.key",
        "layer.11.attention.{query,key,value} x3",
        "layer.11.up",
        "head",
    ];
    assert_eq!(rows(&text), expected, "{text}");
    assert!(text.contains("left: kept float by name \"layer.3\""), "{text}");
}

#[test]
fn numbers_are_ordered_as_numbers_and_names_as_they_come() {
    #[derive(Quantizable, Clone)]
    struct Named {
        #[quantizable(rename = "10")]
        ten: nn::Linear,
        b: nn::Linear,
        #[quantizable(rename = "9")]
        nine: nn::Linear,
        a: nn::Linear,
        #[quantizable(rename = "07")]
        not_a_number: nn::Linear,
        #[quantizable(rename = "18446744073709551615")]
        largest: nn::Linear,
    }
    let one = || linear(4, 4);
    let model =
        Named { ten: one(), b: one(), nine: one(), a: one(), not_a_number: one(), largest: one() };
    let text = report(model, &QConfigSpec::int8().min_params(0)).to_string();
    assert_eq!(rows(&text), ["{9-10,18446744073709551615,b,a,07} x6"], "{text}");
}

#[test]
fn the_alternate_form_gives_each_layer_and_field_a_line() {
    let report = report(model(2), &QConfigSpec::int8().min_params(0));
    let text = format!("{report:#}");
    let paths: Vec<_> = report.layers.iter().map(|l| l.path.as_str()).collect();
    assert_eq!(rows(&text), paths, "{text}");
    assert!(text.starts_with("9 of 10 layers swapped"), "{text}");
    let expected = [
        "opaque fields (not visited):",
        "  layer.0.attention.heads: alloc::sync::Arc<str>",
        "  layer.0.attention.head_size: alloc::sync::Arc<str>",
        "  layer.0.activation: fn(f32) -> f32",
        "  layer.1.attention.heads: alloc::sync::Arc<str>",
        "  layer.1.attention.head_size: alloc::sync::Arc<str>",
        "  layer.1.activation: fn(f32) -> f32",
    ];
    assert_eq!(notes(&text), expected, "{text}");
}

#[test]
fn opaque_fields_are_folded_as_layers_are() {
    let text = report(model(12), &QConfigSpec::int8().min_params(0)).to_string();
    let expected = [
        "opaque fields (not visited):",
        "  layer.{0-11}.attention.{heads,head_size}: alloc::sync::Arc<str>",
        "  layer.{0-11}.activation: fn(f32) -> f32",
    ];
    assert_eq!(notes(&text), expected, "{text}");
}

#[test]
fn embeddings_left_by_default_name_the_method_that_adds_them() {
    let text = report(model(1), &QConfigSpec::int8().min_params(0)).to_string();
    let row = text.lines().find(|line| line.contains("Embedding"));
    let row = row.expect("a row");
    assert!(row.contains("left: off by default, see `.embeddings()`"), "{row}");
    let text = report(model(1), &QConfigSpec::int8().min_params(0).embeddings()).to_string();
    assert!(!text.contains("left:"), "{text}");
    // A kind that no rule matches has no such method.
    let spec = QConfigSpec::of(["head"], candle_dynquant::QConfig::int8());
    let text = report(model(1), &spec).to_string();
    assert!(text.contains("left: no rule matches"), "{text}");
}

#[test]
fn units_are_decimal_and_round_up_to_the_next() {
    for (out, inputs, expected) in [
        (1, 1, "4 B"),
        (1, 249, "996 B"),
        (1, 250, "1.0 kB"),
        (300, 300, "360.0 kB"),
        (83_329, 3, "999.9 kB"),
        (62_497, 4, "1.0 MB"),
        (1000, 300, "1.2 MB"),
    ] {
        let text = report(linear(out, inputs), &QConfigSpec::int8().min_params(0)).to_string();
        let total = format!("1 of 1 layers swapped, weights {expected} -> ");
        assert!(text.starts_with(&total), "{expected}: {text}");
        assert_eq!(rows(&text), ["(the model itself)"], "{text}");
    }
    let mut gigabytes = report(linear(1, 1), &QConfigSpec::int8().min_params(0));
    gigabytes.layers[0].bytes_before = 999_950_000;
    assert!(gigabytes.to_string().contains("weights 1.0 GB -> "));
}

#[test]
fn a_layer_with_several_paths_shows_all_of_them() {
    #[derive(Quantizable, Clone)]
    struct Shared {
        layer: Vec<Arc<Attention>>,
    }
    let attention = Arc::new(model(1).layer.remove(0).attention);
    let text = report(Shared { layer: vec![attention; 12] }, &QConfigSpec::int8().min_params(0))
        .to_string();
    let expected = ["query", "key", "value"];
    let expected = expected.map(|name| format!("layer.0.{name} = layer.{{1-11}}.{name}"));
    assert_eq!(rows(&text), expected, "{text}");
}

#[test]
fn a_tied_weight_is_named_once() {
    #[derive(Quantizable, Clone)]
    struct Tied {
        embedding: nn::Embedding,
        head: nn::Linear,
    }
    let embedding = embedding(40, 32);
    let tied = || Tied {
        head: nn::Linear::new(embedding.embeddings().clone(), None),
        embedding: embedding.clone(),
    };
    let both = report(tied(), &QConfigSpec::int8().min_params(0).embeddings());
    let text = both.to_string();
    assert!(text.contains("shares the weight of head"), "{text}");
    assert!(notes(&text).is_empty(), "{text}");
    assert_eq!(both.bytes_before(), 4 * 40 * 32);

    let text = report(tied(), &QConfigSpec::int8().min_params(0)).to_string();
    let expected = "head: its float weight stays in memory, because embedding still holds it";
    assert_eq!(notes(&text), [expected], "{text}");
    assert!(text.starts_with("1 of 2 layers swapped, weights 0 B -> "));
}

#[test]
fn a_report_of_nothing_is_one_line() {
    let mut empty = report(linear(2, 2), &QConfigSpec::int8().min_params(0));
    empty.layers.clear();
    let expected = format!("0 of 0 layers swapped, weights 0 B -> 0 B, running on {}\n", empty.isa);
    assert_eq!(empty.to_string(), expected);
    assert_eq!(format!("{empty:#}"), expected);
}

#[test]
fn a_second_call_says_that_nothing_was_swapped_and_why() {
    let mut model = model(2);
    quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0)).expect("quantizes");
    let report = quantize_dynamic(&mut model, &QConfigSpec::float16()).expect("finds them");
    let text = report.to_string();
    let first = text.lines().next().expect("a line");
    let expected =
        format!("0 of 10 layers swapped: 9 are quantized already, running on {}", report.isa);
    assert_eq!(first, expected, "{text}");
}

#[test]
fn a_layer_that_was_left_names_the_one_that_counts_its_weight() {
    let shared = linear(32, 32);
    let model = || vec![shared.clone(), shared.clone(), linear(32, 32)];
    let spec = QConfigSpec::int8().min_params(0).exclude(["0", "1"]);
    let left = report(model(), &spec);
    let text = left.to_string();
    let expected = "1: its weight is counted with 0, which holds the same memory";
    assert_eq!(notes(&text), [expected], "{text}");
    assert_eq!(left.layers[1].tied_to.as_deref(), Some("0"));
    assert_eq!(left.bytes_before(), 4 * 32 * 32, "that of the swapped layer");
}

#[test]
fn clamped_weights_are_counted_once_and_told_by_layer() {
    #[derive(Quantizable, Clone)]
    struct Clamped {
        embedding: nn::Embedding,
        head: nn::Linear,
        one: nn::Linear,
        none: nn::Linear,
    }
    let of = |values: [f32; 4]| {
        let weight = Tensor::new(&values, &Device::Cpu).and_then(|w| w.reshape((2, 2)));
        nn::Linear::new(weight.expect("a weight"), None)
    };
    let head = of([7e4, 1., -1e5, 2.]);
    let model = Clamped {
        embedding: nn::Embedding::new(head.weight().clone(), 2),
        head,
        one: of([1e6, 1., 0., 0.]),
        none: of([65504., 1., 2., 3.]),
    };
    let clamped = report(model, &QConfigSpec::float16().embeddings());
    let text = clamped.to_string();
    assert!(text.contains("shares the weight of head"), "{text}");
    let counts: Vec<_> = clamped.layers.iter().map(|l| l.saturated).collect();
    assert_eq!(counts, [0, 2, 1, 0], "{text}");
    let expected = [
        "head: 2 weights exceeded the float16 range and were clamped to ±65504",
        "one: 1 weight exceeded the float16 range and was clamped to ±65504",
    ];
    assert_eq!(notes(&text), expected, "{text}");
    let bf16 = report(of([f32::MAX, 1., 0., 0.]), &QConfigSpec::bfloat16());
    let expected =
        "(the model itself): 1 weight exceeded the bfloat16 range and was clamped to ±3.39e38";
    assert_eq!(notes(&bf16.to_string()), [expected], "{bf16}");
    let json = serde_json::to_value(&clamped).expect("serializes");
    let counts = json["layers"].as_array().expect("layers").iter();
    let counts: Vec<_> = counts.map(|l| l["saturated"].as_u64()).collect();
    assert_eq!(counts, [None, Some(2), Some(1), None], "{json:#}");
}

#[test]
fn of_many_fields_that_may_hold_more_three_are_named_first() {
    type Hidden = Option<candle_nn::Linear>;
    // Paths of different lengths are not merged.
    #[derive(Quantizable, Clone)]
    struct Model {
        head: nn::Linear,
        a: Hidden,
        b: Inner,
    }
    #[derive(Quantizable, Clone)]
    struct Inner {
        c: Hidden,
        d: Innermost,
    }
    #[derive(Quantizable, Clone)]
    struct Innermost {
        e: Hidden,
        last: Vec<Deepest>,
    }
    #[derive(Quantizable, Clone)]
    struct Deepest {
        f: Hidden,
    }
    let model = |last: usize| Model {
        head: linear(4, 4),
        a: None,
        b: Inner { c: None, d: Innermost { e: None, last: vec![Deepest { f: None }; last] } },
    };
    for (last, fields) in [
        (0, "3 fields may hold more: a, b.c, b.d.e"),
        (1, "4 fields may hold more: a, b.c, b.d.e, .."),
    ] {
        let text = report(model(last), &QConfigSpec::int8().min_params(0)).to_string();
        let line = text.lines().next().expect("a line");
        assert!(line.ends_with(&format!("; {fields}")), "{text}");
    }
}
