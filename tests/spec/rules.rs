//! The rule that decides for each layer, and the messages of wrong rules.

use std::sync::Arc;

use crate::common::toy::{Plain, Toy};
use crate::kit::*;

#[derive(Quantizable, Clone)]
struct Attention {
    query: Toy,
    value: Toy,
    heads: Plain,
}

#[derive(Quantizable, Clone)]
struct Block {
    attention: Attention,
    output: Toy,
}

#[derive(Quantizable, Clone)]
struct Model {
    layer: Vec<Block>,
    rnn: Toy,
    head: Toy,
}

fn model() -> Model {
    let block = |i: usize| Block {
        attention: Attention {
            query: Toy::named(&format!("bert.encoder.{i}.q_proj")),
            value: Toy::new(),
            heads: Plain(2),
        },
        output: Toy::new(),
    };
    Model { layer: (0..11).map(block).collect(), rnn: Toy::of(LayerKind::LSTM), head: Toy::new() }
}

const A: QConfig = QConfig::int8();
const B: QConfig = QConfig::pytorch();
const C: QConfig = QConfig::per_channel();

/// The outcome of the layer at `path`: its qconfig, or `None` if it was left.
#[track_caller]
fn outcome(case: &str, report: &Report, path: &str) -> Option<QConfig> {
    let layer = report.layers.iter().find(|l| l.path == path);
    match &layer.unwrap_or_else(|| panic!("{case}: no layer {path}")).outcome {
        Outcome::Swapped { to } => Some(to.clone()),
        _ => None,
    }
}

#[test]
fn a_name_ends_where_a_segment_ends() {
    let spec = QConfigSpec::of(["layer.1"], A);
    let report = quantize_dynamic(&mut model(), &spec).expect("quantizes");
    let swapped: Vec<_> = report.swapped().map(|l| l.path.as_str()).collect();
    let expected = ["attention.query", "attention.value", "output"];
    let expected = expected.map(|name| format!("layer.1.{name}"));
    assert_eq!(swapped, expected, "and none of layer.10");
}

/// `forms` has every pair of rules by the paths of the model.
#[test]
fn a_layer_has_the_name_of_the_checkpoint_too() {
    let query = "layer.1.attention.query";
    let new = QConfigSpec::new;
    let by_file = r"^bert\..*\.1\.q_proj$";
    let cases: Vec<(&str, QConfigSpec, Option<QConfig>)> = vec![
        ("exact", new().name("bert.encoder.1.q_proj", B).name("", C), Some(B)),
        ("regex", new().regex(by_file, B), Some(B)),
        ("ancestor", new().name("bert.encoder.1", B), Some(B)),
        ("exact path over regex", new().name(query, None).regex("query|head", C), None),
        ("no rule", new().kind(LayerKind::LSTM, B), None),
    ];
    for (case, spec, expected) in cases {
        let mut model = model();
        let report =
            quantize_dynamic(&mut model, &spec).unwrap_or_else(|e| panic!("{case}: {e}\n{spec}"));
        assert_eq!(outcome(case, &report, query), expected, "{case}");
        let got = &model.layer[1].attention.query.quantized;
        assert_eq!(*got, expected, "{case}: the layer is not what the report says");
    }
}

#[test]
fn the_report_says_why_a_layer_was_left() {
    let mut model = model();
    let spec = all_int8().name("layer.0", None);
    let report = quantize_dynamic(&mut model, &spec).expect("quantizes");
    let reasons: Vec<_> = report.left().map(|l| (&*l.path, &l.outcome)).collect();
    let kept = Outcome::Left { reason: LeftReason::KeptFloat { rule: "name \"layer.0\"".into() } };
    assert_eq!(
        reasons,
        [
            ("layer.0.attention.query", &kept),
            ("layer.0.attention.value", &kept),
            ("layer.0.output", &kept)
        ]
    );
    assert_eq!(report.opaque[0].path, "layer.0.attention.heads", "opaque fields are listed");
    let again = quantize_dynamic(&mut model, &all_int8()).expect("quantizes the rest");
    assert_eq!(again.swapped().count(), 3, "only what was left is swapped");
    let already = Outcome::Left { reason: LeftReason::AlreadyQuantized };
    assert!(again.left().count() > 0, "{again}");
    assert!(again.left().all(|l| l.outcome == already), "{again}");
}

