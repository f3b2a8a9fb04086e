//! A report as text: totals first, layers folded into ranges, units, notes, opaque fields.
#![allow(missing_docs)]

mod common;

use common::*;
use std::sync::Arc;

fn embedding(rows: usize, size: usize) -> nn::Embedding {
    nn::Embedding::new(ones(&[rows, size]), size)
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
    let layer = (0..layers).map(|_| block()).collect();
    Model { embedding: embedding(10, 32), layer, head: linear(3, 32) }
}

fn report<M: Quantizable>(mut model: M, spec: &QConfigSpec) -> Report {
    quantize_dynamic(&mut model, spec).expect("quantizes")
}

fn is_rule(line: &str) -> bool {
    line.trim_start().starts_with('─')
}

/// The rows of the table without header and rules: the name, and the count if there is one.
fn rows(report: &str) -> Vec<String> {
    let lines = report.lines().skip_while(|line| !is_rule(line)).skip(1);
    let rows = lines.take_while(|line| !is_rule(line));
    rows.map(|row| {
        let kind = ["Linear", "Embedding"].iter().find_map(|k| row.find(k));
        let name = &row[..kind.expect("a kind")];
        name.split_whitespace().collect::<Vec<_>>().join(" ")
    })
    .collect()
}

#[track_caller]
fn assert_rows(text: &str, expected: &[&str]) {
    assert_eq!(rows(text), expected, "{text}");
}

/// Checks the lines below the table.
#[track_caller]
fn assert_notes(text: &str, expected: &[&str]) {
    let end = text.lines().collect::<Vec<_>>().iter().rposition(|line| is_rule(line));
    let notes: Vec<_> = text.lines().skip(end.map_or(1, |end| end + 1)).collect();
    assert_eq!(notes, expected, "{text}");
}

#[test]
fn the_totals_come_first_and_layers_that_differ_in_their_paths_only_share_a_row() {
    let report = report(model(12), &all_int8());
    let text = report.to_string();
    let (before, after) = (report.bytes_before(), report.bytes_after());
    assert_eq!(before, 4 * (12 * 5 * 32 * 32 + 3 * 32));
    let [before, after] = [before, after].map(|bytes| bytes as f64);
    let expected = format!(
        "49 of 50 layers swapped, weights {:.1} kB -> {:.1} kB ({:.1} %), running on {}",
        before / 1e3,
        after / 1e3,
        100. * after / before,
        report.isa,
    );
    assert_eq!(text.lines().next(), Some(&*expected), "{text}");
    let shared = "layer.{0-11}.attention.{query,key,value} x36";
    assert_rows(&text, &["embedding", shared, "layer.{0-11}.up x12", "head"]);
    // A row gives the bytes of all its layers.
    let row = text.lines().find(|line| line.contains("x36"));
    let bytes = |of: fn(&LayerReport) -> usize| -> f64 {
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
    assert_rows(&text, &expected);
    assert!(text.contains("left: kept float by name \"layer.3\""), "{text}");
}

#[test]
fn numbers_are_ordered_as_numbers_and_names_as_they_come() {
    let one = || linear(4, 4);
    let model = model!(Named {
        #[quantizable(rename = "10")]
        ten: nn::Linear = one(),
        b: nn::Linear = one(),
        #[quantizable(rename = "9")]
        nine: nn::Linear = one(),
        a: nn::Linear = one(),
        #[quantizable(rename = "07")]
        not_a_number: nn::Linear = one(),
        #[quantizable(rename = "18446744073709551615")]
        largest: nn::Linear = one(),
    });
    let text = report(model, &all_int8()).to_string();
    assert_rows(&text, &["{9-10,18446744073709551615,b,a,07} x6"]);
}

#[test]
fn the_alternate_form_gives_each_layer_and_field_a_line() {
    let report = report(model(2), &all_int8());
    let text = format!("{report:#}");
    let paths: Vec<_> = report.layers.iter().map(|l| l.path.as_str()).collect();
    assert_rows(&text, &paths);
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
    assert_notes(&text, &expected);
    // Otherwise they are folded as layers are.
    let expected = [
        "opaque fields (not visited):",
        "  layer.{0-1}.attention.{heads,head_size}: alloc::sync::Arc<str>",
        "  layer.{0-1}.activation: fn(f32) -> f32",
    ];
    assert_notes(&report.to_string(), &expected);
}

#[test]
fn embeddings_left_by_default_name_the_method_that_adds_them() {
    let text = report(model(1), &all_int8()).to_string();
    let row = text.lines().find(|line| line.contains("Embedding")).expect("a row");
    assert_parts(row, &["left: off by default, see `.embeddings()`"]);
    let text = report(model(1), &all_int8().embeddings()).to_string();
    assert!(!text.contains("left:"), "{text}");
    // A kind that no rule matches has no such method.
    let spec = QConfigSpec::of(["head"], QConfig::int8());
    assert_parts(&report(model(1), &spec).to_string(), &["left: no rule matches"]);
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
        let text = report(linear(out, inputs), &all_int8()).to_string();
        let total = format!("1 of 1 layers swapped, weights {expected} -> ");
        assert!(text.starts_with(&total), "{expected}: {text}");
        assert_rows(&text, &["(the model itself)"]);
    }
    let mut gigabytes = report(linear(1, 1), &all_int8());
    gigabytes.layers[0].bytes_before = 999_950_000;
    assert!(gigabytes.to_string().contains("weights 1.0 GB -> "));
    let mut empty = gigabytes;
    empty.layers.clear();
    let expected = format!("0 of 0 layers swapped, weights 0 B -> 0 B, running on {}\n", empty.isa);
    assert_eq!([empty.to_string(), format!("{empty:#}")], [&*expected; 2]);
}