/// A model without layers of ours.
#[derive(Quantizable)]
struct Foreign<T> {
    proj: T,
}

#[test]
fn rules_at_fault_are_told_what_the_model_has() {
    let named = |name| all_int8().name(name, None);
    let regex = |regex| all_int8().regex(regex, None);
    let opaque =
        "layer.0.attention.heads is a spec::common::toy::Plain, which is not a module tree";
    let heads = format!("rule name \"layer.0.attention.heads\" matches no layer: {opaque}");
    let cases: Vec<(QConfigSpec, &str)> = vec![
        (
            named("layer.1.attention.qurey"),
            r#"rule name "layer.1.attention.qurey" matches no layer: the nearest name is "layer.1.attention.query""#,
        ),
        (
            named("layer.1.atention"),
            r#"rule name "layer.1.atention" matches no layer: the nearest name is "layer.1.attention""#,
        ),
        (named("layer.0.attention.heads"), &heads),
        (named("layer.0.attention.heads.query"), opaque),
        (
            all_int8().kind(LayerKind::GRU, A),
            "rule kind GRU matches no layer: the model has layers of kind Linear, LSTM",
        ),
        (
            regex("^dense$"),
            r#"rule regex "^dense$" matches no layer: the model has layers such as layer.0.attention.query, "#,
        ),
        (regex("layer("), r#"malformed regex "layer(": "#),
        (
            QConfigSpec::new(),
            "nothing to quantize: no rule gives a qconfig to any of the model's 35 layers, such as layer.0.attention.query (Linear)",
        ),
        (named(""), "nothing to quantize: no rule gives a qconfig"),
    ];
    for (spec, expected) in cases {
        let mut model = model();
        fault(quantize_dynamic(&mut model, &spec)).has(expected);
        assert!(!model.head.is_quantized(), "{spec}: the model was changed");
    }
}

#[test]
fn a_model_without_layers_is_told_which_field_may_be_meant() {
    fn error<T>(proj: T) -> String
    where
        Foreign<T>: Quantizable,
    {
        let mut model = Foreign { proj };
        let error = quantize_dynamic(&mut model, &all_int8()).expect_err("no layers");
        assert!(error.kind() == ErrorKind::Unmatched, "{error:?}");
        error.to_string()
    }
    /// Two of candle's layers, and one of this library's inside an opaque type.
    #[derive(Quantizable)]
    struct Holds<T> {
        #[quantizable(skip)]
        generic: std::marker::PhantomData<T>,
        linear: Option<candle_nn::Linear>,
    }
    #[derive(Quantizable)]
    struct Hides {
        linear: Vec<(candle_dynquant::nn::Linear, Plain)>,
    }
    let foreign = error(Holds::<u8> { generic: std::marker::PhantomData, linear: None });
    assert_eq!(
        foreign,
        "nothing to quantize: the model has no layers, but fields that may hold some: proj.linear is a core::option::Option<candle_nn::linear::Linear>; use candle_dynquant::nn::Linear"
    );
    let hidden = error(Hides { linear: vec![] });
    assert!(
        hidden.ends_with("derive Quantizable for spec::common::toy::Plain, or mark the field #[quantizable(skip)]"),
        "{hidden}"
    );
    let empty = error(());
    assert!(empty.contains("derive Quantizable"), "{empty}");
}

#[track_caller]
fn is_invalid<M: Quantizable>(model: &mut M, message: &str) {
    let error = quantize_dynamic(model, &all_int8()).expect_err(message);
    assert_eq!(error.kind(), ErrorKind::InvalidModel);
    assert!(error.to_string().contains(message), "{error}");
}

#[test]
fn two_layers_of_one_path_are_an_error() {
    #[derive(Quantizable)]
    struct Part {
        dense: Toy,
    }
    #[derive(Quantizable)]
    struct Flattened {
        #[quantizable(flatten)]
        a: Part,
        #[quantizable(flatten)]
        b: Part,
    }
    #[derive(Quantizable)]
    struct Below {
        a: Part,
        #[quantizable(rename = "a.dense")]
        b: Toy,
    }
    let part = || Part { dense: Toy::new() };
    is_invalid(&mut Flattened { a: part(), b: part() }, "path \"dense\"");
    let mut below = Below { a: part(), b: Toy::new() };
    is_invalid(&mut below, "path \"a.dense\"");
    assert!(!below.b.is_quantized(), "the model was changed");
}

#[derive(Quantizable, Clone)]
struct Pair {
    left: Arc<Toy>,
    right: Toy,
}

#[test]
fn rules_know_a_shared_layer_by_all_its_paths() {
    let inner = Arc::new(Toy::new());
    let pair = Arc::new(Pair { left: Arc::clone(&inner), right: Toy::new() });
    // `left` is met at 0, and then in the pair at 1, which is met again at 2.
    let names = ["0", "1.left", "2.left", "1", "2"];
    for name in names {
        let mut model = (Arc::clone(&inner), Arc::clone(&pair), Arc::clone(&pair));
        let spec = QConfigSpec::new().name(name, A);
        let report =
            quantize_dynamic(&mut model, &spec).unwrap_or_else(|e| panic!("name {name}: {e}"));
        assert_eq!(report.layers[0].shared_as, ["1.left", "2.left"], "name {name}");
        assert!(model.0.is_quantized(), "name {name}: 0");
        assert!(model.2.left.is_quantized(), "name {name}: 2.left");
        assert!(
            Arc::ptr_eq(&model.0, &model.1.left) && Arc::ptr_eq(&model.1, &model.2),
            "name {name}: sharing was lost"
        );
        assert!(!inner.is_quantized(), "name {name}: outside");
    }
}

#[test]
fn an_alias_may_not_be_another_layers_path() {
    #[derive(Quantizable)]
    struct Clash {
        a: Arc<Toy>,
        #[quantizable(flatten)]
        again: Holder,
        #[quantizable(flatten)]
        other: Named,
    }
    #[derive(Quantizable)]
    struct Holder {
        b: Arc<Toy>,
    }
    #[derive(Quantizable)]
    struct Named {
        b: Toy,
    }
    let shared = Arc::new(Toy::new());
    let mut model = Clash {
        a: Arc::clone(&shared),
        again: Holder { b: shared },
        other: Named { b: Toy::new() },
    };
    is_invalid(&mut model, "path \"b\"");
}

#[test]
fn rules_from_code_have_the_limits_of_those_from_a_file() {
    let regexes = (0..201).fold(QConfigSpec::new(), |spec, _| spec.regex("head", A));
    let dear = QConfigSpec::new().regex(r"\pL{200}|", A);
    let names = QConfigSpec::new().exclude(vec!["head"; 10_001]);
    let cases = [
        (regexes, "invalid number of regexes: expected at most 200, got 201"),
        (dear, "malformed regex"),
        (names, "invalid number of rules: expected at most 10000, got 10001"),
        // Reported at once, although the nearest name is searched for.
        (QConfigSpec::new().name("x".repeat(1 << 20), A), "rule name"),
    ];
    for (spec, expected) in cases {
        fault(quantize_dynamic(&mut model(), &spec)).starts(expected);
    }
}

#[test]
fn a_pattern_that_names_no_path_is_answered_with_the_regex() {
    for (name, expected) in [
        ("query", r#".regex(r"(^|\.)query$", ..) matches 11 layers"#),
        ("*.query", r#".regex(r"(^|\.)query$", ..) matches 11 layers"#),
        ("attention.value", r#".regex(r"(^|\.)attention\.value$", ..) matches 11 layers"#),
        ("layer.*.output", r#".regex(r"^layer\..*\.output$", ..) matches 11 layers"#),
        ("attention", r#".regex(r"(^|\.)attention\.", ..) matches 22 layers"#),
        ("*.0.output", r#".regex(r"(^|\.)0\.output$", ..) matches 1 layer"#),
        ("*.qeury", "the model has layers such as layer.0.attention.query, "),
        ("*", "the model has layers such as layer.0.attention.query, "),
    ] {
        let mut model = model();
        fault(quantize_dynamic(&mut model, &all_int8().exclude(name))).has(expected);
    }
}