#[test]
fn a_layer_with_several_paths_shows_all_of_them() {
    let attention = Arc::new(model(1).layer.remove(0).attention);
    let shared = model!(Shared { layer: Vec<Arc<Attention>> = vec![attention; 12] });
    let text = report(shared, &all_int8()).to_string();
    let expected = ["query", "key", "value"];
    let expected = expected.map(|name| format!("layer.0.{name} = layer.{{1-11}}.{name}"));
    assert_eq!(rows(&text), expected, "{text}");
}

#[test]
fn a_tied_weight_is_named_once() {
    let embedding = embedding(40, 32);
    let tied = || {
        model!(Tied {
            embedding: nn::Embedding = embedding.clone(),
            head: nn::Linear = nn::Linear::new(embedding.embeddings().clone(), None),
        })
    };
    let both = report(tied(), &all_int8().embeddings());
    let text = both.to_string();
    assert_parts(&text, &["shares the weight of head"]);
    assert_notes(&text, &[]);
    assert_eq!(both.bytes_before(), 4 * 40 * 32);

    let text = report(tied(), &all_int8()).to_string();
    let expected = "head: its float weight stays in memory, because embedding still holds it";
    assert_notes(&text, &[expected]);
    assert!(text.starts_with("1 of 2 layers swapped, weights 0 B -> "));
}

#[test]
fn a_second_call_says_that_nothing_was_swapped_and_why() {
    let mut model = model(2);
    quantize(&mut model);
    let report = quantize_dynamic(&mut model, &QConfigSpec::float16()).expect("finds them");
    let expected =
        format!("0 of 10 layers swapped: 9 are quantized already, running on {}", report.isa);
    assert_eq!(report.to_string().lines().next(), Some(&*expected), "{report}");
}

#[test]
fn a_layer_that_was_left_names_the_one_that_counts_its_weight() {
    let shared = linear(32, 32);
    let model = || vec![shared.clone(), shared.clone(), linear(32, 32)];
    let spec = all_int8().exclude(["0", "1"]);
    let left = report(model(), &spec);
    let text = left.to_string();
    let expected = "1: its weight is counted with 0, which holds the same memory";
    assert_notes(&text, &[expected]);
    assert_eq!(left.layers[1].tied_to.as_deref(), Some("0"));
    assert_eq!(left.bytes_before(), 4 * 32 * 32, "that of the swapped layer");
}

#[test]
fn clamped_weights_are_counted_once_and_told_by_layer() {
    let of = |values: [f32; 4]| {
        let weight = Tensor::new(&values, CPU).and_then(|w| w.reshape((2, 2)));
        nn::Linear::new(weight.expect("a weight"), None)
    };
    let head = of([7e4, 1., -1e5, 2.]);
    let model = model!(Clamped {
        embedding: nn::Embedding = nn::Embedding::new(head.weight().clone(), 2),
        head: nn::Linear = head,
        one: nn::Linear = of([1e6, 1., 0., 0.]),
        none: nn::Linear = of([65504., 1., 2., 3.]),
    });
    let clamped = report(model, &QConfigSpec::float16().embeddings());
    let text = clamped.to_string();
    assert!(text.contains("shares the weight of head"), "{text}");
    let counts: Vec<_> = clamped.layers.iter().map(|l| l.saturated).collect();
    assert_eq!(counts, [0, 2, 1, 0], "{text}");
    let expected = [
        "head: 2 weights exceeded the float16 range and were clamped to ±65504",
        "one: 1 weight exceeded the float16 range and was clamped to ±65504",
    ];
    assert_notes(&text, &expected);
    let bf16 = report(of([f32::MAX, 1., 0., 0.]), &QConfigSpec::bfloat16());
    let expected =
        "(the model itself): 1 weight exceeded the bfloat16 range and was clamped to ±3.39e38";
    assert_notes(&bf16.to_string(), &[expected]);
    let json = serde_json::to_value(&clamped).expect("serializes");
    let counts = [0, 1, 2, 3].map(|layer| json["layers"][layer]["saturated"].as_u64());
    assert_eq!(counts, [None, Some(2), Some(1), None], "{json:#}");
}

#[test]
fn of_many_fields_that_may_hold_more_three_are_named_first() {
    type Hidden = Option<candle_nn::Linear>;
    #[derive(Quantizable, Clone)]
    struct Deepest {
        f: Hidden,
    }
    #[derive(Quantizable)]
    struct Innermost {
        e: Hidden,
        last: Vec<Deepest>,
    }
    #[derive(Quantizable)]
    struct Inner {
        c: Hidden,
        d: Innermost,
    }
    let model = |last: usize| {
        let d = Innermost { e: None, last: vec![Deepest { f: None }; last] };
        // Paths of different lengths are not merged.
        model!(Model {
            head: nn::Linear = linear(4, 4),
            a: Hidden = None,
            b: Inner = Inner { c: None, d },
        })
    };
    for (last, fields) in [
        (0, "3 fields may hold more: a, b.c, b.d.e"),
        (1, "4 fields may hold more: a, b.c, b.d.e, .."),
    ] {
        let text = report(model(last), &all_int8()).to_string();
        let line = text.lines().next().expect("a line");
        assert!(line.ends_with(&format!("; {fields}")), "{text}");
    }
}
